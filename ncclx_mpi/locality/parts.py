"""What placements are made of: seats, the parts of the network that they are in, and what a byte costs between two of them.

A *seat* is a rank with what it is in; a *kind* are all seats between which, and from which to others, a byte costs the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.locality.levels import CLASSES, LEVELS, SAME_NODE, Row, distance
from numba_kernels.rows import NamedTuple

COSTS = (0, 0, 1, 2, 20, 140, 300, 600)
"""Of a byte, by distance class: beyond the node as latencies of NCCLX's network were published, 1 : 7 : 15 : 30; within it a tenth."""
assert len(COSTS) == len(CLASSES)
_MOST_IN_NODE = COSTS[SAME_NODE]
_SPLITTING = tuple(LEVELS.index(level) for level in ("dc", "zone", "rack", "node", "numa", "cache"))

Edges = Sequence[dict[int, int]]
"""For each vertex its neighbours, each with the bytes that go there and back."""


class Part(NamedTuple):
    """Seats that share something, and the parts of it that tell them apart."""

    seats: tuple[int, ...]
    inside: tuple[Part, ...]


def part_of(rows: Sequence[Row]) -> Part:
    """All seats, with the parts of them that are in different places, from data centres down to caches."""
    return _cut(tuple(range(len(rows))), rows, 0)


def _cut(seats: tuple[int, ...], rows: Sequence[Row], level: int) -> Part:
    if level == len(_SPLITTING):
        return Part(seats, ())
    groups: dict[int, list[int]] = {}
    for seat in seats:
        groups.setdefault(rows[seat][_SPLITTING[level]], []).append(seat)
    if len(groups) == 1:
        return _cut(seats, rows, level + 1)
    return Part(seats, tuple(_cut(tuple(group), rows, level + 1) for group in groups.values()))


class Expense(NamedTuple):
    """What a placement costs.

    Attributes
    ----------
    between_nodes
        Bytes that leave a node.
    cost
        What all bytes cost.
    """

    between_nodes: int
    cost: int


class Prices(dict[int, int]):
    """What a byte costs between two kinds of seat, by the number of the one times `count`, plus that of the other; computed when asked.

    Attributes
    ----------
    kinds
        The kind of each seat.
    count
        How many there are.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        found: dict[tuple[int, ...], int] = {}
        self.kinds = [found.setdefault(tuple(row[level] for level in _SPLITTING), len(found)) for row in rows]
        self.count = len(found)
        self._rows: list[Row] = [()] * self.count
        for kind, row in zip(self.kinds, rows, strict=True):
            self._rows[kind] = row

    def __missing__(self, pair: int) -> int:
        one, other = divmod(pair, self.count)
        price = self[pair] = COSTS[distance(self._rows[one], self._rows[other])]
        return price

    def expense(self, edges: Edges, seats: Sequence[int]) -> Expense:
        """What all bytes cost where each vertex has its seat."""
        kinds = [self.kinds[seat] for seat in seats]
        rows = [kind * self.count for kind in kinds]
        far = total = 0
        for row, neighbours in zip(rows, edges, strict=True):
            for other, nbytes in neighbours.items():
                price = self[row + kinds[other]]
                if price:
                    total += nbytes * price
                    far += nbytes if price > _MOST_IN_NODE else 0
        return Expense(far // 2, total // 2)  # each edge was met from both ends

"""Which node each rank of a communicator is on, as all its ranks know alike.

This module needs neither NumPy nor Numba: the table of algorithms names it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence


class NodeMap:
    """The nodes of some ranks, numbered in the order in which the ranks meet them.

    Maps of a layout are compared, and hashed, as objects; of one that was asked for lately there is one only.

    Attributes
    ----------
    of : tuple of int
        The node of each rank.
    ranks : tuple of tuple of int
        The ranks of each node, in their order.
    place : tuple of (int, int)
        The node of each rank, and its index among the ranks there.
    fewest, most : int
        Ranks of the node that has the fewest, and the most.
    in_turn : int
        The most ranks of a node whose right neighbour, around all ranks, is on another one.
    """

    def __init__(self, of: tuple[int, ...]) -> None:
        self.of = of
        ranks: list[list[int]] = [[] for _ in range(max(of) + 1)]
        places = []
        for rank, node in enumerate(of):
            places.append((node, len(ranks[node])))
            ranks[node].append(rank)
        self.ranks = tuple(map(tuple, ranks))
        self.place = tuple(places)
        self.fewest, self.most = min(map(len, ranks)), max(map(len, ranks))
        leaving = Counter(node for node, right in zip(of, (*of[1:], of[0]), strict=True) if node != right)
        self.in_turn = max(leaving.values(), default=0)

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.of)

    @property
    def number(self) -> int:
        """Nodes."""
        return len(self.ranks)

    def column(self, index: int) -> tuple[int, ...]:
        """The rank of this index on each node, all of which have one."""
        return tuple(ranks[index] for ranks in self.ranks)

    def __repr__(self) -> str:
        return f"NodeMap({self.of})"


def nodes_of(numbers: Iterable[int]) -> NodeMap:
    """Return the map of ranks that are on the nodes of these numbers."""
    known: dict[int, int] = {}
    return _made(tuple(known.setdefault(number, len(known)) for number in numbers))


@functools.lru_cache(maxsize=256)
def _made(of: tuple[int, ...]) -> NodeMap:
    return NodeMap(of)


def one_node(size: int) -> NodeMap:
    """Return the map of ranks that share a node."""
    return _made((0,) * size)


def several_nodes(known: Sequence[int], ranks: Sequence[int]) -> NodeMap | None:
    """Return the map of ranks by the node of each that is known; None if they share one, or if that of one of them is not known."""
    if not known or not ranks or max(ranks) >= len(known):
        return None
    found = nodes_of(known[rank] for rank in ranks)
    return found if found.number > 1 else None

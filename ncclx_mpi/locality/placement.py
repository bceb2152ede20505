"""Which rank should be which vertex of a graph of neighbours, so that bytes between neighbours stay near.

All ranks compute the same from the same. A *seat* is a rank with what it is in; the result has the seat of each vertex. Two ways are tried:
blocks of a grid, as square as the numbers of ranks in each node allow; and parts that grow from one vertex on along heavy edges, from
the largest parts of the network down to caches, improved by swaps. The cheapest stays, and the order that ranks have already unless
something is cheaper.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

from ncclx_mpi.locality.levels import CLASSES, LEVELS, Row, distance
from numba_kernels.rows import NamedTuple

COSTS = (0, 0, 1, 2, 20, 140, 300, 600)
"""Of a byte, by distance class: beyond the node as latencies of NCCLX's network were published, 1 : 7 : 15 : 30; within it a tenth."""
assert len(COSTS) == len(CLASSES)
MOST_VERTICES = 1 << 14
"""Of a graph that is looked at as a graph; larger grids are cut into blocks only."""
_FEW_VERTICES = 96
"""Of a graph in which all pairs are tried for a swap."""
_MOST_ROUNDS = 8
_SPLITTING = tuple(LEVELS.index(level) for level in ("dc", "zone", "rack", "node", "numa", "cache"))

Edges = Sequence[dict[int, int]]
"""For each vertex its neighbours, each with the bytes that go there and back."""


class Part(NamedTuple):
    """Seats that share something, and the parts of it that tell them apart."""

    seats: tuple[int, ...]
    inside: tuple[Part, ...]


def edges_of(size: int, pairs: Sequence[tuple[int, int, int]]) -> list[dict[int, int]]:
    """The graph of some edges: two vertices, and the bytes between them."""
    found: list[dict[int, int]] = [{} for _ in range(size)]
    for one, other, nbytes in pairs:
        if one != other:
            found[one][other] = found[other][one] = found[one].get(other, 0) + nbytes
    return found


def grid_edges(dims: Sequence[int], periods: Sequence[bool]) -> list[dict[int, int]]:
    """The graph of a grid, the last coordinate counting fastest: as many bytes through all faces."""
    pairs = []
    stride = math.prod(dims)
    for extent, is_periodic in zip(dims, periods, strict=True):
        stride //= extent
        for vertex in range(math.prod(dims)):
            coordinate = vertex // stride % extent
            if coordinate < extent - 1:
                pairs.append((vertex, vertex + stride, 1))
            elif is_periodic:
                pairs.append((vertex, vertex - stride * (extent - 1), 1))
    return edges_of(math.prod(dims), pairs)


def cost(edges: Edges, seats: Sequence[int], rows: Sequence[Row]) -> int:
    """What all bytes cost where each vertex has its seat."""
    return sum(
        nbytes * COSTS[distance(rows[seats[one]], rows[seats[other]])]
        for one, neighbours in enumerate(edges)
        for other, nbytes in neighbours.items()
        if one < other
    )


def on_grid(dims: Sequence[int], periods: Sequence[bool], rows: Sequence[Row]) -> list[int]:
    """The seat of each rank of a grid, of as many seats."""
    root, kept = part_of(rows), list(range(len(rows)))
    if not root.inside:
        return kept
    edges = grid_edges(dims, periods)
    candidates = [kept, _blocks(dims, periods, root), *_grown(edges, root, rows)]
    return min(candidates, key=lambda seats: cost(edges, seats, rows))


def on_graph(edges: Edges, rows: Sequence[Row]) -> list[int]:
    """The seat of each vertex of a graph, of as many seats."""
    root, kept = part_of(rows), list(range(len(rows)))
    if not root.inside:
        return kept
    return min([kept, *_grown(edges, root, rows)], key=lambda seats: cost(edges, seats, rows))


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


# Blocks of a grid -------------------------------------------------------------------------------------------------


def _blocks(dims: Sequence[int], periods: Sequence[bool], root: Part) -> list[int]:
    """Cut the grid into blocks of the sizes of the parts, with the smallest faces, and these again; where that cannot be, as ranks are."""
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    found = [0] * math.prod(dims)
    open_blocks = [([0] * len(dims), list(dims), root)]
    while open_blocks:
        origin, extents, part = open_blocks.pop()
        shape = _shape(dims, periods, extents, part)
        inside = part.inside
        if shape is None:
            shape, inside = [1] * len(dims), tuple(Part((seat,), ()) for seat in part.seats)
        starts = itertools.product(
            *(range(first, first + extent, step) for first, extent, step in zip(origin, extents, shape, strict=True))
        )
        for start, each in zip(starts, inside, strict=True):
            if len(each.seats) == 1:
                found[sum(at * stride for at, stride in zip(start, strides, strict=True))] = each.seats[0]
            else:
                open_blocks.append((list(start), shape, each))
    return found


def _shape(dims: Sequence[int], periods: Sequence[bool], extents: Sequence[int], part: Part) -> list[int] | None:
    """The blocks into which one is cut, so that each has as many ranks as each part, and few faces are between them; None if none fits."""
    sizes = {len(each.seats) for each in part.inside}
    if len(sizes) != 1:
        return None
    best: list[int] | None = None
    fewest = 0
    for shape in _shapes(list(extents), sizes.pop()):
        faces = 0
        for dim, is_periodic, extent, step in zip(dims, periods, extents, shape, strict=True):
            pieces = extent // step
            around = is_periodic and extent == dim and pieces > 1
            faces += (pieces - 1 + around) * (math.prod(extents) // extent)
        if best is None or faces < fewest:
            best, fewest = shape, faces
    return best


def _shapes(extents: list[int], size: int) -> Iterator[list[int]]:
    """All blocks of so many ranks that fill a larger block without rest."""
    if not extents:
        if size == 1:
            yield []
        return
    for step in range(1, extents[0] + 1):
        if extents[0] % step == 0 and size % step == 0:
            for rest in _shapes(extents[1:], size // step):
                yield [step, *rest]


# Parts of a graph -------------------------------------------------------------------------------------------------


def _grown(edges: Edges, root: Part, rows: Sequence[Row]) -> Iterator[list[int]]:
    """Seats by parts that grow, and these and the given ones improved by swaps, if there are few."""
    if len(edges) > MOST_VERTICES:
        return
    seats = [0] * len(edges)
    _grow(edges, tuple(range(len(edges))), root, seats)
    yield seats
    if len(edges) <= _FEW_VERTICES:
        yield _swapped(edges, seats, rows)
        yield _swapped(edges, list(range(len(edges))), rows)


def _grow(edges: Edges, vertices: tuple[int, ...], part: Part, seats: list[int]) -> None:
    """Give the vertices the seats of a part."""
    if not part.inside:
        for vertex, seat in zip(vertices, part.seats, strict=True):
            seats[vertex] = seat
        return
    left = set(vertices)
    for each in part.inside:
        taken = _taken(edges, left, len(each.seats))
        left.difference_update(taken)
        _grow(edges, tuple(sorted(taken)), each, seats)


def _taken(edges: Edges, left: set[int], count: int) -> list[int]:
    """So many of the vertices that are left: one at the rim, then always the one with the most bytes to those that are taken."""
    outside = {vertex: sum(nbytes for other, nbytes in edges[vertex].items() if other in left) for vertex in left}
    inside = dict.fromkeys(left, 0)
    rim = [(outside[vertex], vertex) for vertex in left]
    heapq.heapify(rim)
    queue: list[tuple[int, int, int]] = []
    taken: dict[int, None] = {}
    while len(taken) < count:
        vertex = _next(queue, rim, taken, inside, outside)
        taken[vertex] = None
        for other, nbytes in edges[vertex].items():
            if other in left and other not in taken:
                inside[other] += nbytes
                outside[other] -= nbytes
                heapq.heappush(queue, (-inside[other], outside[other], other))
                heapq.heappush(rim, (outside[other], other))
    return list(taken)


def _next(
    queue: list[tuple[int, int, int]],
    rim: list[tuple[int, int]],
    taken: dict[int, None],
    inside: dict[int, int],
    outside: dict[int, int],
) -> int:
    """The vertex to take; both queues have entries of before, too."""
    while queue:
        bytes_inside, bytes_outside, vertex = heapq.heappop(queue)
        if vertex not in taken and (-bytes_inside, bytes_outside) == (inside[vertex], outside[vertex]):
            return vertex
    while True:
        bytes_outside, vertex = heapq.heappop(rim)
        if vertex not in taken and bytes_outside == outside[vertex]:
            return vertex


def _swapped(edges: Edges, seats: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """Swap two vertices as long as that is cheaper, the most profitable pair first, within a bound."""
    found = list(seats)
    table = [[COSTS[distance(one, other)] if one is not other else 0 for other in rows] for one in rows]
    for _ in range(_MOST_ROUNDS):
        gained = 0
        for one, other in itertools.combinations(range(len(found)), 2):
            change = _change(edges, found, table, one, other)
            if change < 0:
                found[one], found[other] = found[other], found[one]
                gained -= change
        if not gained:
            break
    return found


def _change(edges: Edges, seats: Sequence[int], table: Sequence[Sequence[int]], one: int, other: int) -> int:
    """By how much all becomes dearer if two vertices swap their seats."""
    here, there = table[seats[one]], table[seats[other]]
    if here is there:
        return 0
    change = 0
    for vertex, nbytes in edges[one].items():
        if vertex != other:
            change += nbytes * (there[seats[vertex]] - here[seats[vertex]])
    for vertex, nbytes in edges[other].items():
        if vertex != one:
            change += nbytes * (here[seats[vertex]] - there[seats[vertex]])
    return change

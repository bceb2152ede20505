"""Process topologies: which ranks of a communicator are neighbours. Arithmetic on numbers only; nothing here communicates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from operator import sub
from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors, late
from ncclx_mpi.api.handle import integer
from ncclx_mpi.collectives import Neighborhood
from ncclx_mpi.constants import CART, DIST_GRAPH, GRAPH, PROC_NULL

if TYPE_CHECKING:
    from ncclx_mpi.locality import placement
    from ncclx_mpi.locality.levels import Row
else:
    placement = late.module("ncclx_mpi.locality.placement")


def items(values: Any, name: str, length: int | None = None) -> list[int]:
    """Return a sequence of integers as a list.

    Raises
    ------
    ValueError
        There are not `length` of them.
    """
    found = [integer(value, name) for value in values]
    if length is not None and len(found) != length:
        raise ValueError(f"{name}: expecting {length} items, got {len(found)}")
    return found


_MOST_NODES, _MOST_DIMS = (1 << 31) - 1, 1 << 16
"""Processes that are spread over dimensions: what a C int holds. More dimensions are a mistake, and would take all memory."""


# Cartesian --------------------------------------------------------------------------------------------------------


class Cartesian:
    """A grid of ranks, the last coordinate counting fastest, as one of them sees it.

    Attributes
    ----------
    dims, periods
        Ranks along each dimension, and whether it is a circle.
    rank
        The one that sees it.
    """

    kind = CART
    mismatch = ""

    def __init__(self, dims: tuple[int, ...], periods: tuple[bool, ...], rank: int) -> None:
        self.dims = dims
        self.periods = periods
        self.rank = rank

    def seen_by(self, rank: int) -> Cartesian:
        """The same grid as another rank sees it."""
        return Cartesian(self.dims, self.periods, rank)

    @property
    def size(self) -> int:
        """Ranks of the grid."""
        return math.prod(self.dims)

    def coords(self, rank: int) -> list[int]:
        """Where a rank is."""
        if not 0 <= rank < self.size:
            errors.fail(errors.ERR_RANK, f"rank {rank} is not in a grid of {list(self.dims)}, which has {self.size} ranks")
        found = []
        for extent in reversed(self.dims):
            rank, coordinate = divmod(rank, extent)
            found.append(coordinate)
        return found[::-1]

    def rank_at(self, coords: Sequence[int]) -> int:
        """Which rank is there; around the circle in dimensions that are periodic."""
        rank = 0
        for axis, (coordinate, extent, is_periodic) in enumerate(zip(coords, self.dims, self.periods, strict=True)):
            if not is_periodic and not 0 <= coordinate < extent:
                errors.fail(
                    errors.ERR_ARG,
                    f"coordinate {coordinate} of dimension {axis}, which is not periodic, is not from 0 to {extent - 1}",
                )
            rank = rank * extent + coordinate % extent
        return rank

    def shift(self, direction: int, disp: int) -> tuple[int, int]:
        """The ranks that are `disp` before and behind this one along a dimension; PROC_NULL beyond its ends."""
        if not 0 <= direction < len(self.dims):
            errors.fail(
                errors.ERR_DIMS, f"rank {self.rank}: Shift: direction {direction} of a grid with {len(self.dims)} dimensions"
            )
        return self._away(direction, -disp), self._away(direction, disp)

    def _away(self, direction: int, disp: int) -> int:
        coords = self.coords(self.rank)
        coords[direction] += disp
        is_inside = self.periods[direction] or 0 <= coords[direction] < self.dims[direction]
        return self.rank_at(coords) if is_inside else PROC_NULL

    def without(self, remains: Sequence[bool]) -> tuple[int, Cartesian]:
        """Cut the grid along the dimensions that do not remain: the number of the part that has this rank, and that part as a grid."""
        rest = [axis for axis, stays in enumerate(remains) if not stays]
        kept = [axis for axis, stays in enumerate(remains) if stays]
        coords, dims = self.coords(self.rank), self.dims
        number = place = 0
        for axis in rest:
            number = number * dims[axis] + coords[axis]
        for axis in kept:
            place = place * dims[axis] + coords[axis]
        return number, Cartesian(tuple(dims[axis] for axis in kept), tuple(self.periods[axis] for axis in kept), place)

    def seats(self, rows: Sequence[Row]) -> Sequence[int]:
        """Which of so many ranks, of which these rows say where they are, should be which of the grid; each its own if nothing is said."""
        return placement.on_grid(self.dims, self.periods, rows) if rows else range(self.size)

    @cached_property
    def neighborhood(self) -> Neighborhood:
        """The ranks before and behind this one along each dimension, in this order, whether they exist or not."""
        pairs = [self.shift(direction, 1) for direction in range(len(self.dims))]
        edges = tuple(rank for pair in pairs for rank in pair)
        return Neighborhood(edges, edges, tuple(index ^ 1 for index in range(len(edges))), len(edges))


def cartesian(dims: Any, periods: Any, size: int, rank: int) -> Cartesian:
    """The grid that a rank of `size` sees; it has no place in it if the grid is smaller than its rank.

    Raises
    ------
    ValueError
        There is not one period for each dimension.
    Exception
        ERR_DIMS: a dimension is empty, or the grid has more than `size` ranks.
    """
    extents = items(dims, "dims")
    circles = (
        [bool(periods)] * len(extents) if periods is None or isinstance(periods, bool) else items(periods, "periods", len(extents))
    )
    if min(extents, default=1) < 1:
        errors.fail(errors.ERR_DIMS, f"rank {rank}: a grid of {extents}: every dimension has at least 1 rank")
    if math.prod(extents) > size:
        errors.fail(
            errors.ERR_DIMS,
            f"rank {rank}: a grid of {extents} has {math.prod(extents)} ranks, and the communicator {size}; make it smaller",
        )
    return Cartesian(tuple(extents), tuple(map(bool, circles)), rank)


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return a balanced distribution of processes per coordinate direction; dimensions that are not 0 stay."""
    given, nodes = items(dims, "dims") if hasattr(dims, "__len__") else _free(integer(dims, "dims")), integer(nnodes, "nnodes")
    fixed = math.prod(each for each in given if each)
    left = [index for index, each in enumerate(given) if each == 0]
    if not 0 < nodes <= _MOST_NODES or min(given, default=0) < 0 or nodes % fixed or (not left and nodes != fixed):
        errors.fail(errors.ERR_DIMS, f"{nodes} processes cannot be spread over dimensions {given}")
    for index, factor in zip(left, _balanced(nodes // fixed, len(left)), strict=True):
        given[index] = factor
    return given


def _free(count: int) -> list[int]:
    """So many dimensions, of which none is given."""
    if not 0 <= count <= _MOST_DIMS:
        errors.fail(errors.ERR_DIMS, f"{count} dimensions; a grid has 0 to {_MOST_DIMS}")
    return [0] * count


def _balanced(number: int, parts: int) -> list[int]:
    """Return `parts` factors of `number`, as equal as they can be, largest first."""
    most = number.bit_length()  # no number has more factors above 1
    if parts > most:
        return _balanced(number, most) + [1] * (parts - most)
    if parts <= 1:
        return [number] * parts
    for first in _divisors(number):
        if first**parts >= number:
            rest = _balanced(number // first, parts - 1)
            if rest[0] <= first:
                return [first, *rest]
    return [number] + [1] * (parts - 1)


def _divisors(number: int) -> list[int]:
    """All divisors of a number, in ascending order."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


# Graphs -----------------------------------------------------------------------------------------------------------


class Graph:
    """Which ranks are whose neighbours, of all of them, as one of them sees it.

    Attributes
    ----------
    index
        How many neighbours the ranks up to each one have.
    edges
        The neighbours of rank 0, then those of rank 1, and so on.
    rank
        The one that sees it.
    """

    kind = GRAPH

    def __init__(self, index: tuple[int, ...], edges: tuple[int, ...], rank: int) -> None:
        self.index = index
        self.edges = edges
        self.rank = rank

    def seen_by(self, rank: int) -> Graph:
        """The same graph as another rank sees it."""
        return Graph(self.index, self.edges, rank)

    @property
    def size(self) -> int:
        """Ranks of the graph."""
        return len(self.index)

    def neighbors(self, rank: int) -> list[int]:
        """The neighbours of a rank."""
        if not 0 <= rank < self.size:
            errors.fail(errors.ERR_RANK, f"rank {rank} is not in a graph of {self.size} ranks")
        return list(self.edges[self.index[rank - 1] if rank else 0 : self.index[rank]])

    def seats(self, rows: Sequence[Row]) -> Sequence[int]:
        """Which of so many ranks, of which these rows say where they are, should be which of the graph; each its own if nothing is said."""
        if not rows:
            return range(self.size)
        pairs = [(rank, peer, 1) for rank in range(self.size) for peer in self.neighbors(rank)]
        return placement.on_graph(placement.edges_of(self.size, pairs), rows)

    @cached_property
    def mismatch(self) -> str:
        """Why neighbours cannot exchange messages; empty if they can: two ranks have to name each other equally often."""
        count = Counter((rank, peer) for rank in range(self.size) for peer in self.neighbors(rank))
        for (rank, peer), edges in count.items():
            if count[peer, rank] != edges:
                return unequal(rank, peer, edges, count[peer, rank])
        return ""

    @cached_property
    def neighborhood(self) -> Neighborhood:
        """The neighbours of this rank."""
        edges = tuple(self.neighbors(self.rank))
        degree = max(map(sub, self.index, (0, *self.index)), default=0)
        return Neighborhood(edges, edges, tuple(range(len(edges))), degree)


def graph(index: Any, edges: Any, size: int, rank: int) -> Graph:
    """The graph that a rank of `size` sees; it has no place in it if the graph has fewer ranks.

    The index may begin with an additional 0. That of a graph whose rank 0 has no neighbours has to: the two forms look alike.

    Raises
    ------
    Exception
        ERR_ARG: there are more than `size` ranks, the index does not fit the edges, or an edge leads out of the graph.
    """
    ends, peers = items(index, "index"), items(edges, "edges")
    if len(ends) > 0 and ends[0] == 0 and ends[-1] == len(peers):
        del ends[0]
    if len(ends) > size:
        errors.fail(errors.ERR_ARG, f"rank {rank}: a graph of {len(ends)} ranks, and the communicator has {size}; make it smaller")
    if ends != sorted(ends) or min(ends, default=0) < 0 or (ends[-1] if ends else 0) != len(peers):
        errors.fail(
            errors.ERR_ARG,
            f"rank {rank}: index {ends} of a graph with {len(peers)} edges: it has to ascend from 0, and end with the number of edges",
        )
    strangers = [peer for peer in peers if not 0 <= peer < len(ends)]
    if strangers:
        errors.fail(errors.ERR_ARG, f"rank {rank}: edge to rank {strangers[0]} in a graph of {len(ends)} ranks")
    return Graph(tuple(ends), tuple(peers), rank)


Weights = tuple[tuple[int, ...], tuple[int, ...]]


class DistributedGraph:
    """The edges of one rank, which knows no others.

    Attributes
    ----------
    sources, destinations
        The ranks at the other ends.
    weights
        Of the edges from sources and to destinations, None if they have none.
    mismatch
        Why neighbours cannot exchange messages, the same on all ranks; empty if they can.
    degree
        The most edges that lead out of a rank, the same on all ranks.
    """

    kind = DIST_GRAPH

    def __init__(
        self, sources: tuple[int, ...], destinations: tuple[int, ...], weights: Weights | None, mismatch: str, degree: int
    ) -> None:
        self.sources = sources
        self.destinations = destinations
        self.weights = weights
        self.mismatch = mismatch
        self.degree = degree

    @cached_property
    def neighborhood(self) -> Neighborhood:
        """The edges, those between two ranks in the same order at both ends."""
        return Neighborhood(self.sources, self.destinations, tuple(range(len(self.sources))), self.degree)


Topology = Cartesian | Graph | DistributedGraph


def unequal(rank: int, peer: int, edges: int, others: int) -> str:
    """What is wrong if two ranks do not name each other equally often."""
    return f"rank {rank} has {edges} edges to rank {peer}, where {others} are expected; the two ends of an edge have to agree"

"""Which rank should be which vertex of a graph of neighbours, so that bytes between neighbours stay near.

All ranks compute the same from the same: of each vertex the seat. Grids are cut into equal blocks, and by planes into two halves, four,
and so on (:mod:`ncclx_mpi.locality.blocks`); any graph into parts that grow along heavy edges (:mod:`ncclx_mpi.locality.growing`); the
cheapest of these is improved by swaps. It counts only if it is cheaper than the order that ranks have, and no more bytes leave a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ncclx_mpi.locality import blocks, growing
from ncclx_mpi.locality.levels import Row
from ncclx_mpi.locality.parts import Edges, Prices, part_of

MOST_VERTICES = 1 << 14
"""Of a graph that is looked at as a graph; larger grids are cut into blocks only."""
_MOST_SWAPPED, _MOST_TRIED = 1 << 11, 32
"""Vertices of a graph that is improved by swaps; of one in which that begins from all placements, and tries all pairs."""


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


def on_grid(dims: Sequence[int], periods: Sequence[bool], rows: Sequence[Row]) -> list[int]:
    """The seat of each rank of a grid, of as many seats."""
    root = part_of(rows)
    if not root.inside:
        return list(range(len(rows)))
    edges = grid_edges(dims, periods)
    cut = [blocks.equal(dims, periods, root), *blocks.halves(dims, periods, root)]
    grown = [growing.grown(edges, root)] if len(rows) <= _MOST_TRIED else []
    return _best(edges, rows, [*cut, *grown])


def on_graph(edges: Edges, rows: Sequence[Row]) -> list[int]:
    """The seat of each vertex of a graph, of as many seats."""
    root = part_of(rows)
    if not root.inside or len(rows) > MOST_VERTICES:
        return list(range(len(rows)))
    return _best(edges, rows, [growing.grown(edges, root)])


def gain(dims: Sequence[int], rows: Sequence[Row]) -> tuple[int, int]:
    """How many neighbours in a grid without circles are on two nodes: as ranks come, and placed."""
    periods = [False] * len(dims)
    edges, prices = grid_edges(dims, periods), Prices(rows)
    kept, placed = (prices.expense(edges, seats) for seats in (range(len(rows)), on_grid(dims, periods, rows)))
    return kept.between_nodes, placed.between_nodes


def _best(edges: Edges, rows: Sequence[Row], found: Iterable[list[int] | None]) -> list[int]:
    """The cheapest of these placements, that of the ranks' own order, and what swaps make of them."""
    prices, kept = Prices(rows), list(range(len(rows)))
    most = prices.expense(edges, kept).between_nodes

    def cost(seats: list[int]) -> float:
        expense = prices.expense(edges, seats)
        return expense.cost if expense.between_nodes <= most else math.inf

    candidates = [kept, *(seats for seats in found if seats is not None)]
    if len(rows) <= _MOST_TRIED:
        candidates += [growing.swapped(edges, seats, prices) for seats in candidates]
    best = min(candidates, key=cost)
    if not _MOST_TRIED < len(rows) <= _MOST_SWAPPED:
        return best
    return min([best, growing.exchanged(edges, best, prices)], key=cost)

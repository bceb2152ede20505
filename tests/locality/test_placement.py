"""Which rank is which vertex: fewer bytes go far, all that is asked for is there, and nothing changes without a gain."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi.locality import placement
from ncclx_mpi.locality.levels import LEVELS, NOWHERE


def rows_of(nodes: list[int], **other: list[int]) -> list[tuple[int, ...]]:
    """Ranks on these nodes, and in these racks or caches."""
    columns = {"node": nodes, **other}
    return [tuple(columns[level][rank] if level in columns else NOWHERE for level in LEVELS) for rank in range(len(nodes))]


def crossing(edges: placement.Edges, seats: list[int], column: list[int]) -> int:
    """Bytes between vertices that are not on one node, or not in one of something else."""
    return sum(
        nbytes
        for one, neighbours in enumerate(edges)
        for other, nbytes in neighbours.items()
        if one < other and column[seats[one]] != column[seats[other]]
    )


@pytest.mark.parametrize(
    ("dims", "nodes", "before", "after"),
    [
        ([2, 2], [0, 0, 1, 1], 2, 2),
        ([2, 3], [0, 0, 1, 1, 2, 2], 5, 4),
        ([2, 4], [0, 0, 0, 0, 1, 1, 1, 1], 4, 2),
        ([8], [0, 1] * 4, 7, 1),
        ([4, 2], [0, 1, 2, 3] * 2, 10, 6),
        ([3, 3], [0, 0, 0, 0, 1, 1, 1, 2, 2], 7, 5),
        ([16, 16, 16], [rank // 64 for rank in range(4096)], 4608, 2304),
        ([32, 32, 32], [rank // 8 for rank in range(32768)], 66560, 46080),
    ],
)
def test_faces_between_nodes(dims: list[int], nodes: list[int], before: int, after: int) -> None:
    periods = [False] * len(dims)
    seats = placement.on_grid(dims, periods, rows_of(nodes))
    edges = placement.grid_edges(dims, periods)
    assert sorted(seats) == list(range(len(nodes)))
    assert (crossing(edges, list(range(len(nodes))), nodes), crossing(edges, seats, nodes)) == (before, after)


@pytest.mark.parametrize("periods", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("dims", [(2, 2), (2, 3), (3, 2), (1, 6), (6, 1)])
def test_no_order_of_a_few_ranks_is_better(dims: tuple[int, int], periods: tuple[bool, bool]) -> None:
    size = math.prod(dims)
    edges = placement.grid_edges(dims, periods)
    for nodes in ([rank // 2 for rank in range(size)], [rank % 2 for rank in range(size)], [rank // 3 for rank in range(size)]):
        rows = rows_of(nodes)
        seats = placement.on_grid(dims, periods, rows)
        best = min(crossing(edges, list(order), nodes) for order in itertools.permutations(range(size)))
        assert crossing(edges, seats, nodes) == best
        if crossing(edges, list(range(size)), nodes) == best:
            assert seats == list(range(size))


def test_racks_come_before_nodes() -> None:
    """Blocks of a rack are blocks of nodes: no rack is cut to spare a node."""
    nodes, racks = [rank // 4 for rank in range(64)], [rank // 16 for rank in range(64)]
    seats = placement.on_grid([8, 8], [False, False], rows_of(nodes, rack=racks))
    edges = placement.grid_edges([8, 8], [False, False])
    assert (crossing(edges, seats, racks), crossing(edges, seats, nodes)) == (16, 48)


def test_caches_within_a_node() -> None:
    nodes, caches = [0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]
    edges = placement.grid_edges([2, 4], [False, False])
    seats = placement.on_grid([2, 4], [False, False], rows_of(nodes, cache=caches))
    assert crossing(edges, seats, caches) == 2
    assert placement.on_grid([2, 4], [False, False], rows_of(nodes)) == list(range(8))


def test_heavy_edges_are_kept_on_a_node() -> None:
    edges = placement.edges_of(6, [(0, 3, 100), (1, 4, 100), (2, 5, 100), (0, 1, 1), (2, 3, 1), (4, 5, 1), (1, 1, 9)])
    nodes = [0, 0, 1, 1, 2, 2]
    seats = placement.on_graph(edges, rows_of(nodes))
    assert crossing(edges, list(range(6)), nodes) == 300 and crossing(edges, seats, nodes) == 3


def test_edges_that_are_given_twice_count_twice() -> None:
    assert placement.edges_of(3, [(0, 1, 2), (1, 0, 3), (2, 2, 7)]) == [{1: 5}, {0: 5}, {}]
    assert placement.grid_edges([2], [True]) == [{1: 2}, {0: 2}] and placement.grid_edges([1, 2], [True, False]) == [{1: 1}, {0: 1}]
    assert placement.grid_edges([], []) == [{}]


GRIDS = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=0, max_size=3)


@given(GRIDS, st.data())
@settings(max_examples=60)
def test_every_rank_has_one_place_and_nothing_becomes_dearer(grid: list[tuple[int, bool]], data: st.DataObject) -> None:
    dims, periods = [extent for extent, _ in grid], [is_periodic for _, is_periodic in grid]
    size = math.prod(dims)
    columns = [data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)) for _ in range(3)]
    rows = rows_of(columns[0], rack=columns[1], cache=columns[2])
    edges = placement.grid_edges(dims, periods)
    for seats in (placement.on_grid(dims, periods, rows), placement.on_graph(edges, rows)):
        assert sorted(seats) == list(range(size))
        gained = placement.cost(edges, range(size), rows) - placement.cost(edges, seats, rows)
        assert gained > 0 or (gained == 0 and seats == list(range(size)))


def test_graphs_without_edges_stay() -> None:
    assert placement.on_graph(placement.edges_of(4, []), rows_of([0, 1, 0, 1])) == [0, 1, 2, 3]
    assert placement.on_graph([], []) == []

"""Which rank is which vertex: fewer bytes go far, all that is asked for is there, and nothing changes without a gain."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi.locality import blocks, growing, placement
from ncclx_mpi.locality.levels import LEVELS, NOWHERE
from ncclx_mpi.locality.parts import Edges, Expense, Prices, part_of


def rows_of(nodes: list[int], **other: list[int]) -> list[tuple[int, ...]]:
    """Ranks on these nodes, and in these racks or caches."""
    columns = {"node": nodes, **other}
    return [tuple(columns[level][rank] if level in columns else NOWHERE for level in LEVELS) for rank in range(len(nodes))]


def crossing(edges: Edges, seats: list[int], column: list[int]) -> int:
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
        ([8, 8], [rank // 16 for rank in range(64)], 24, 16),
        ([8, 8], [0] * 16 + [1] * 16 + [2] * 16 + [3] * 8 + [4] * 8, 32, 20),
        ([3, 4], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], 8, 6),
        ([6, 6], [0] * 18 + [1] * 9 + [2] * 9, 13, 9),
        ([5, 5], [rank // 5 for rank in range(25)], 20, 16),
        ([32, 32], [rank // 16 for rank in range(1024)], 1024, 448),
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


def is_a_gain(edges: Edges, rows: list[tuple[int, ...]], seats: list[int]) -> None:
    """Each rank has one place; the ranks' own order stays unless another one is cheaper, with no more bytes between nodes."""
    prices, kept = Prices(rows), list(range(len(rows)))
    before, after = prices.expense(edges, kept), prices.expense(edges, seats)
    assert sorted(seats) == kept
    assert after.between_nodes <= before.between_nodes
    assert after.cost < before.cost or (after == before and seats == kept)


@given(GRIDS, st.data())
@settings(max_examples=60)
def test_every_rank_has_one_place_and_nothing_becomes_dearer(grid: list[tuple[int, bool]], data: st.DataObject) -> None:
    dims, periods = [extent for extent, _ in grid], [is_periodic for _, is_periodic in grid]
    size = math.prod(dims)
    columns = [data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)) for _ in range(3)]
    rows = rows_of(columns[0], rack=columns[1], cache=columns[2])
    edges = placement.grid_edges(dims, periods)
    is_a_gain(edges, rows, placement.on_grid(dims, periods, rows))
    is_a_gain(edges, rows, placement.on_graph(edges, rows))


@given(st.lists(st.integers(1, 7), min_size=2, max_size=12), st.integers(1, 3), st.data())
@settings(max_examples=40)
def test_nodes_of_all_sizes(sizes: list[int], ndims: int, data: st.DataObject) -> None:
    """Any grid with as many ranks; a graph whose edges have weights; twice the same."""
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    dims, left = [], len(nodes)
    for _ in range(ndims - 1):
        dims.append(data.draw(st.sampled_from([each for each in range(1, left + 1) if left % each == 0])))
        left //= dims[-1]
    dims.append(left)
    periods = data.draw(st.lists(st.booleans(), min_size=ndims, max_size=ndims))
    rows = rows_of(nodes)
    seats = placement.on_grid(dims, periods, rows)
    is_a_gain(placement.grid_edges(dims, periods), rows, seats)
    assert placement.on_grid(dims, periods, rows) == seats
    vertices = st.integers(0, len(nodes) - 1)
    edges = placement.edges_of(len(nodes), data.draw(st.lists(st.tuples(vertices, vertices, st.integers(1, 9)), max_size=40)))
    is_a_gain(edges, rows, placement.on_graph(edges, rows))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3))
@settings(max_examples=40)
def test_equal_blocks_are_found(shape: list[tuple[int, int]]) -> None:
    """Ranks that are numbered block by block: never more faces between nodes than between those blocks."""
    dims = [pieces * extent for pieces, extent in shape]
    size, each = math.prod(dims), math.prod(extent for _, extent in shape)
    edges = placement.grid_edges(dims, [False] * len(dims))
    block = {
        sum(at * math.prod(dims[axis + 1 :]) for axis, at in enumerate(point)): tuple(
            at // extent for at, (_, extent) in zip(point, shape, strict=True)
        )
        for point in itertools.product(*map(range, dims))
    }
    faces = sum(block[one] != block[other] for one, neighbours in enumerate(edges) for other in neighbours if one < other)
    nodes = [rank // each for rank in range(size)]
    assert crossing(edges, placement.on_grid(dims, [False] * len(dims), rows_of(nodes)), nodes) <= faces


def test_bytes_within_a_node_do_not_pay_for_one_that_leaves_it() -> None:
    """Swapping ranks 1 and 2 keeps 100 bytes in a cache, at the price of one byte more between nodes."""
    edges = placement.edges_of(4, [(0, 1, 1), (0, 2, 100), (1, 3, 1)])
    rows = rows_of([0, 0, 0, 1], cache=[0, 0, 1, 2])
    seats = [0, 2, 1, 3]
    assert Prices(rows).expense(edges, seats).cost < Prices(rows).expense(edges, range(4)).cost
    is_a_gain(edges, rows, placement.on_graph(edges, rows))


def test_each_way_alone() -> None:
    """Blocks, halves, parts that grow, and swaps of a mixed order: faces that each leaves of 8 x 8 on equal nodes, and on unequal ones."""
    dims, periods, edges = [8, 8], [False, False], placement.grid_edges([8, 8], [False, False])
    found = {}
    for name, sizes in {"equal": [16] * 4, "unequal": [24, 20, 12, 8]}.items():
        nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
        root, prices = part_of(rows_of(nodes)), Prices(rows_of(nodes))
        ways = [blocks.equal(dims, periods, root), *blocks.halves(dims, periods, root), growing.grown(edges, root)]
        mixed = [vertex * 27 % 64 for vertex in range(64)]
        ways += [growing.swapped(edges, mixed, prices), growing.exchanged(edges, mixed, prices)]
        assert all(sorted(seats) == list(range(64)) for seats in ways)
        found[name] = [prices.expense(edges, seats).between_nodes for seats in ways]
    assert found == {"equal": [16, 16, 16, 16, 36, 42], "unequal": [25, 17, 17, 17, 22, 28]}


def test_an_expense_by_hand() -> None:
    """Four ranks of two nodes in two racks, and one that is in the rack of another one."""
    rows = rows_of([0, 0, 1, 2], rack=[0, 0, 1, 1])
    edges = placement.edges_of(4, [(0, 1, 5), (1, 2, 3), (2, 3, 7)])
    assert Prices(rows).expense(edges, [0, 1, 2, 3]) == Expense(10, 5 * 2 + 3 * 600 + 7 * 20)
    assert Prices(rows).expense(edges, [0, 2, 1, 3]) == Expense(15, 5 * 600 + 3 * 600 + 7 * 600)


def test_graphs_without_edges_stay() -> None:
    assert placement.on_graph(placement.edges_of(4, []), rows_of([0, 1, 0, 1])) == [0, 1, 2, 3]
    assert placement.on_graph([], []) == []

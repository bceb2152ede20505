"""Process topologies: grids, graphs and distributed graphs, what is asked of them, and what is wrong with them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi import MPI
from ncclx_mpi.api.topology import Cartesian

SHAPES = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4)


def grid(shape: list[tuple[int, bool]], rank: int = 0) -> Cartesian:
    return Cartesian(tuple(extent for extent, _ in shape), tuple(circle for _, circle in shape), rank)


def raises(error_class: int, match: str) -> Any:
    """Expect an MPI error of this class whose text says this."""
    return pytest.raises(MPI.Exception, match=match, check=lambda error: error.Get_error_class() == error_class)


# Arithmetic -------------------------------------------------------------------------------------------------------


@given(SHAPES)
def test_ranks_and_coordinates_are_each_others_inverse(shape: list[tuple[int, bool]]) -> None:
    """Ranks count coordinates in lexicographic order; beyond a circle they come again, beyond an end they are an error."""
    every = list(itertools.product(*(range(extent) for extent, _ in shape)))
    found = grid(shape)
    assert [found.coords(rank) for rank in range(found.size)] == [list(coords) for coords in every]
    assert [found.rank_at(coords) for coords in every] == list(range(found.size))
    for axis, (extent, circle) in enumerate(shape):
        for coords in every:
            for away in (-extent, extent, 3 * extent):
                beyond = [*coords[:axis], coords[axis] + away, *coords[axis + 1 :]]
                if circle:
                    assert found.rank_at(beyond) == found.rank_at(coords)
                else:
                    with raises(MPI.ERR_ARG, f"coordinate .* of dimension {axis}, which is not periodic"):
                        found.rank_at(beyond)


@given(SHAPES.filter(bool), st.data())
def test_shift_goes_along_one_dimension(shape: list[tuple[int, bool]], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid(shape).size - 1))
    axis, disp = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(-9, 9))
    found, (extent, circle) = grid(shape, rank), shape[axis]
    own = found.coords(rank)
    for peer, sign in zip(found.shift(axis, disp), (-1, 1), strict=True):
        at = own[axis] + sign * disp
        if not circle and not 0 <= at < extent:
            assert peer == MPI.PROC_NULL
        else:
            assert found.coords(peer) == [*own[:axis], at % extent, *own[axis + 1 :]]


@given(SHAPES, st.data())
def test_cutting_a_grid(shape: list[tuple[int, bool]], data: st.DataObject) -> None:
    """Ranks with the same coordinates in the dimensions that are cut are in one part, with their other coordinates."""
    remains = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    parts: dict[int, set[int]] = {}
    cuts: dict[int, set[tuple[int, ...]]] = {}
    for rank in range(grid(shape).size):
        number, part = grid(shape, rank).without(remains)
        coords = grid(shape).coords(rank)
        assert part.coords(part.rank) == [at for at, stays in zip(coords, remains, strict=True) if stays]
        assert list(zip(part.dims, part.periods, strict=True)) == [
            each for each, stays in zip(shape, remains, strict=True) if stays
        ]
        parts.setdefault(number, set()).add(part.rank)
        cuts.setdefault(number, set()).add(tuple(at for at, stays in zip(coords, remains, strict=True) if not stays))
    lengths = [extent for (extent, _), stays in zip(shape, remains, strict=True) if stays]
    assert all(ranks == set(range(math.prod(lengths))) for ranks in parts.values())
    assert all(len(each) == 1 for each in cuts.values()) and len(set.union(*cuts.values())) == len(cuts)


@given(st.integers(1, 300), st.integers(0, 4))
@settings(max_examples=60)
def test_dimensions_are_as_equal_as_they_can_be(number: int, parts: int) -> None:
    """The largest is as small as possible, then the second, and so on: found by trying all."""
    if parts == 0 and number > 1:
        with raises(MPI.ERR_DIMS, "cannot be spread"):
            MPI.Compute_dims(number, parts)
        return
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    every = itertools.combinations_with_replacement(divisors[::-1], parts)
    assert MPI.Compute_dims(number, parts) == min(list(each) for each in every if math.prod(each) == number)


def test_dimensions_that_are_given_stay() -> None:
    given_dims = np.array([0, 3, 0])
    assert MPI.Compute_dims(36, given_dims) == [4, 3, 3] and given_dims.tolist() == [0, 3, 0]
    assert MPI.Compute_dims(2**31 - 1, 2) == [2**31 - 1, 1]
    assert MPI.Compute_dims(6, 1000) == [3, 2] + [1] * 998
    for count in (-1, 1 << 40):
        with raises(MPI.ERR_DIMS, f"{count} dimensions"):
            MPI.Compute_dims(1, count)
    for nodes, dims in ((0, 2), (-4, 2), (4, [-2, 0]), (5, [2, 0]), (6, [2, 2]), (1 << 62, 2)):
        with raises(MPI.ERR_DIMS, "cannot be spread"):
            MPI.Compute_dims(nodes, dims)


# Grids ------------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5)
def test_a_grid_tells_what_it_was_made_of(comm: Any) -> None:
    dims = MPI.Compute_dims(comm.size, 2)
    made = comm.Create_cart(np.array(dims), [False, True], reorder=True)
    assert type(made) is MPI.Cartcomm and made.is_topo and made.topology == MPI.CART and not comm.is_topo
    assert (made.size, made.rank) == (comm.size, comm.Cart_map(dims, [False, True])) == (comm.size, comm.rank)
    assert made.topo == made.Get_topo() == (dims, [0, 1], list(divmod(made.rank, dims[1])))
    assert made.dim == made.ndim == made.Get_dim() == 2
    assert made.Get_cart_rank(made.Get_coords(made.rank)) == made.rank
    edges = [*made.Shift(0, 1), *made.Shift(1, 1)]
    assert made.inedges == made.outedges == edges and made.inoutedges == (edges, edges) and made.degrees == (4, 4)
    assert (edges[0] == MPI.PROC_NULL) == (made.coords[0] == 0) and MPI.PROC_NULL not in edges[2:]
    assert made.allreduce(1) == comm.size
    made.Free()
    assert made == MPI.COMM_NULL and type(made) is MPI.Cartcomm


@pytest.mark.ranks(1, 2, 3, 5)
def test_duplicates_and_copies_have_the_topology_too(comm: Any) -> None:
    made = comm.Create_cart([comm.size], True)
    later, request = made.Idup()
    request.Wait()
    for other in (made.Dup(), made.Clone(), later, MPI.Cartcomm(made), MPI.Topocomm(made), MPI.Comm.fromhandle(made.handle)):
        assert isinstance(other, MPI.Topocomm) and other.topology == MPI.CART and other.inedges == made.inedges
        assert other.neighbor_allgather(comm.rank) == made.inedges
        if other != made:
            other.Free()
    plain = MPI.Intracomm(made)
    again = plain.Dup()
    assert type(again) is MPI.Intracomm and MPI.Cartcomm(again).dims == [comm.size]
    assert made.Split(0).topology == MPI.UNDEFINED == comm.topology


@pytest.mark.ranks(1, 2, 3, 5)
def test_ranks_beyond_a_grid_get_a_null_one(comm: Any) -> None:
    for dims, size in (([], 1), ([1, 1], 1), ([max(comm.size - 1, 1)], max(comm.size - 1, 1))):
        made = comm.Create_cart(dims)
        is_in = comm.rank < size
        assert type(made) is MPI.Cartcomm and bool(made) is is_in
        assert comm.Cart_map(dims) == (comm.rank if is_in else MPI.UNDEFINED)
        if is_in:
            assert made.size == size and made.dims == dims and made.Get_cart_rank(made.coords) == made.rank
            made.Free()
        else:
            with raises(MPI.ERR_COMM, "null"):
                made.Get_dim()


@pytest.mark.ranks(1, 2, 3, 5)
def test_parts_of_a_grid(comm: Any) -> None:
    dims = MPI.Compute_dims(comm.size, 2)
    made = comm.Create_cart(dims, [True, False])
    row, alone = made.Sub([False, True]), made.Sub([False, False])
    assert type(row) is MPI.Cartcomm and row.topo == ([dims[1]], [0], [made.coords[1]])
    assert row.allgather(made.rank) == [made.Get_cart_rank([made.coords[0], at]) for at in range(dims[1])]
    assert alone.size == 1 and alone.topo == ([], [], [])
    assert row.neighbor_allgather(made.coords) == [
        None if peer == MPI.PROC_NULL else [made.coords[0], peer] for peer in row.Shift(0, 1)
    ]


@pytest.mark.ranks(1, 2)
def test_what_is_wrong_with_grids(comm: Any) -> None:
    made = comm.Create_cart([comm.size, 1])
    with raises(MPI.ERR_DIMS, f"rank {comm.rank}: a grid of .* has {2 * comm.size} ranks, and the communicator {comm.size}"):
        comm.Create_cart([2, comm.size])
    for dims in ([0], [comm.size, -1]):
        with raises(MPI.ERR_DIMS, "at least 1"):
            comm.Cart_map(dims)
    for call in (lambda: comm.Create_cart([1], []), lambda: made.Get_cart_rank([0]), lambda: made.Sub([True])):
        with pytest.raises(ValueError, match="items, got"):
            call()
    with pytest.raises(TypeError):
        comm.Create_cart(["many"])
    for direction in (-1, 2):
        with raises(MPI.ERR_DIMS, f"direction {direction} of a grid with 2"):
            made.Shift(direction, 1)
    for rank in (-1, comm.size):
        with raises(MPI.ERR_RANK, f"rank {rank} is not in a grid"):
            made.Get_coords(rank)
    for kind, name in ((MPI.Graphcomm, "general graph"), (MPI.Distgraphcomm, "distributed graph")):
        with pytest.raises(TypeError, match=name):
            kind(made)
    with pytest.raises(TypeError, match="a topology"):
        MPI.Topocomm(comm)
    comm.Barrier()


# Graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5)
def test_a_graph_tells_what_it_was_made_of(comm: Any) -> None:
    """A star: everybody is a neighbour of rank 0."""
    others = list(range(1, comm.size))
    index, edges = [comm.size - 1 + rank for rank in range(comm.size)], others + [0] * len(others)
    for given_index in (np.array([0, *index]), index)[: comm.size]:  # rank 0 alone has no neighbours, which takes the first form
        made = comm.Create_graph(given_index, edges, reorder=True)
        assert type(made) is MPI.Graphcomm and made.topology == MPI.GRAPH
        assert made.topo == made.Get_topo() == (index, edges) == (made.index, made.edges)
        assert made.dims == made.Get_dims() == (made.nnodes, made.nedges) == (comm.size, len(edges))
        assert made.neighbors == made.Get_neighbors(made.rank) == (others if comm.rank == 0 else [0])
        assert [made.Get_neighbors_count(rank) for rank in range(comm.size)] == [len(others)] + [1] * len(others)
        assert made.nneighbors == made.indegree == made.outdegree and made.inedges == made.outedges == made.neighbors
        assert made.rank == comm.Graph_map(given_index, edges)
        made.Free()


@pytest.mark.ranks(1, 2, 3)
def test_a_smaller_graph(comm: Any) -> None:
    made = comm.Create_graph([1], [0])
    assert bool(made) == (comm.rank == 0) and type(made) is MPI.Graphcomm
    assert comm.Graph_map([1], [0]) == (0 if comm.rank == 0 else MPI.UNDEFINED)
    assert not comm.Create_graph([], [])
    if made:
        assert made.neighbors == [0] and made.neighbor_alltoall(["self"]) == ["self"]


@pytest.mark.ranks(1, 2)
def test_what_is_wrong_with_graphs(comm: Any) -> None:
    many = comm.size + 1
    for index, edges, match in (
        ([1] * many, [0], f"a graph of {many} ranks, and the communicator has {comm.size}"),
        ([1], [0, 0], "index"),
        ([-1], [], "index"),
        ([1], [1], "edge to rank 1 in a graph of 1"),
        ([1], [-1], "edge to rank -1"),
    ):
        with raises(MPI.ERR_ARG, match):
            comm.Create_graph(index, edges)
    made = MPI.COMM_SELF.Create_graph([1], [0])
    with raises(MPI.ERR_RANK, "rank 1 is not in a graph of 1"):
        made.Get_neighbors(1)
    with pytest.raises(TypeError, match="Cartesian"):
        MPI.Cartcomm(made)
    comm.Barrier()


# Distributed graphs -----------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5)
def test_adjacent_edges_come_back_as_they_were_given(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    made = comm.Create_dist_graph_adjacent([left, left], [right, right], [1, 2], [3, 4], reorder=True)
    assert type(made) is MPI.Distgraphcomm and made.topology == MPI.DIST_GRAPH and made.rank == comm.rank
    assert made.Get_dist_neighbors_count() == (2, 2, True)
    assert made.Get_dist_neighbors() == ([left, left], [right, right], ([1, 2], [3, 4]))
    again = made.Dup()
    assert again.Get_dist_neighbors() == made.Get_dist_neighbors()
    none = comm.Create_dist_graph_adjacent(None, [], MPI.WEIGHTS_EMPTY, MPI.WEIGHTS_EMPTY)
    assert none.Get_dist_neighbors() == ([], [], ([], [])) and none.neighbor_alltoall([]) == []
    without = comm.Create_dist_graph_adjacent([left], [right], MPI.UNWEIGHTED, None)
    assert without.Get_dist_neighbors() == ([left], [right], None)


@pytest.mark.ranks(1, 2, 3, 5)
@given(st.data())
@settings(max_examples=25)
def test_scattered_edges_reach_both_ends(comm: Any, data: st.DataObject) -> None:
    """Whoever gives them: every rank has the edges that end or begin there, those between two ranks in one order."""
    rank = st.integers(0, comm.size - 1)
    given_edges = data.draw(
        st.lists(st.lists(st.tuples(rank, st.lists(rank, max_size=3)), max_size=3), min_size=comm.size, max_size=comm.size)
    )
    numbers = itertools.count(1)
    every = [[(source, target, next(numbers)) for source, ends in each for target in ends] for each in given_edges]
    own = given_edges[comm.rank]
    made = comm.Create_dist_graph(
        [source for source, _ in own],
        [len(ends) for _, ends in own],
        [target for _, ends in own for target in ends],
        [weight for _, _, weight in every[comm.rank]],
    )
    edges = [edge for each in every for edge in each]
    sources, destinations, weights = made.Get_dist_neighbors()
    assert list(zip(sources, weights[0], strict=True)) == [(a, weight) for a, b, weight in edges if b == comm.rank]
    assert list(zip(destinations, weights[1], strict=True)) == [(b, weight) for a, b, weight in edges if a == comm.rank]
    assert made.neighbor_alltoall(weights[1]) == weights[0]
    made.Free()


@pytest.mark.ranks(1, 2, 3)
def test_what_is_wrong_with_distributed_graphs(comm: Any) -> None:
    with raises(MPI.ERR_RANK, f"rank {comm.rank}: Create_dist_graph_adjacent: an edge of rank {comm.size}"):
        comm.Create_dist_graph_adjacent([comm.size], [])
    with raises(MPI.ERR_RANK, "Create_dist_graph: an edge of rank -1"):
        comm.Create_dist_graph([0], [1], [-1])
    with raises(MPI.ERR_ARG, "degree -1 is negative"):
        comm.Create_dist_graph([0, 0], [-1, 1], [])
    for weight in (-1, 1 << 31):
        with raises(MPI.ERR_ARG, f"weight {weight} of an edge"):
            comm.Create_dist_graph([0], [1], [0], [weight])
    with raises(MPI.ERR_ARG, "only one of sourceweights and destweights"):
        comm.Create_dist_graph_adjacent([0], [0], [1])
    for arguments in (([0], [0], MPI.WEIGHTS_EMPTY, MPI.WEIGHTS_EMPTY), ([0], [0], [1, 2], [1])):
        with pytest.raises(ValueError, match="weights"):
            comm.Create_dist_graph_adjacent(*arguments)
    for arguments in (([0], [], []), ([0], [2], [0]), ([0], [1], [0], [])):
        with pytest.raises(ValueError, match="items, got"):
            comm.Create_dist_graph(*arguments)
    comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_weights_of_some_ranks_only(comm: Any) -> None:
    """All raise; who gives no edges need not say anything."""
    with raises(MPI.ERR_ARG, rf"rank {comm.rank}: .* rank 0 gives weights, and rank 1 edges without"):
        comm.Create_dist_graph([comm.rank], [1], [0], [7] if comm.rank == 0 else MPI.UNWEIGHTED)
    made = comm.Create_dist_graph(*(([0], [1], [1], [7]) if comm.rank == 0 else ([], [], [])))
    assert made.Get_dist_neighbors_count()[2] is True


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", ["graph", "adjacent"])
def test_edges_of_which_one_end_knows_nothing(comm: Any, kind: str) -> None:
    """Such graphs may be made and asked; to exchange anything is refused on every rank, where it would wait for ever."""
    out_of = [1] if comm.rank == 0 else []
    made = comm.Create_graph([1] * comm.size, [1]) if kind == "graph" else comm.Create_dist_graph_adjacent([], out_of)
    assert made.outedges == out_of
    expected = rf"rank {comm.rank}: neighbor_\w+: rank 0 has 1 edges to rank 1, where 0 are expected"
    for call in (
        lambda: made.Neighbor_alltoall(np.zeros(1), np.zeros(1)),
        lambda: made.Ineighbor_allgather(np.zeros(1), np.zeros(1)),
        lambda: made.Neighbor_alltoallv_init([np.zeros(1), 1], [np.zeros(1), 1]),
        lambda: made.neighbor_allgather(1),
    ):
        with raises(MPI.ERR_TOPOLOGY, expected):
            call()
    made.Free()

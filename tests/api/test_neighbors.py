"""Neighbourhood collectives in all flavours, against messages between two ranks along the same edges."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi import MPI

Array = np.ndarray[Any, Any]
SHAPES = [([0], [True]), ([0], [False]), ([0, 0], [True, False]), ([0, 0, 1], [True, True, True])]
"""Dimensions as Compute_dims takes them, and periods."""


def grid(comm: Any, dims: list[int], periods: list[bool]) -> Any:
    return comm.Create_cart(MPI.Compute_dims(comm.size, dims), periods)


def blocking(comm: Any, name: str, sent: Any, received: Any) -> None:
    getattr(comm, f"Neighbor_{name}")(sent, received)


@contextmanager
def once_it_waits(act: Callable[[], None]) -> Iterator[None]:
    """Have another thread act while a call within waits: it gets the interpreter only where that gives it up by itself."""
    begun = threading.Event()

    def later() -> None:
        begun.wait()
        act()

    other, interval = threading.Thread(target=later), sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(60)
    try:
        begun.set()
        yield
    finally:
        sys.setswitchinterval(interval)
        other.join()


def non_blocking(comm: Any, name: str, sent: Any, received: Any) -> None:
    getattr(comm, f"Ineighbor_{name}")(sent, received).Wait()


def persistent(comm: Any, name: str, sent: Any, received: Any) -> None:
    request = getattr(comm, f"Neighbor_{name}_init")(sent, received)
    for _ in range(3):
        request.Start()
        request.Wait()
    request.Free()


FLAVOURS = pytest.mark.parametrize("flavour", [blocking, non_blocking, persistent])
Flavour = Callable[[Any, str, Any, Any], None]


def values(rank: int, degree: int, length: int) -> Array:
    """What a rank sends: a row for each destination, every number its own."""
    return 1_000_000.0 * rank + np.arange(degree * length, dtype=float).reshape(degree, length)


def by_messages(comm: Any, sent: Array, length: int) -> Array:
    """What `alltoall` brings, by a message for each edge; along a grid the tag says which way it goes."""
    turned = int(comm.topology == MPI.CART)
    received = np.full((comm.indegree, length), -1.0)
    requests = [comm.Irecv(received[edge], peer, (edge ^ turned) if turned else 0) for edge, peer in enumerate(comm.inedges)]
    requests += [comm.Isend(sent[edge], peer, edge if turned else 0) for edge, peer in enumerate(comm.outedges)]
    MPI.Request.Waitall(requests)
    return received


def check_all(comm: Any, flavour: Flavour, length: int) -> None:
    """Every collective on one communicator; what no neighbour sends stays -1."""
    indegree, outdegree = comm.degrees
    sent = values(comm.rank, outdegree, length)
    wanted = by_messages(comm, sent, length)
    same = np.tile(values(comm.rank, 1, length), (outdegree, 1))
    gathered = by_messages(comm, same, length)

    def check(name: str, sendbuf: Any, expected: Array, make: Callable[[Array], Any] = lambda array: array) -> None:
        received = np.full((indegree, length), -1.0)
        flavour(comm, name, sendbuf, make(received))
        np.testing.assert_array_equal(received, expected, err_msg=name)

    counts, bytes_of = [length] * indegree, [8 * length * edge for edge in range(indegree)]
    check("allgather", values(comm.rank, 1, length), gathered)
    check("allgatherv", values(comm.rank, 1, length), gathered, lambda array: [array, counts])
    check("alltoall", sent, wanted)
    check("alltoallv", [sent, [length] * outdegree], wanted, lambda array: [array, counts])
    doubles = [[length] * outdegree, [8 * length * edge for edge in range(outdegree)], [MPI.DOUBLE] * outdegree]
    check("alltoallw", [sent, *doubles], wanted, lambda array: [array, counts, bytes_of, [MPI.DOUBLE] * indegree])


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize(("dims", "periods"), SHAPES, ids=["circle", "line", "mixed", "torus"])
@FLAVOURS
def test_on_grids(comm: Any, dims: list[int], periods: list[bool], flavour: Flavour) -> None:
    made = grid(comm, dims, periods)
    for length in (0, 1, 7, 5000):
        check_all(made, flavour, length)
    made.Free()


@pytest.mark.ranks(1, 2, 3, 5)
@FLAVOURS
def test_on_a_graph(comm: Any, flavour: Flavour) -> None:
    """A circle whose ranks also have two edges to themselves, and rank 0 two more to the last one."""
    last = comm.size - 1
    table = [[rank, (rank + 1) % comm.size, rank, (rank - 1) % comm.size] for rank in range(comm.size)]
    if last > 0:
        table[0] += [last, last]
        table[last] += [0, 0]
    made = comm.Create_graph(np.cumsum([0, *map(len, table)]), [peer for each in table for peer in each])
    for length in (1, 5000):
        check_all(made, flavour, length)
    made.Free()


@pytest.mark.ranks(1, 2, 3, 5)
@given(st.data())
@settings(max_examples=15)
def test_on_random_distributed_graphs(comm: Any, data: st.DataObject) -> None:
    """Several edges between two ranks, to a rank itself, ranks without any: lists at the two ends mix peers as they like."""
    rank = st.integers(0, comm.size - 1)
    edges = data.draw(st.lists(st.tuples(rank, rank), max_size=4 * comm.size))
    shuffled = data.draw(st.permutations(edges))
    sources = [source for source, target in shuffled if target == comm.rank]
    made = comm.Create_dist_graph_adjacent(sources, [target for source, target in edges if source == comm.rank])
    flavour = data.draw(st.sampled_from([blocking, non_blocking, persistent]))
    check_all(made, flavour, data.draw(st.sampled_from([1, 40, 3000])))
    assert made.neighbor_allgather({"rank": comm.rank}) == [{"rank": source} for source in sources]
    made.Free()


@pytest.mark.ranks(2, 3)
@FLAVOURS
def test_blocks_of_different_lengths(comm: Any, flavour: Flavour) -> None:
    """Rank r sends r + 1 elements to the one before it and 2 (r + 1) to the one behind, in reverse order in its buffer."""
    made = grid(comm, [0], [True])
    before, behind = made.inedges
    own = made.rank + 1
    sent = values(made.rank, 1, 3 * own)[0]
    counts = [2 * (before + 1), behind + 1]
    received = np.full(sum(counts) + 2, -1.0)
    flavour(made, "alltoallv", [sent, ([own, 2 * own], [2 * own, 0])], [received, (counts, [counts[1] + 1, 0])])
    expected = [*(1e6 * behind + 2 * (behind + 1) + np.arange(behind + 1)), -1.0, *(1e6 * before + np.arange(counts[0])), -1.0]
    assert received.tolist() == expected


@pytest.mark.ranks(1, 2, 3, 5)
@FLAVOURS
def test_derived_types_at_the_ends_of_a_line(comm: Any, flavour: Flavour) -> None:
    """Columns of a matrix to both sides; where there is no neighbour the frame stays as it is, whatever the type."""
    made = grid(comm, [0], [False])
    rows, width = 4, 6
    matrix = np.full((rows, width), -1.0)
    matrix[:, 1:-1] = 100.0 * made.rank + np.arange(rows)[:, None] + 10.0 * np.arange(1, width - 1)
    expected = matrix.copy()
    before, behind = made.inedges
    column = MPI.DOUBLE.Create_vector(rows, 1, width).Commit()
    types = [column, column]
    flavour(made, "alltoallw", [matrix, [1, 1], [8, 8 * (width - 2)], types], [matrix, [1, 1], [0, 8 * (width - 1)], types])
    if before != MPI.PROC_NULL:
        expected[:, 0] = 100.0 * before + np.arange(rows) + 10.0 * (width - 2)
    if behind != MPI.PROC_NULL:
        expected[:, -1] = 100.0 * behind + np.arange(rows) + 10.0
    np.testing.assert_array_equal(matrix, expected)
    spread = column.Create_resized(0, 8).Commit()
    gathered = np.full((rows, width), -1.0)
    flavour(made, "allgather", np.arange(rows) + 100.0 * made.rank, [gathered, 1, spread])
    for place, peer in enumerate(made.inedges):
        assert gathered[:, place].tolist() == (
            [-1.0] * rows if peer == MPI.PROC_NULL else (np.arange(rows) + 100.0 * peer).tolist()
        )
    assert (gathered[:, 2:] == -1).all()
    for each in (column, spread):
        each.Free()


@pytest.mark.ranks(4, topology="vnode:2")
@FLAVOURS
def test_neighbours_on_another_node(comm: Any, flavour: Flavour) -> None:
    """Rows of the grid are nodes: one neighbour is reached through memory, the other through the network."""
    made = grid(comm, [2, 2], [True, True])
    for length in (1, 5000):
        check_all(made, flavour, length)
    assert made.neighbor_allgather("x" * 50_000 * (made.rank + 1)) == ["x" * 50_000 * (peer + 1) for peer in made.inedges]


@pytest.mark.ranks(2)
def test_megabytes_at_once(comm: Any) -> None:
    """All neighbours are the same rank, and every message is announced before it is sent."""
    check_all(grid(comm, [0, 1], [True, True]), non_blocking, 400_000)


@pytest.mark.ranks(1, 2, 3)
def test_many_under_way_at_once(comm: Any) -> None:
    """Each is completed in another order than they were started in, beside messages and collectives of the same communicator."""
    made = grid(comm, [0], [True])
    received = [np.zeros(2) for _ in range(20)]
    requests = [made.Ineighbor_allgather(np.full(1, 100.0 * made.rank + turn), array) for turn, array in enumerate(received)]
    assert made.allreduce(1) == comm.size and made.sendrecv(made.rank, made.rank) == made.rank
    MPI.Request.Waitall(requests[::-1])
    for turn, array in enumerate(received):
        assert array.tolist() == [100.0 * peer + turn for peer in made.inedges]


# Objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize(("dims", "periods"), SHAPES, ids=["circle", "line", "mixed", "torus"])
def test_objects(comm: Any, dims: list[int], periods: list[bool]) -> None:
    """Of any size, each its own, None of neighbours that do not exist."""
    made = grid(comm, dims, periods)

    def given_by(rank: int, edge: int) -> Any:
        return {"from": rank, "edge": edge, "much": [rank] * (edge * 20_000)}

    def or_none(peer: int, found: Callable[[], Any]) -> Any:
        return None if peer == MPI.PROC_NULL else found()

    brought = made.neighbor_alltoall([given_by(made.rank, edge) for edge in range(made.outdegree)])
    assert brought == [or_none(peer, lambda: given_by(peer, edge ^ 1)) for edge, peer in enumerate(made.inedges)]  # noqa: B023
    array = np.arange(3) + made.rank
    brought = made.neighbor_allgather(array)
    for peer, found in zip(made.inedges, brought, strict=True):
        assert found is None if peer == MPI.PROC_NULL else found.tolist() == [peer, peer + 1, peer + 2]
    assert made.neighbor_allgather(None) == [None] * made.indegree
    with pytest.raises(ValueError, match=f"expecting {made.outdegree} items, got {made.outdegree + 1}"):
        made.neighbor_alltoall([0] * (made.outdegree + 1))


class Unpickled:
    """An object that cannot be made of its pickle."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.ranks(2, 3)
def test_an_object_that_cannot_be_made_leaves_nothing_behind(comm: Any) -> None:
    made = grid(comm, [0], [True])
    with pytest.raises(ValueError, match="no number"):
        made.neighbor_allgather(Unpickled())
    assert made.neighbor_allgather(made.rank) == made.inedges


@pytest.mark.ranks(2)
def test_threads_with_a_communicator_each(comm: Any) -> None:
    made = [grid(comm, [0], [True]) for _ in range(3)]
    wrong: list[Any] = []

    def work(mine: Any) -> None:
        for turn in range(30):
            if mine.neighbor_allgather((mine.rank, turn)) != [(peer, turn) for peer in mine.inedges]:
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(each,)) for each in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# What is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2)
def test_buffers_that_are_refused(comm: Any) -> None:
    made = grid(comm, [0], [True])
    buffers = np.zeros(2), np.zeros(2)
    for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
        for wrong in ((MPI.IN_PLACE, buffers[1]), (None, buffers[1]), (buffers[0], MPI.IN_PLACE)):
            with pytest.raises(MPI.Exception, match=rf"rank {comm.rank}: neighbor_\w+: .*give both buffers") as caught:
                blocking(made, name, *wrong)
            assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    with pytest.raises(ValueError, match="not a multiple of required number of blocks 2"):
        made.Neighbor_alltoall(np.zeros(3), buffers[1])
    with pytest.raises(ValueError, match="expecting 2 items, got 3"):
        made.Neighbor_alltoallv([buffers[0], [1, 1, 0]], buffers[1])
    with pytest.raises(ValueError):
        made.Neighbor_alltoall([buffers[0], 2, MPI.DOUBLE], np.zeros(4))
    read_only = np.zeros(2)
    read_only.flags.writeable = False
    with pytest.raises(BufferError):
        made.Neighbor_alltoall(buffers[0], read_only)
    blocking(made, "alltoall", *buffers)


@pytest.mark.ranks(1, 2, 3)
@FLAVOURS
def test_neighbours_that_disagree_about_the_length(comm: Any, flavour: Flavour) -> None:
    made = grid(comm, [0], [True])
    with pytest.raises(MPI.Exception) as caught:
        flavour(made, "alltoall", np.zeros(2), np.zeros(4))
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


@pytest.mark.ranks(2, 3)
def test_ranks_that_call_something_else(comm: Any) -> None:
    """All raise: there is a message that nobody asked for, or, of two who called the same, one gave up, or left, before the other saw it."""
    made = grid(comm, [0], [True])
    name = "allgather" if comm.rank == 0 else "alltoall"
    differs = "neighbor_allgather.*neighbor_alltoall|neighbor_alltoall.*neighbor_allgather"
    late = "Make a new communicator|has finalized"
    with pytest.raises(MPI.Exception, match=differs if comm.size == 2 else f"{differs}|{late}") as caught:
        blocking(made, name, np.zeros(1 if comm.rank == 0 else 2), np.zeros(2))
    assert caught.value.Get_error_class() == (MPI.ERR_PROC_FAILED if "has finalized" in str(caught.value) else MPI.ERR_OTHER)
    with pytest.raises(MPI.Exception, match="Make a new communicator"):
        made.neighbor_allgather(0)


@pytest.mark.ranks(1, 2)
def test_an_error_handler_hears_of_them(comm: Any) -> None:
    made = grid(comm, [0], [True])
    heard: list[int] = []
    handler = MPI.Comm.Create_errhandler(lambda _, code: heard.append(MPI.Get_error_class(code)))
    made.Set_errhandler(handler)
    with pytest.raises(MPI.Exception):
        made.Neighbor_alltoall(None, np.zeros(2))
    with pytest.raises(MPI.Exception):
        made.Shift(7, 1)
    assert heard == [MPI.ERR_BUFFER, MPI.ERR_DIMS]


@pytest.mark.ranks(1, 2)
def test_a_communicator_without_edges(comm):
    with pytest.raises(MPI.Exception, match="without a topology") as caught:
        MPI.Topocomm.Neighbor_allgather(comm, np.ones(1), np.ones(1))
    assert caught.value.Get_error_class() == MPI.ERR_TOPOLOGY


@pytest.mark.ranks(1, 2, 3, 5)
def test_calls_that_follow_each_other_share_nothing(comm: Any) -> None:
    """Other buffers, counts, types and collectives at each call, arrays that are gone, and sizes on both sides of every limit."""
    made = grid(comm, [0], [True])
    degree, sent, received = made.indegree, None, None
    for turn, length in enumerate([1, 3000, 2, 0, 250, 100_000, 5, 700, 1, 40_000]):
        del sent, received
        sent = values(made.rank, degree, length) + turn
        wanted = by_messages(made, sent, length)
        received = np.full((degree, length), -1.0)
        made.Neighbor_alltoall(sent, received)
        np.testing.assert_array_equal(received, wanted)
        shorter = np.full((degree, length), -1.0, np.float32)
        made.Neighbor_alltoallv([sent.astype(np.float32), [length] * degree], [shorter, [length] * degree, MPI.FLOAT])
        np.testing.assert_array_equal(shorter, wanted.astype(np.float32))
        received = np.full((degree, length), -1.0)
        made.Neighbor_allgather(sent[0].copy(), received)
        np.testing.assert_array_equal(received, by_messages(made, np.tile(sent[0], (degree, 1)), length))
        made.Barrier()
    made.Free()


@pytest.mark.ranks(2, 3)
def test_a_list_that_changes_while_the_call_waits(comm: Any) -> None:
    """The arrays that were given are the ones that are read and written."""
    made, late = grid(comm, [0], [True]), comm.rank == comm.size - 1
    made.Neighbor_alltoall(np.zeros(2), np.zeros(2))
    sent, received = values(made.rank, 2, 60_000), np.zeros((2, 60_000))
    wanted = by_messages(made, sent, 60_000)
    spec: list[Any] = [received, MPI.DOUBLE]
    comm.Barrier()
    if late:
        time.sleep(0.2)
        made.Neighbor_alltoall(sent, spec)
    else:
        with once_it_waits(spec.clear):
            made.Neighbor_alltoall(sent, spec)
    assert late or not spec
    np.testing.assert_array_equal(received, wanted)


@pytest.mark.ranks(2, 3)
def test_where_one_rank_is_given_other_lengths_than_its_second_neighbour_sends(comm: Any) -> None:
    """Each rank that is concerned hears of the bytes, though others give up before it has looked."""
    made = grid(comm, [0], [True])
    made.Neighbor_alltoall(np.zeros(2), np.zeros(2))
    with pytest.raises(MPI.Exception, match="bytes are expected of rank") as caught:
        made.Neighbor_alltoallv([np.zeros(5), [2, 3]], [np.zeros(4), [2, 2]])
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


def faces(types: list[Any]) -> list[Any]:
    """What alltoallw takes behind the array: one element of each type, from the first byte."""
    return [[1] * len(types), [0] * len(types), types]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("width", [1, 5, 300])
def test_types_that_are_made_and_freed_between_calls(comm: Any, width: int) -> None:
    """The same names for other types at each call, regular and not, of one run and of many, on both sides of every limit."""
    made, rows = grid(comm, [0], [True]), 40
    for turn in range(8):
        mine = np.arange(rows * 4 * width).reshape(rows, 4 * width) + 1e6 * made.rank + turn
        first, last = slice(width * (turn % 2), width * (turn % 2) + width), slice(3 * width, 4 * width)
        if turn < 6:
            shapes = [MPI.DOUBLE.Create_subarray(mine.shape, (rows, width), (0, each.start)) for each in (first, last)]
        else:
            starts = [[row * 4 * width + each.start for row in range(rows)] for each in (first, last)]
            shapes = [MPI.DOUBLE.Create_indexed_block(width, start) for start in starts]
        types = [each.Commit() for each in shapes]
        received = np.full_like(mine, -1.0)
        made.Neighbor_alltoallw([mine, *faces(types)], [received, *faces(types)])
        expected = np.full_like(mine, -1.0)
        before, behind = made.inedges
        expected[:, first] = mine[:, last] + 1e6 * (before - made.rank)
        expected[:, last] = mine[:, first] + 1e6 * (behind - made.rank)
        np.testing.assert_array_equal(received, expected)
        for each in types:
            each.Free()
        with pytest.raises(MPI.Exception) as caught:
            made.Neighbor_alltoallw([mine, *faces(types)], [received, *faces(types)])
        assert caught.value.Get_error_class() == MPI.ERR_TYPE


@pytest.mark.ranks(1, 2)
def test_elements_of_a_known_type_that_reach_beyond_the_array(comm: Any) -> None:
    made = grid(comm, [0], [True])
    column = MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
    matrix, other, one = np.ones((4, 4)), np.zeros((4, 4)), [column, column]
    for _ in range(2):
        made.Neighbor_alltoallw([matrix, [1, 1], [0, 8], one], [other, [1, 1], [16, 24], one])
    assert other.sum() == 8
    with pytest.raises(ValueError, match="message"):
        made.Neighbor_alltoallw([matrix, [1, 1], [0, 8], one], [other, [1, 1], [16, 32], one])
    with pytest.raises(MPI.Exception) as caught:
        made.Neighbor_alltoallw(
            [matrix, [1, 1], [0, 8], [column, MPI.DOUBLE.Create_vector(4, 1, 4)]], [other, [1, 1], [16, 24], one]
        )
    assert caught.value.Get_error_class() == MPI.ERR_TYPE
    frozen = other.copy()
    frozen.flags.writeable = False
    with pytest.raises(BufferError):
        made.Neighbor_alltoallw([matrix, [1, 1], [0, 8], one], [frozen, [1, 1], [16, 24], one])


@pytest.mark.ranks(2)
def test_a_type_that_is_freed_while_the_call_waits(comm: Any) -> None:
    """Its blocks are there until the call has ended."""
    made, rows, width = grid(comm, [0], [True]), 3000, 40
    for _ in range(3):
        starts = np.arange(rows) * width
        column = MPI.DOUBLE.Create_indexed_block(width // 4, starts.tolist()).Commit()
        mine, received = np.full((rows, width), 1.0 + comm.rank), np.zeros((rows, width))
        types = [column, column]
        halves = [[1, 0], [0, 0], types], [[0, 1], [0, 0], types]
        made.Neighbor_alltoallw([mine, *halves[0]], [received, *halves[1]])
        received[:] = 0
        comm.Barrier()

        def end(column: Any = column, types: list[Any] = types) -> None:
            column.Free()
            types.clear()

        del column
        if comm.rank:
            time.sleep(0.1)
            made.Neighbor_alltoallw([mine, *halves[0]], [received, *halves[1]])
        else:
            with once_it_waits(end):
                made.Neighbor_alltoallw([mine, *halves[0]], [received, *halves[1]])
            assert not types
        assert received.sum() == rows * (width // 4) * (2 - comm.rank)
        comm.Barrier()

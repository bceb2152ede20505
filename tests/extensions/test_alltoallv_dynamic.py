"""Alltoallv_dynamic and its combine, between ranks: against the NumPy twins, with metadata that change, and with errors."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from tests.extensions.tables import FORMS, HOLE, INDICES, PLAIN, SPLIT, Table, draw

SIZES = (1, 2, 3, 4, 5)
Call = Callable[..., None]


def blocking(comm: Any, name: str, *args: Any) -> None:
    getattr(comm, name)(*args)


def nonblocking(comm: Any, name: str, *args: Any) -> None:
    getattr(comm, f"I{name.lower()}")(*args).Wait()


def persistent(comm: Any, name: str, *args: Any) -> None:
    request = getattr(comm, f"{name}_init")(*args)
    for _ in range(2):
        request.Start()
        try:
            request.Wait()
        except MPI.Exception as error:
            assert error.error_class == MPI.ERR_TRUNCATE
    request.Start()
    request.Wait()


FLAVOURS = {"blocking": blocking, "nonblocking": nonblocking, "persistent": persistent}


def check(comm: Any, table: Table, call: Call, make: Callable[[Any], Any] = np.array, get: Callable[[Any], Any] = np.array) -> None:
    """Carry a table out and compare what is there afterwards, holes and guards included.

    `make` turns values into arrays of the kind to test, `get` such arrays into values.
    """
    rank = comm.rank
    received, told = make(table.recvbuf(rank)), make(np.full((comm.size, len(table.splits[0])), -1))
    recv = [received, (table.capacities[rank], table.displacements(rank))]
    metadata = [None if each is None else make(each) for each in table.metadata(rank)]
    faults = table.faults(rank)
    try:
        call(comm, "Alltoallv_dynamic", table.send_spec(rank, make), recv, *metadata, told)
    except MPI.Exception as error:
        assert error.error_class == MPI.ERR_TRUNCATE
        assert any(f"from rank {source} to rank {target}" in str(error) for source, target in faults), str(error)
    else:
        assert not faults
    out, every = get(received), get(told)
    assert (every == np.array(table.splits)).all()
    assert out.tobytes() == table.received(rank).tobytes()


@pytest.mark.ranks(*SIZES, timeout=120)
def test_two_hundred_random_tables(comm: Any) -> None:
    """With the five numbers of ranks these are 1,000 different ones."""
    for seed in range(200 * comm.size, 200 * (comm.size + 1)):
        try:
            check(comm, draw(seed, comm.size), blocking)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.ranks(1, 2, 3, 5, timeout=120)
@pytest.mark.parametrize("flavour", ["nonblocking", "persistent"])
def test_random_tables_as_plans(comm: Any, flavour: str) -> None:
    for seed in range(40):
        check(comm, draw(seed, comm.size), FLAVOURS[flavour])


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_large_segments(comm: Any, flavour: str) -> None:
    """Beyond eager messages and single chunks."""
    length, size, rank = 100_003, comm.size, comm.rank
    splits = np.array([length, 7, 0, length + rank])
    indices, blocks = np.tile([0, 2, 3], size), np.full(size, 3)
    send = np.arange(splits.sum(), dtype="f4") + rank
    out = np.full((size, 2 * length + 7 + size), HOLE, "f4")
    FLAVOURS[flavour](comm, "Alltoallv_dynamic", send, out, splits, indices, blocks)
    for source in range(size):
        theirs = np.arange(2 * length + 7 + source, dtype="f4") + source
        theirs[length : length + 7] = HOLE
        assert (out[source, : len(theirs)] == theirs).all()
        assert (out[source, len(theirs) :] == HOLE).all()


def equal_counts(comm: Any, form: str) -> tuple[np.ndarray, Any, Any, Any]:
    """Splits of 4 elements and what sends each rank as much; the buffers; what goes with the form."""
    size = comm.size
    segments = 2 * size if form == INDICES else size
    send: Any = np.arange(4.0 * segments) + 1000 * comm.rank
    rest: tuple[Any, ...] = ()
    if form == PLAIN:
        send = [send, [4] * size]
    if form == INDICES:  # every second segment
        rest = np.arange(0, segments, 2), np.full(size, 1)
    return np.full(segments, 4), send, np.full((size, 4 * segments), -1.0), rest


def arrived(comm: Any, form: str, length: int) -> np.ndarray:
    """What is in the areas when all split lengths were `length`."""
    size, rank = comm.size, comm.rank
    segments = 2 * size if form == INDICES else size
    areas = np.full((size, 4 * segments), -1.0)
    segment = 2 * rank if form == INDICES else rank
    for source in range(size):
        first = 4 * segment if form == PLAIN else length * segment
        there = length * segment if form == INDICES else 0
        areas[source, there : there + length] = 1000 * source + first + np.arange(length)
    return areas


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_unchanged_equal_counts(comm: Any, form: str, flavour: str) -> None:
    splits, send, recv, rest = equal_counts(comm, form)
    FLAVOURS[flavour](comm, "Alltoallv_dynamic", send, recv, splits, *rest)
    assert (recv == arrived(comm, form, 4)).all()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_counts_changed_after_the_call_was_made(comm: Any, form: str) -> None:
    splits, send, recv, rest = equal_counts(comm, form)
    request = comm.Alltoallv_dynamic_init(send, recv, splits, *rest)
    for length in (2, 0, 4, 1, 3):
        splits[:] = length
        recv[:] = -1
        request.Start()
        request.Wait()
        assert (recv == arrived(comm, form, length)).all()
    request.Free()


@pytest.mark.ranks(1, 2, 3, 5)
def test_indices_and_blocks_changed_after_the_call_was_made(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    splits, indices, blocks = np.full(size, 2, "u1"), np.zeros(size * size, "i4"), np.zeros(size, "i8")
    send, recv = np.arange(2 * size) + 100 * rank, np.zeros((size, 2 * size), int)
    request = comm.Alltoallv_dynamic_init(send, recv, splits, indices, blocks)
    for turn in range(4):
        blocks[:] = 1 + turn % size
        indices[: blocks.sum()] = (np.repeat(np.arange(size), blocks) + np.tile(np.arange(blocks[0]), size) + turn) % size
        recv[:] = -1
        request.Start()
        request.Wait()
        wanted = np.isin(np.arange(size), (rank + turn + np.arange(blocks[0])) % size).repeat(2)
        for source in range(size):
            assert (recv[source] == np.where(wanted, np.arange(2 * size) + 100 * source, -1)).all()


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_empty_segment_in_the_middle(comm: Any, flavour: str) -> None:
    """Neither alone nor between its neighbours does it take a place, part them, or stop anything."""
    size = comm.size
    send = np.arange(6) + 10 * comm.rank
    for indices, expected in (
        ([0, 1, 2], [0, 1, 2, 3, 4, 5]), ([1], [-1] * 6), ([0, 1], [0, 1, 2, -1, -1, -1]), ([1, 2], [-1, -1, -1, 3, 4, 5]),
    ):  # fmt: skip
        recv = np.full((size, 6), -1)
        blocks = np.full(size, len(indices))
        FLAVOURS[flavour](comm, "Alltoallv_dynamic", send, recv, np.array([3, 0, 3]), np.tile(indices, size), blocks)
        for source in range(size):
            assert (recv[source] == [value + 10 * source if value >= 0 else -1 for value in expected]).all()


@pytest.mark.ranks(*SIZES, timeout=120)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_dispatch_then_combine_gives_back_the_input(comm: Any, flavour: str) -> None:
    call = functools.partial(FLAVOURS[flavour], comm)
    size, rank = comm.size, comm.rank
    for seed in range(40):
        table = draw(seed, size, valid=True)
        rng = np.random.default_rng((seed, 1))
        if table.form == PLAIN:
            continue
        segments = len(table.splits[0])
        if table.form == INDICES:  # each segment to one rank
            owners = rng.integers(0, size, (size, segments))
            table.chosen = [[np.flatnonzero(owners[source] == to).tolist() for to in range(size)] for source in range(size)]
            back = [table.chosen[source][rank] for source in range(size)]
            rest = np.concatenate(back).astype(int), np.array([len(block) for block in back])
        send = table.sendbuf(rank)
        areas = np.full((size, max(int(splits.sum()) for splits in table.splits) + 1), HOLE).astype(send.dtype)
        every = np.empty((size, segments), int)
        call("Alltoallv_dynamic", send, areas, *table.metadata(rank), every)
        out = np.full(len(send) + 3, HOLE).astype(send.dtype)
        call("Alltoallv_dynamic_combine", areas, out, every, *(rest if table.form == INDICES else ()))
        filled = int(table.splits[rank].sum())
        assert (out[:filled] == send[:filled]).all()
        assert (out[filled:] == send.dtype.type(HOLE)).all()


@pytest.mark.ranks(2, 3, 5)
def test_combine_of_segments_that_went_to_all_ranks(comm: Any) -> None:
    """Replicas return to an area of their own each."""
    size, rank = comm.size, comm.rank
    splits = np.array([3, 0, 2, 4])
    send = np.arange(9.0) + 10 * rank
    areas, every = np.full((size, 9), -1.0), np.empty((size, 4), int)
    indices, blocks = np.tile([0, 2], size), np.full(size, 2)
    comm.Alltoallv_dynamic(send, areas, splits, indices, blocks, every)
    areas += rank / 8  # what this rank computed
    out = np.full((size, 9), -1.0)
    comm.Alltoallv_dynamic_combine(areas, [out, [9] * size], every, indices, blocks)
    for expert in range(size):
        assert (out[expert, :5] == send[:5] + expert / 8).all()
        assert (out[expert, 5:] == -1).all()


@pytest.mark.ranks(2, 3)
def test_plain_form_is_its_own_inverse(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    splits, every = np.arange(size) + rank, np.empty((size, size), int)
    send, places = np.arange(20.0 * size) + 1000 * rank, ([20] * size, [20 * to for to in range(size)])
    areas, out = np.full((size, 20), -1.0), np.full(20 * size, -1.0)
    comm.Alltoallv_dynamic([send, places], areas, splits, None, None, every)
    comm.Alltoallv_dynamic([areas, [20] * size], [out, places], every[:, rank].copy())
    for to in range(size):
        assert (out[20 * to : 20 * to + splits[to]] == send[20 * to : 20 * to + splits[to]]).all()
        assert (out[20 * to + splits[to] : 20 * (to + 1)] == -1).all()


@pytest.mark.ranks(2, 3)
def test_tokens_of_a_contiguous_datatype(comm: Any) -> None:
    token = MPI.FLOAT.Create_contiguous(8).Commit()
    size, rank = comm.size, comm.rank
    send = (np.arange(8 * 2 * size, dtype="f4") + 100 * rank).reshape(-1, 8)
    recv = np.zeros((size, 2, 8), "f4")
    comm.Alltoallv_dynamic([send, token], [recv, [2] * size, token], np.full(size, 2))
    for source in range(size):
        assert (recv[source] == np.arange(16).reshape(2, 8) + 100 * source + 16 * rank).all()
    token.Free()


@pytest.mark.ranks(2, 3)
def test_under_way_while_other_collectives_run(comm: Any) -> None:
    """It moves on inside whatever the rank waits for."""
    size, rank = comm.size, comm.rank
    recv = [np.full((size, 2 * size), -1.0) for _ in range(3)]
    send = np.arange(2.0 * size) + 100 * rank
    requests = [comm.Ialltoallv_dynamic(send, out, np.full(size, length)) for length, out in enumerate(recv)]
    if rank % 2:
        comm.Barrier()
        MPI.Request.Waitall(requests[::-1])
    else:
        MPI.Request.Waitall(requests)
        comm.Barrier()
    for length, out in enumerate(recv):
        for source in range(size):
            assert (out[source, :length] == 100 * source + length * rank + np.arange(length)).all()
            assert (out[source, length:] == -1).all()


@pytest.mark.ranks(1)
def test_on_a_communicator_without_slot(comm: Any) -> None:
    splits, send, recv, rest = equal_counts(MPI.COMM_SELF, INDICES)
    MPI.COMM_SELF.Alltoallv_dynamic(send, recv, splits, *rest)
    assert (recv == arrived(MPI.COMM_SELF, INDICES, 4)).all()


@pytest.mark.ranks(2)
def test_calls_that_look_alike_but_are_not(comm: Any) -> None:
    """The same memory as another type, another size, with other metadata; and none of it is kept alive."""
    rank = comm.rank
    memory, recv = np.arange(8, dtype="i8") + 100 * rank, np.full(8, -1, "i8")
    for dtype, length in (("i8", 2), ("i8", 1), ("i4", 4), ("i8", 2), ("i2", 3)):
        send, out = memory.view(dtype), recv.view(dtype)
        for splits in (np.full(2, length), np.full(2, length, "i4")):
            recv[:] = -1
            comm.Alltoallv_dynamic(send, out, splits)
            for source in range(2):
                area = out[len(out) // 2 * source :][: len(out) // 2]
                theirs = (np.arange(8) + 100 * source).view(dtype)
                assert (area[:length] == theirs[length * rank : length * (rank + 1)]).all()
                assert (area[length:] == -1).all()
    send.flags.writeable = out.flags.writeable = False
    with pytest.raises(BufferError):
        comm.Alltoallv_dynamic(send, out, splits)
    whole = np.zeros(1000)
    gone = weakref.ref(whole)
    comm.Alltoallv_dynamic(whole, np.zeros(1000), np.full(2, 3))
    del whole
    assert gone() is None


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_pair_without_room_moves_nothing_and_the_others_everything(comm: Any, flavour: str) -> None:
    """Rank 1 has no room for what rank 0 sends it: both raise, rank 2 knows nothing of it, and the next call works."""
    rank = comm.rank
    send, recv = np.arange(12.0) + 100 * rank, np.full(12, -1.0)
    capacities = [3 if rank == 1 else 4, 4, 4]
    splits = np.full(3, 4)
    spec = [recv, (capacities, [0, 4, 8])]
    if rank < 2:
        with pytest.raises(MPI.Exception) as caught:
            FLAVOURS[flavour](comm, "Alltoallv_dynamic", send, spec, splits)
        assert caught.value.error_class == MPI.ERR_TRUNCATE
        for part in (f"rank {rank}: ", "from rank 0 to rank 1", "needs room for 4 elements", "capacity of 3 for rank 0"):
            assert part in str(caught.value)
    else:
        FLAVOURS[flavour](comm, "Alltoallv_dynamic", send, spec, splits)
    for source in range(3):
        refused = (source, rank) == (0, 1)
        expected = [-1.0] * 4 if refused else 100 * source + 4 * rank + np.arange(4)
        assert (recv[4 * source : 4 * source + 4] == expected).all()
    splits[:] = 3
    comm.Alltoallv_dynamic(send, spec, splits)
    assert (recv[:3] == 3 * rank + np.arange(3)).all()


BAD = {
    "negative length": ({"splits": [2, -1, 2, 2]}, "split length 1 of rank 0 is -1; it must be 0 to"),
    "huge length": ({"splits": [2, 1 << 60, 2, 2]}, f"split length 1 of rank 0 is {1 << 60}"),
    "lengths that overflow": ({"splits": [1 << 47, 1 << 47, 1 << 47, 2]}, "split length 2 of rank 0 is"),
    "unsigned beyond": ({"splits": np.array([2, (1 << 64) - 5, 2, 2], "u8")}, "split length 1 of rank 0 is -5"),
    "beyond the send buffer": ({"splits": [2, 2, 2, 3]}, "reach to element 9, but the send buffer of rank 0 has 8 there"),
    "index too large": ({"indices": [0, 4]}, "index 1 of rank 0 is 4, but there are 4 segments"),
    "negative index": ({"indices": [0, -1]}, "index 1 of rank 0 is -1"),
    "more blocks than indices": ({"blocklengths": [1, 2]}, "block length 1 of rank 0 is 2, but 1 indices are left"),
    "negative block": ({"blocklengths": [1, -7]}, "block length 1 of rank 0 is -7"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", BAD)
def test_metadata_out_of_range(comm: Any, name: str) -> None:
    """Rank 0 passes garbage for rank 1, which gets nothing from it but an error that says why."""
    wrong, text = BAD[name]
    rank = comm.rank
    good: dict[str, Any] = {"splits": [2, 2, 2, 2], "indices": [0, 3], "blocklengths": [1, 1]}
    given = {key: np.array(value) for key, value in (good | (wrong if rank == 0 else {})).items()}
    send, recv = np.arange(8) + 10 * rank, np.full((2, 8), -1)
    with pytest.raises(MPI.Exception, match="from rank 0 to rank") as caught:
        comm.Alltoallv_dynamic(send, recv, **given)
    assert caught.value.error_class == MPI.ERR_TRUNCATE
    assert text in str(caught.value)
    only_at = 6 if rank == 1 else 0  # from rank 1, which is fine
    assert (recv[1] == [10 + at if only_at <= at < only_at + 2 else -1 for at in range(8)]).all()
    assert (recv[0][2:] == -1).all()
    comm.Alltoallv_dynamic(send, recv, **{key: np.array(value) for key, value in good.items()})


@pytest.mark.ranks(2)
def test_elements_of_different_sizes(comm: Any) -> None:
    dtype = ["f4", "f8"][comm.rank]
    recv = np.full((2, 1), -1, dtype)
    with pytest.raises(MPI.Exception, match="elements of . bytes are sent, but rank . has room for elements of . bytes") as caught:
        comm.Alltoallv_dynamic(np.ones(2, dtype), recv, np.ones(2, int))
    assert caught.value.error_class == MPI.ERR_TYPE
    assert recv[comm.rank] == 1
    assert recv[1 - comm.rank] == -1


@pytest.mark.ranks(2)
def test_ranks_that_disagree_about_the_number_of_segments(comm: Any) -> None:
    other = comm.Dup()
    with pytest.raises(MPI.Exception) as caught:
        other.Alltoallv_dynamic(np.ones(8), np.ones((2, 8)), np.ones(2 + 2 * comm.rank, int))
    assert caught.value.error_class in (MPI.ERR_TRUNCATE, MPI.ERR_OTHER)
    with pytest.raises(MPI.Exception):
        other.Barrier()
    comm.Barrier()


GAPS = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()

WRONG: dict[str, tuple[type[Exception], str, Callable[..., Any]]] = {
    "list": (TypeError, "splits must be an array of integers, got list", lambda call, a: call(a, a, [1, 1])),
    "floats": (TypeError, "array of integers, its elements are 'd'", lambda call, a: call(a, a, np.ones(2))),
    "bools": (TypeError, "array of integers", lambda call, a: call(a, a, np.ones(2, bool))),
    "odd": (ValueError, "3 segments must be a multiple of 2 ranks", lambda call, a: call(a, a, np.ones(3, int))),
    "half": (ValueError, "give both or neither", lambda call, a: call(a, a, np.ones(3, int), np.zeros(2, int))),
    "blocks": (ValueError, "expecting 2 blocklengths, got 1",
               lambda call, a: call(a, a, np.ones(3, int), np.zeros(1, int), np.ones(1, int))),
    "plain": (ValueError, "one split length for each of 2 ranks", lambda call, a: call([a, [2, 2]], a, np.ones(4, int))),
    "plain with indices": (ValueError, "no indices",
                           lambda call, a: call([a, [2, 2]], a, np.ones(2, int), np.zeros(2, int), np.ones(2, int))),
    "unaligned": (ValueError, "not aligned", lambda call, a: call(a, a, np.zeros(17, "u1")[1:].view("i8"))),
    "small allsplits": (ValueError, r"int64 of shape \(2, 2\)",
                        lambda call, a: call(a, a, np.ones(2, int), None, None, np.ones(2, int))),
    "narrow allsplits": (ValueError, r"int64 of shape \(2, 2\)",
                         lambda call, a: call(a, a, np.ones(2, int), None, None, np.ones(4, "i4"))),
    "mixed sizes": (MPI.Exception, "one element size", lambda call, a: call(a, a.astype("f4"), np.ones(2, int))),
    "no buffer": (TypeError, "sendbuf must be a buffer of its own", lambda call, a: call(None, a, np.ones(2, int))),
    "in place": (TypeError, "sendbuf must be a buffer of its own", lambda call, a: call(MPI.IN_PLACE, a, np.ones(2, int))),
    "read only": (BufferError, "not writable", lambda call, a: call(a, np.frombuffer(bytes(32)), np.ones(2, int))),
    "gaps": (MPI.Exception, "has gaps", lambda call, a: call([np.ones(3), GAPS], a, np.ones(2, int))),
    "too many": (ValueError, "buffer has 32 bytes", lambda call, a: call(a, [a, [3, 3]], np.ones(2, int))),
}  # fmt: skip


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_before_anything_is_sent(comm: Any, name: str) -> None:
    kind, text, use = WRONG[name]
    with pytest.raises(kind, match=text):
        use(comm.Alltoallv_dynamic, np.ones(4))
    comm.Barrier()


@pytest.mark.ranks(2)
def test_combine_checks_its_rows(comm: Any) -> None:
    with pytest.raises(ValueError, match="a row for each of 2 ranks"):
        comm.Alltoallv_dynamic_combine(np.ones(4), np.ones(4), np.ones(3, int))


@pytest.mark.ranks(1)
def test_freed_communicator(comm: Any) -> None:
    other = comm.Dup()
    other.Free()
    with pytest.raises(MPI.Exception):
        other.Alltoallv_dynamic(np.ones(1), np.ones(1), np.ones(1, int))


@pytest.mark.ranks(2)
def test_a_persistent_request_that_runs_is_not_started_again(comm: Any) -> None:
    request = comm.Alltoallv_dynamic_init(np.ones(2), np.ones(2), np.ones(2, int))
    request.Start()
    with pytest.raises(MPI.Exception):
        request.Start()
    request.Wait()


def test_forms_are_all_drawn() -> None:
    """The random tables have every form, faults, and pairs of several runs."""
    tables = [draw(seed, 3) for seed in range(1000)]
    assert {table.form for table in tables} == {PLAIN, SPLIT, INDICES}
    assert sum(bool(table.faults(0)) for table in tables) > 100
    assert sum(any(len(table.runs(0, to)) > 1 for to in range(3)) for table in tables) > 50

"""Forms of buffers that compiled code reads: what they move and leave alone, what they hold meanwhile, and what they refuse."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments
from ncclx_mpi.api import fast as api_fast

D = MPI.DOUBLE
SPARE = 3
"""Elements behind those of a message."""

Form = Callable[[Any, int], Any]

FORMS: dict[str, Form] = {
    "[a, n]": lambda a, n: [a, n],
    "[a, n, type]": lambda a, n: [a, n, D],
    "(a, n, type)": lambda a, n: (a, n, D),
    "[a, n, code]": lambda a, n: [a, n, "d"],
    "[a, n, code that was made]": lambda a, n: [a, n, chr(100)],
    "[a, (n, first)]": lambda a, n: [a, (n, 1)],
    "[a, (n, first), type]": lambda a, n: [a, (n, 1), D],
    "[a, n, first, type]": lambda a, n: [a, n, 1, D],
    "[a, n, None]": lambda a, n: [a, n, None],
    "[a, (n, None)]": lambda a, n: [a, (n, None)],
    "[a, n, None, type]": lambda a, n: [a, n, None, D],
    "[a, n, first, None]": lambda a, n: [a, n, 1, None],
}
WHOLE: dict[str, Form] = {
    "a": lambda a, n: a,
    "[a, type]": lambda a, n: [a, D],
    "[a, code]": lambda a, n: [a, "d"],
    "[a, None, type]": lambda a, n: [a, None, D],
    "[a, (None, None), type]": lambda a, n: [a, (None, None), D],
}


def mapped(content: bytes) -> mmap:
    memory = mmap(-1, len(content))
    memory[:] = content
    return memory


KINDS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "ndarray": lambda values: values.copy(),
    "array": lambda values: array("d", values.tolist()),
    "bytearray": lambda values: bytearray(values.tobytes()),
    "memoryview": lambda values: memoryview(bytearray(values.tobytes())).cast("d"),
    "bytes": lambda values: values.tobytes(),
    "mmap": lambda values: mapped(values.tobytes()),
}


def cast(memory: Any) -> Any:
    """The same memory as doubles, where it does not say of what it is."""
    return memoryview(memory).cast("d") if isinstance(memory, bytearray | mmap) else memory


def values_of(data: Any) -> list[float]:
    return list(np.frombuffer(data).tolist())


def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is resolved in Python."""

    def fail(*_: Any) -> None:
        raise AssertionError("this went the general way")

    for name in ("send", "recv", "send_vector", "recv_vector"):
        monkeypatch.setattr(arguments, name, fail)


def can_count(form: str, kind: str) -> bool:
    """Whether a count without a type is one of doubles."""
    return "type" in form or "code" in form or kind in ("ndarray", "array", "memoryview")


CASES = [(form, kind) for form in (*FORMS, *WHOLE) for kind in KINDS if can_count(form, kind) or form == "a"]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(("form", "kind"), CASES)
def test_messages(comm: Any, monkeypatch: pytest.MonkeyPatch, form: str, kind: str) -> None:
    only_compiled(monkeypatch)
    rank, size = comm.rank, comm.size
    right, left, first = (rank + 1) % size, (rank - 1) % size, "first" in form
    length = 4 if form in WHOLE else 4 + SPARE
    make, landing = {**FORMS, **WHOLE}[form], KINDS["bytearray" if kind == "bytes" else kind]
    sent = KINDS[kind](np.arange(length) + 100.0 * rank)
    expected = np.full(length, -1.0)
    expected[first : first + 4] = np.arange(first, first + 4) + 100.0 * left
    status = MPI.Status()

    def check(received: Any) -> None:
        assert values_of(received) == expected.tolist()
        assert (status.Get_source(), status.Get_tag(), status.Get_count(D)) == (left, 7, 4)

    received = landing(np.full(length, -1.0))
    comm.Sendrecv(make(sent, 4), right, 7, make(received, 4), left, 7, status)
    check(received)
    received = landing(np.full(length, -1.0))
    request = comm.Irecv(make(received, 4), left, 7)
    comm.Send(make(sent, 4), right, 7)
    request.Wait(status)
    check(received)
    received = landing(np.full(length, -1.0))
    request = comm.Isend(make(sent, 4), right, 7)
    comm.Recv(make(received, 4), left, 7, status)
    request.Wait()
    check(received)


def run_collectives(comm: Any, form: Form, is_started: bool) -> None:
    """Each collective with counts of one block, and more memory behind: the result, and that the rest stays."""
    rank, size = comm.rank, comm.size
    mine = np.array([10.0 * rank + 1, 10.0 * rank + 2] * size + [-5.0] * SPARE)
    of_all = [value for other in range(size) for value in (10.0 * other + 1, 10.0 * other + 2)]
    sums = [sum(of_all[0::2]), sum(of_all[1::2])]
    before = [sum(of_all[0 : 2 * rank : 2]), sum(of_all[1 : 2 * rank : 2])]
    root = size - 1

    def call(name: str, *given: Any) -> None:
        if is_started:
            getattr(comm, f"I{name.lower()}")(*given).Wait()
        else:
            getattr(comm, name)(*given)

    def check(name: str, landing: Any, expected: list[float], first: int = 0) -> None:
        assert landing[:first].tolist() == [-1.0] * first, name
        assert landing[first : first + len(expected)].tolist() == expected, name
        assert (landing[first + len(expected) :] == -1.0).all(), name

    def blank() -> Any:
        return np.full(2 * size + SPARE, -1.0)

    def block(data: Any) -> Any:
        return form(data, 2)

    given = form(mine, 2)
    first = (given[1][1] if isinstance(given[1], tuple) else given[2] if len(given) == 4 else 0) or 0
    mine = np.roll(mine, first)
    for name, expected in (("Allgather", of_all), ("Alltoall", of_all)):
        landing = blank()
        call(name, block(mine), block(landing))
        check(name, landing, expected, first)
    for name, expected in (
        ("Allreduce", sums),
        ("Reduce_scatter_block", sums),
        ("Scan", [before[0] + mine[first], before[1] + mine[first + 1]]),
    ):
        landing = blank()
        call(name, block(mine), block(landing))
        check(name, landing, expected, first)
    landing = blank()
    call("Reduce", block(mine), block(landing) if rank == root else None, MPI.SUM, root)
    check("Reduce", landing, sums if rank == root else [], first if rank == root else 0)
    landing = blank()
    call("Gather", block(mine), block(landing) if rank == root else None, root)
    check("Gather", landing, of_all if rank == root else [], first if rank == root else 0)
    landing = blank()
    call("Scatter", block(mine) if rank == root else None, block(landing), root)
    check("Scatter", landing, [10.0 * root + 1, 10.0 * root + 2], first)
    landing = np.roll(mine, 0) if rank == root else blank()
    call("Bcast", block(landing), root)
    assert landing[first : first + 2].tolist() == [10.0 * root + 1, 10.0 * root + 2]


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_started", [False, True], ids=["blocking", "started"])
def test_counts_of_blocks(comm: Any, form: str, is_started: bool) -> None:
    run_collectives(comm, FORMS[form], is_started)


@pytest.mark.ranks(1, 3, topology="machine")
@pytest.mark.parametrize("is_started", [False, True], ids=["blocking", "started"])
def test_counts_of_blocks_are_read_by_compiled_code(comm: Any, monkeypatch: pytest.MonkeyPatch, is_started: bool) -> None:
    run_collectives(comm, FORMS["[a, n]"], is_started)  # the first call finds the function that adds
    only_compiled(monkeypatch)
    for form in FORMS.values():
        run_collectives(comm, form, is_started)


@pytest.mark.ranks(1, 2, 3, topology="machine")
@pytest.mark.parametrize("elements", [1, 5000, 200_000])
def test_vectors_and_in_place(comm: Any, monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    only_compiled(monkeypatch)
    rank, size, root = comm.rank, comm.size, comm.size - 1
    counts = [elements + other for other in range(size)]
    firsts = [sum(counts[:other]) + other for other in range(size)]  # a gap of one before each but the first
    total = firsts[-1] + counts[-1]
    mine = np.arange(counts[rank] + SPARE) + 1e6 * rank
    expected = np.full(total, -1.0)
    for other in range(size):
        expected[firsts[other] : firsts[other] + counts[other]] = np.arange(counts[other]) + 1e6 * other
    landing = np.full(total, -1.0)
    comm.Gatherv([mine, counts[rank], D], [landing, (counts, firsts), D] if rank == root else None, root)
    np.testing.assert_array_equal(landing, expected if rank == root else np.full(total, -1.0))
    back = np.full(counts[rank] + SPARE, -1.0)
    comm.Scatterv([expected, (counts, firsts), D] if rank == root else None, [back, counts[rank]], root)
    np.testing.assert_array_equal(back[: counts[rank]], mine[: counts[rank]])
    assert (back[counts[rank] :] == -1.0).all()
    landing = np.full(total, -1.0)
    comm.Allgatherv([mine, counts[rank], D], [landing, (counts, firsts), D])
    np.testing.assert_array_equal(landing, expected)
    landing = np.full(total, -1.0)
    landing[firsts[rank] : firsts[rank] + counts[rank]] = mine[: counts[rank]]
    comm.Allgatherv(MPI.IN_PLACE, [landing, (counts, firsts), D])
    np.testing.assert_array_equal(landing, expected)
    landing = np.full(size * elements + SPARE, -1.0)
    landing[rank * elements : (rank + 1) * elements] = rank
    comm.Allgather(MPI.IN_PLACE, [landing, elements, D])
    np.testing.assert_array_equal(landing, [*np.repeat(np.arange(size), elements), *[-1.0] * SPARE])
    landing = np.full(size * elements + SPARE, -1.0)
    landing[rank * elements : (rank + 1) * elements] = rank
    if rank == root:
        comm.Gather(MPI.IN_PLACE, [landing, elements, D], root)
        np.testing.assert_array_equal(landing, [*np.repeat(np.arange(size), elements), *[-1.0] * SPARE])
        comm.Scatter([landing, elements, D], MPI.IN_PLACE, root)
        np.testing.assert_array_equal(landing, [*np.repeat(np.arange(size), elements), *[-1.0] * SPARE])
    else:
        comm.Gather([landing[rank * elements :], elements, D], None, root)
        back = np.full(elements + SPARE, -1.0)
        comm.Scatter(None, [back, elements, D], root)
        assert (back[:elements] == rank).all() and (back[elements:] == -1.0).all()
    landing = np.full(size * elements, -1.0)
    landing[rank * elements : (rank + 1) * elements] = rank
    comm.Allgather(MPI.IN_PLACE, landing)
    np.testing.assert_array_equal(landing, np.repeat(np.arange(size), elements))


COUNTS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "int64": lambda counts: np.array(counts, np.int64),
    "int32": lambda counts: np.array(counts, np.int32),
    **{f"array {code}": lambda counts, code=code: array(code, counts) for code in "ilq"},  # type: ignore[misc]
}


@pytest.mark.ranks(1, 2, 3, topology="machine")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bytes"])
@pytest.mark.parametrize("counted", COUNTS)
def test_vectors_of_any_memory(comm: Any, monkeypatch: pytest.MonkeyPatch, kind: str, counted: str) -> None:
    only_compiled(monkeypatch)
    rank, size, root = comm.rank, comm.size, comm.size - 1
    make, count = KINDS[kind], COUNTS[counted]
    lengths = [3 * other + 1 for other in range(size)]
    firsts = [sum(lengths[:other]) + other for other in range(size)]
    total = firsts[-1] + lengths[-1]
    blank = np.full(total, -1.0)
    expected = blank.copy()
    for other in range(size):
        expected[firsts[other] : firsts[other] + lengths[other]] = np.arange(lengths[other]) + 100.0 * other
    mine = make(np.arange(lengths[rank]) + 100.0 * rank)
    for form in (
        lambda memory: [memory, (count(lengths), count(firsts)), D],
        lambda memory: [memory, count(lengths), count(firsts), "d"],
        lambda memory: [cast(memory), (count(lengths), count(firsts)), None],
    ):
        landing = make(blank)
        comm.Gatherv([mine, D], form(landing) if rank == root else None, root)
        assert values_of(landing) == (expected if rank == root else blank).tolist()
        back = make(np.full(lengths[rank], -1.0))
        comm.Scatterv(form(make(expected)) if rank == root else None, [back, D], root)
        assert values_of(back) == values_of(mine)
        landing = make(blank)
        comm.Allgatherv([mine, D], form(landing))
        assert values_of(landing) == expected.tolist()
        landing = make(np.full(size * lengths[rank], -1.0))
        own = count([lengths[rank]] * size)
        comm.Alltoallv(form(make(expected)), [landing, (own, None), D])
        assert values_of(landing) == values_of(mine) * size
    for memory in (landing, back, mine):
        if isinstance(memory, bytearray | array):
            memory.extend(memory[:1])  # nothing holds it any more


@pytest.mark.ranks(1)
def test_vectors_of_what_is_not_taken(comm: Any) -> None:
    data, words = np.arange(4.0), array("d", range(4))
    for counts in (array("i", [5]), array("i", [-1]), array("q", [1, 1]), array("i"), [5], [-1]):
        for sent in (data, words, bytearray(32), mapped(bytes(32))):
            landing = bytearray(b"\xff" * 32)
            with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
                comm.Alltoallv([sent, (counts, [0]), D], [landing, ([1], [0]), D])
            with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
                comm.Allgatherv([sent, 1, D], [landing, (counts, [0]), D])
            assert landing == b"\xff" * 32
            landing.extend(b"0")  # what failed holds nothing
    readonly = bytes(32)
    with pytest.raises((BufferError, TypeError, ValueError, MPI.Exception)):
        comm.Alltoallv([words, ([1], [0]), D], [readonly, ([1], [0]), D])
    assert readonly == bytes(32)


@pytest.mark.ranks(1)
def test_what_does_not_fit_is_refused(comm: Any) -> None:
    data, landing = np.arange(4.0), np.full(4, -1.0)
    for spec in (
        [data, 5, D],
        [data, (4, 1), D],
        [data, (0, 5), D],
        [data, -1, D],
        [data, (1, -1), D],
        [data, 4, 1, D],
        [data, 1, -1, D],
        [data, -1, 1, D],
        [data, (1, 0), 0, D],
        [bytearray(31), 4, D],
        [data, 1 << 70, D],
        [data, (None, 5), D],
        [data, None, -1, D],
        [data, (5, None)],
        [bytearray(31), None, D],
        [bytearray(31), (None, 1), D],
    ):
        with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
            comm.Sendrecv(spec, 0, 0, landing, 0, 0)
        with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
            comm.Allreduce(spec, landing)
    with pytest.raises((ValueError, MPI.Exception)):
        comm.Allgather([data, 2, D], [landing, 5, D])
    for call in (lambda: comm.Gather(MPI.IN_PLACE, [landing, 5, D]), lambda: comm.Scatter([landing, 5, D], MPI.IN_PLACE)):
        with pytest.raises((ValueError, MPI.Exception)):
            call()
    for readonly in (b"12345678", memoryview(b"12345678"), memoryview(bytearray(8)).toreadonly()):
        with pytest.raises((BufferError, TypeError, ValueError, MPI.Exception)):
            comm.Sendrecv(data[:1], 0, 0, [readonly, D], 0, 0)
    released = memoryview(bytearray(8))
    released.release()
    with pytest.raises(ValueError, match="released"):
        comm.Send(released, 0)
    assert (landing == -1.0).all()
    assert not comm.Iprobe()


@pytest.mark.ranks(2)
def test_a_block_more_than_is_there_is_refused(comm: Any) -> None:
    """A count is of each rank's block, so that as many bytes as the array has are too many."""
    data, landing = np.arange(4.0), np.full(4, -1.0)
    for name, sent, received in (
        ("Allgather", [data, 4, D], [landing, 4, D]),
        ("Alltoall", [data, 4, D], [landing, 4, D]),
        ("Reduce_scatter_block", [data, 4, D], [landing, 4, D]),
        ("Allgather", MPI.IN_PLACE, [landing, 4, D]),
    ):
        with pytest.raises((ValueError, MPI.Exception)):
            getattr(comm, name)(sent, received)
    assert (landing == -1.0).all()
    comm.Barrier()


@pytest.mark.ranks(1, 3, topology="machine")
@pytest.mark.parametrize("integer", [np.int64, np.int32])
def test_integers_of_numpy(comm: Any, monkeypatch: pytest.MonkeyPatch, integer: Any) -> None:
    """Ranks, tags, roots and counts that come out of arrays."""
    only_compiled(monkeypatch)
    rank, size = comm.rank, comm.size
    ranks, counts = np.arange(size).astype(integer), [integer(2)] * size
    right, left, root = ranks[(rank + 1) % size], ranks[(rank - 1) % size], ranks[-1]
    sent, landing, status = np.arange(4.0) + 10 * rank, np.full(4, -1.0), MPI.Status()
    comm.Sendrecv([sent, counts[0], D], right, integer(5), [landing, (counts[0], integer(1)), D], left, integer(5), status)
    assert landing.tolist() == [-1.0, 10.0 * left, 10.0 * left + 1, -1.0] and status.Get_tag() == 5
    request = comm.Irecv([landing, counts[0]], left, integer(6))
    comm.Isend([sent, counts[0]], right, integer(6)).Wait()
    request.Wait()
    assert landing[:2].tolist() == [10.0 * left, 10.0 * left + 1]
    comm.Bcast([sent, counts[0], D], root)
    assert sent[:2].tolist() == [10.0 * root, 10.0 * root + 1]
    gathered = np.full(2 * size + 1, -1.0)
    comm.Allgatherv([sent, counts[0], D], [gathered, (counts, [integer(2 * other) for other in range(size)]), D])
    assert gathered.tolist() == [10.0 * root, 10.0 * root + 1] * size + [-1.0]


@pytest.mark.ranks(2)
def test_floats_are_ranks_and_tags(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mpi4py takes them, without what comes behind the point: programs compute ``rank + size / 2``."""
    other = (comm.rank + comm.size / 2) % comm.size
    sent, landing = np.array([comm.rank + 1.0]), np.zeros(1)

    def exchange(peer: Any, tag: Any) -> None:
        landing[0] = 0.0
        comm.Sendrecv(sent, peer, tag, landing, peer, tag)
        assert landing[0] == 2.0 - comm.rank
        comm.Bcast(landing, peer if comm.rank == 0 else tag * 0 + 1.0)
        assert landing[0] == 1.0

    with monkeypatch.context() as patch:
        only_compiled(patch)
        exchange(other, 3.0)
        exchange(other + 0.5, 3.75)
    exchange(np.float64(other), np.float64(3))
    exchange(np.float32(other), np.array(3))
    assert comm.sendrecv(comm.rank, other, 1.5, None, other, 1.5) == 1 - comm.rank


@pytest.mark.ranks(1)
def test_floats_that_are_no_ranks(comm: Any) -> None:
    data = np.arange(4.0)
    for wrong in (float("nan"), float("inf"), 1e300, -1e18, "0", 0j):
        with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
            comm.Send(data, wrong)
        with pytest.raises((TypeError, ValueError, OverflowError, MPI.Exception)):
            comm.Bcast(data, wrong)
    for wrong in (1.0, np.float64(1)):  # a count is no rank
        with pytest.raises(TypeError):
            comm.Send([data, wrong, D], 0)
    assert not comm.Iprobe()


@pytest.mark.ranks(1)
def test_integers_of_numpy_that_are_wrong(comm: Any) -> None:
    data = np.arange(4.0)
    for wrong in (np.int64(-9), np.int32(1), np.int64(1 << 40)):
        with pytest.raises(MPI.Exception):
            comm.Send(data, wrong)
        with pytest.raises(MPI.Exception):
            comm.Bcast(data, wrong)
    for wrong in (np.int64(-1), np.int32(5), np.int64(1 << 62)):
        with pytest.raises((ValueError, MPI.Exception)):
            comm.Sendrecv([data, wrong, D], 0, 0, [np.zeros(4), D], 0, 0)
    assert not comm.Iprobe()


@pytest.mark.ranks(1)
def test_other_forms_do_what_they_did(comm: Any) -> None:
    data = np.arange(4.0)
    count: Any
    for count in (True, np.int64(1), np.int32(1)):
        landing = np.full(4, -1.0)
        comm.Sendrecv([data, count, D], 0, 0, [landing, count, D], 0, 0)
        assert landing.tolist() == [0.0, -1.0, -1.0, -1.0]
    landing = np.full(4, -1.0)
    comm.Sendrecv([data, 1, 2, D], 0, 0, [landing, 1, 3, D], 0, 0)
    assert landing.tolist() == [-1.0, -1.0, -1.0, 2.0]
    landing = np.full(4, -1.0)
    comm.Sendrecv([data, (None, 2), D], 0, 0, [landing, None, 1, None], 0, 0)
    assert landing.tolist() == [-1.0, 2.0, 3.0, -1.0]
    comm.Sendrecv([data, None], 0, 0, [landing, (None, None), None], 0, 0)
    assert landing.tolist() == data.tolist()
    landing = np.full(4, -1.0)
    comm.Alltoallv([data, None, None, None], [landing, (None, [0]), D])
    assert landing.tolist() == data.tolist()
    strided = memoryview(bytearray(range(8)))[::2]
    with pytest.raises((BufferError, ValueError)):
        comm.Send(strided, 0)
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    comm.Sendrecv([memoryview(fortran), 6, D], 0, 0, [landing := np.zeros(6), D], 0, 0)
    assert landing.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    longs = np.zeros(2, np.int64)
    comm.Allreduce(memoryview(array("l", [3, 4])), longs)
    assert longs.tolist() == [3, 4]


@pytest.mark.ranks(1)
def test_memory_stays_where_it_is_as_long_as_it_may_be_touched(comm: Any) -> None:
    for landing in (bytearray(8), array("d", [0.0])):
        request = comm.Irecv(landing, 0)
        with pytest.raises(BufferError):
            landing.extend(landing[:1])
        comm.Send(np.ones(1), 0)
        request.Wait()
        assert values_of(landing) == [1.0]
        landing.extend(landing[:1])  # nothing holds it any more
        comm.Sendrecv(landing, 0, 0, landing, 0, 0)
        landing.extend(landing[:1])


@pytest.mark.ranks(1)
def test_a_mapping_cannot_be_closed_meanwhile(comm: Any) -> None:
    landing = mapped(bytes(8))
    request = comm.Irecv([landing, MPI.BYTE], 0)
    with pytest.raises(BufferError):
        landing.close()
    comm.Send([mapped(b"12345678"), 8, MPI.BYTE], 0)
    request.Wait()
    assert landing[:] == b"12345678"
    landing.close()


@pytest.mark.ranks(1)
def test_nothing_is_kept(comm: Any) -> None:
    rows = D.Create_vector(2, 1, 3).Commit()
    sources: list[Any] = [np.arange(6.0), array("d", range(6)), bytearray(48)]
    given = [rows, rows._state, *sources]
    specs = [spec for source in sources for spec in (source, [source, D], [source, 6, D], [source, (3, 1), D])]
    counts = [array("i", [6]), np.array([6])]
    vectors = [[source, (count, None), D] for source in (np.zeros(6), *sources) for count in counts]
    given += counts
    specs += [[sources[0], 1, rows], [sources[0], rows.Create_resized(0, 48).Commit()], [b"12345678", 1, D]]

    def exchange() -> None:
        for spec in specs:
            receiving = comm.Irecv(sources[0], 0)
            comm.Isend(spec, 0).Wait()
            receiving.Wait()
            if not (isinstance(spec, list) and isinstance(spec[0], bytes)):
                comm.Sendrecv(spec, 0, 0, spec, 0, 0)
        for vector in vectors:
            comm.Alltoallv(vector, vectors[0])
            comm.Gatherv(sources[0], vector)
            comm.Allgatherv(sources[0], vector)
            with pytest.raises((ValueError, MPI.Exception)):
                comm.Alltoallv(vector, [vector[0], ([7], [0]), D])

    for _ in range(5):
        exchange()
    before = [sys.getrefcount(each) for each in given]
    for _ in range(100):
        exchange()
    assert [sys.getrefcount(each) for each in given] == before


@pytest.mark.ranks(2)
@pytest.mark.parametrize("form", ["column", "dense", "count", "bytearray"])
@pytest.mark.parametrize("nbytes", [64, 1 << 17], ids=["eager", "announced"])
def test_another_thread_lets_go_of_all_that_a_blocked_call_was_given(comm: Any, form: str, nbytes: int) -> None:
    """The list is emptied, the datatype freed and the array forgotten: what the call holds is what is left of them."""
    length, peer, caller = nbytes // 8, 1 - comm.rank, threading.get_ident()
    for turn in range(4):
        kind = (D.Create_vector(length, 1, 2) if form == "column" else D.Create_contiguous(length)).Commit()
        api_fast.meet(kind._state)
        landing: Any = bytearray(nbytes) if form == "bytearray" else np.zeros(2 * length)
        spec = {"column": [landing, 1, kind], "dense": [landing, 1, kind], "count": [landing, length, D]}.get(form, [landing, D])
        weakly = weakref.ref(landing) if form != "bytearray" else None
        left = [landing]
        del landing

        def let_go(spec: list[Any] = spec, kind: Any = kind, left: list[Any] = left) -> None:
            end = time.monotonic() + 5
            while sys._current_frames()[caller].f_code.co_name not in ("Recv", "bind_and_call") and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.02)  # by now it has read the list
            spec.clear()
            left.clear()
            kind.Free()
            gc.collect()
            comm.send(None, peer, 1)

        thread = threading.Thread(target=let_go)
        if comm.rank == turn % 2:
            thread.start()
            comm.Recv(spec, peer, 2)
            thread.join()
            assert weakly is None or weakly() is None
        else:
            comm.recv(source=peer, tag=1)
            comm.Send(np.arange(float(length)), peer, 2)
            kind.Free()
        comm.Barrier()


@pytest.mark.ranks(2, timeout=60)
def test_threads_exchange_columns_and_bytes(comm: Any) -> None:
    """Each by a communicator of its own, the interpreter changing between them as often as it can."""
    peer, before = 1 - comm.rank, sys.getswitchinterval()
    comms, failures = [comm.Dup() for _ in range(3)], []
    sys.setswitchinterval(1e-6)

    def talk(number: int) -> None:
        mine, column = comms[number], D.Create_vector(5, 1, 3).Commit()
        try:
            for turn in range(200):
                table, landing, raw = np.arange(15.0) + turn + comm.rank, np.full(15, -1.0), bytearray(8 * (turn % 5 + 1))
                mine.Sendrecv([table, 1, column], peer, turn, [landing, 1, column], peer, turn)
                assert (landing[::3] == table[::3] - comm.rank + peer).all() and (landing[1::3] == -1.0).all()
                landing[:] = -1.0
                started = mine.Irecv([landing, 1, column], peer, turn), mine.Isend([table, 1, column], peer, turn)
                MPI.Request.Waitall(list(started))
                assert (landing[::3] == table[::3] - comm.rank + peer).all() and (landing[1::3] == -1.0).all()
                mine.Sendrecv([bytes([turn % 256]) * len(raw), MPI.BYTE], peer, turn, raw, peer, turn)
                assert raw == bytes([turn % 256]) * len(raw)
        except BaseException as error:
            failures.append(error)
        column.Free()

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(len(comms))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures
    for mine in comms:
        mine.Free()


@pytest.mark.ranks(1, 2)
def test_nobody(comm: Any) -> None:
    """To PROC_NULL nothing goes, whatever the buffer; from it comes nothing, which the status says."""
    column, peer = D.Create_vector(4, 1, 3).Commit(), comm.size - 1 - comm.rank
    data = np.arange(12.0)
    for spec in (data, [data, 5, D], [data, 1, column], None, "no buffer"):
        landing, status = np.full(12, -1.0), MPI.Status()
        comm.Send(spec, MPI.PROC_NULL)
        comm.Recv(spec, MPI.PROC_NULL, status=status)
        assert (status.Get_source(), status.Get_tag(), status.Get_count(D)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
        comm.Sendrecv(spec, MPI.PROC_NULL, 0, spec, MPI.PROC_NULL, 0, status)
        assert status.Get_source() == MPI.PROC_NULL
        for made in ((data, landing), ([data, 1, column], [landing, 1, column])):
            request = comm.Irecv(landing, peer, 1)
            comm.Sendrecv(made[0], peer, 1, spec, MPI.PROC_NULL, 0, status)
            assert status.Get_source() == MPI.PROC_NULL
            request.Wait()
            request = comm.Isend(data, peer, 2)
            comm.Sendrecv(spec, MPI.PROC_NULL, 0, landing, peer, 2, status)
            assert status.Get_source() == peer and (landing == data).all()
            request.Wait()
    with pytest.raises(MPI.Exception):
        comm.Send(data, MPI.PROC_NULL, -5)
    with pytest.raises(MPI.Exception):
        comm.Recv(data, MPI.PROC_NULL, -5)
    comm.Barrier()
    column.Free()

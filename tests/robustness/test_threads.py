"""Threads that share a rank: with each other, with the library's own thread, with finalizers, and with whoever changes their arguments."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.api.op import native
from ncclx_mpi.operations import background_progress
from numba_kernels import pylayouts
from tests.robustness.instructions import before_each

EACH_INSTRUCTION = 0.0
INTERVALS = [1e-6, 0.005]
THREADS, MESSAGES = 4, 40
LAYOUT_WORDS = pylayouts.LAYOUT.total // 8


@contextlib.contextmanager
def switching(interval: float) -> Iterator[None]:
    """Let Python's threads take turns every `interval` seconds, or after each instruction of the packages.

    Time decides which windows between two instructions another thread meets, and on a busy machine it meets few; the latter opens them all.
    """
    before = sys.getswitchinterval()
    if interval == EACH_INSTRUCTION:
        let_others_run = before_each(lambda: time.sleep(0))  # gives the GIL away
        threading.settrace(let_others_run)
        sys.settrace(let_others_run)
    else:
        sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
        sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work(0)`` to ``work(count - 1)`` in threads; raises what one of them raised."""
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait for a condition without any call of MPI."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(condition())


def stays(condition: Callable[[], object]) -> bool:
    """Whether a condition holds for a while: that a call has read its arguments, but is not reading them just now."""
    return all(condition() and not time.sleep(0.005) for _ in range(10))


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("interval", [*INTERVALS, EACH_INSTRUCTION])
def test_threads_take_and_give_back_requests(comm: Any, interval: float, full: bool) -> None:
    """Each new request is whole before another thread can take it for its own message."""
    duplicates = [comm.Dup() for _ in range(THREADS)]
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def exchange(index: int) -> None:
        mine = duplicates[index]
        for turn in range(3 if interval == EACH_INSTRUCTION else 300 if full else 30):
            boxes = [np.zeros(3) for _ in range(MESSAGES)]
            requests = [mine.Irecv(box, below, tag) for tag, box in enumerate(boxes)]
            for tag in range(MESSAGES):
                mine.Send(np.full(3, 1e6 * comm.rank + 1e3 * turn + tag), above, tag)
            MPI.Request.Waitall(requests)
            for tag, box in enumerate(boxes):
                assert (box == 1e6 * below + 1e3 * turn + tag).all(), (index, turn, tag, box)

    with switching(interval):
        in_threads(exchange)
    comm.Barrier()


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("interval", [*INTERVALS, EACH_INSTRUCTION])
def test_unfinished_requests_in_cycles(comm: Any, interval: float) -> None:
    """Finalizers give requests up in the middle of whatever a thread does."""
    duplicates = [comm.Dup() for _ in range(THREADS)]
    other = (comm.rank + 1) % comm.size

    def exchange(index: int) -> None:
        mine = duplicates[index]
        for turn in range(8 if interval == EACH_INSTRUCTION else 60):
            cycle: list[Any] = [mine.Irecv(np.zeros(3), other, 1), mine.irecv(source=other, tag=2)]
            cycle += [mine.Isend(np.full(3, 1.0), other, 1), mine.isend({"turn": turn}, other, 2), mine.Ibarrier()]
            box = np.zeros(3)
            mine.Sendrecv(np.full(3, float(turn)), other, 3, box, other, 3)
            assert (box == turn).all()
            cycle.append(cycle)
            del cycle
            if turn % 7 == index:
                gc.collect()

    with switching(interval):
        in_threads(exchange)
    gc.collect()
    comm.Barrier()


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("interval", [*INTERVALS, 1e-5])
def test_objects_of_several_parts_beside_the_background_thread(comm: Any, interval: float, full: bool) -> None:
    """The thread that asks for what follows a first message meets the owner of the request, who is waiting for it or has just ended it."""
    other = 1 - comm.rank
    sent = {"array": np.arange(30_000.0), "rank": comm.rank, "bytes": [bytes(40_000)] * 2}
    reports: list[str] = []
    background_progress.report_exception = reports.append  # type: ignore[attr-defined]
    with switching(interval):
        for turn in range(2_000 if full else 300):
            receiving, sending = comm.irecv(source=other, tag=turn), comm.isend(sent, other, turn)
            if turn % 3 == 0:
                found = receiving.wait()
            elif turn % 3 == 1:
                found = MPI.Request.waitall([receiving, sending])[0]
            else:
                flag, found = receiving.test()
                while not flag:
                    flag, found = receiving.test()
            assert found["rank"] == other and found["array"][-1] == 29_999.0
            sending.wait()
            assert not receiving and not sending
    thread = background_progress.stepper._thread
    assert thread is not None and thread.is_alive() and not reports


@pytest.mark.ranks(1)
def test_the_background_thread_says_what_failed_and_goes_on(comm: Any) -> None:
    calls = 0

    def fail_once() -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("planted fault")
        return False

    request = comm.irecv(source=0, tag=5)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        background_progress.watch(fail_once)
        assert until(lambda: calls > 3), "the thread has ended"
    assert "planted fault" in said.getvalue()
    comm.send([bytes(50_000), np.arange(9_000)], 0, 5)
    assert request.wait()[1][-1] == 8_999


class _Polled:
    """An operation whose first polls raise."""

    is_owed = False

    def __init__(self, nfailures: int) -> None:
        self.nfailures, self.npolls = nfailures, 0

    def poll(self) -> bool:
        self.npolls += 1
        if self.npolls <= self.nfailures:
            raise TimeoutError("rung")
        return self.npolls > 2


@pytest.mark.ranks(1)
def test_a_signal_handler_s_exception_ends_no_operation_of_others(comm: Any) -> None:
    """A blocking call steps what others have pending: what its signal handler raises there is the caller's, and the operation goes on."""
    interrupted, failing = _Polled(1), _Polled(1_000)
    said = io.StringIO()
    for operation in (interrupted, failing):
        background_progress._pending.add(operation)
        with contextlib.redirect_stderr(said):
            if operation is interrupted:
                with pytest.raises(TimeoutError, match="rung"):
                    background_progress.step()
                assert operation in background_progress._pending
            background_progress.step()
        assert operation not in background_progress._pending
    assert said.getvalue().count("is given up") == 1


@pytest.mark.ranks(2, timeout=60)
def test_a_posted_receive_of_an_object_makes_progress(comm: Any) -> None:
    """A sender of a large object is let go though the receiver only computes."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    sign = os.path.join(folder, "sent")
    if comm.rank == 0:
        request = comm.irecv(source=1)
        comm.Barrier()
        assert until(lambda: os.path.exists(sign)), "the sender waits for a receiver that computes"
        found = request.wait()
        assert found["array"][-1] == 199_999.0
        os.unlink(sign)
        os.rmdir(folder)
    else:
        comm.Barrier()
        comm.send({"array": np.arange(200_000.0), "text": "x" * 100_000}, 0)
        with open(sign, "w"):
            pass


@pytest.mark.ranks(1)
@pytest.mark.parametrize("interval", [1e-6, EACH_INSTRUCTION])
def test_threads_use_a_datatype_for_the_first_time_at_once(comm: Any, interval: float) -> None:
    """The list of blocks that compiled code reads is one for all threads: of several that are made, it is told of none that is dropped."""
    numbers = np.arange(60.0)
    for _ in range(5 if interval == EACH_INSTRUCTION else 50):
        column = MPI.DOUBLE.Create_vector(20, 1, 3).Commit()
        begin = threading.Barrier(THREADS)

        def pack(_: int, column: MPI.Datatype = column, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for _ in range(20):
                packed = np.zeros(20)
                column.Pack(numbers, packed, 0, comm)
                assert np.array_equal(packed, numbers[::3])
                noise = [np.full((20, 2), 1e9) for _ in range(8)]  # takes the place of a list that was dropped
            assert noise

        with switching(interval):
            in_threads(pack)
        column.Free()


@pytest.mark.ranks(1)
def test_threads_use_an_operation_for_the_first_time_at_once(comm: Any) -> None:
    """All get the same C function: one that another thread's replaces is gone while its first user still calls it."""
    op = MPI.Op.Create(lambda low, high, _: None)
    begin, found = threading.Barrier(THREADS), set()

    def ask(_: int) -> None:
        begin.wait()
        found.add(native(op, MPI.DOUBLE))

    with switching(EACH_INSTRUCTION):
        in_threads(ask)
    op.Free()
    assert len(found) == 1


class Placed:
    """What a table of layouts may hold."""


def rows_of(keys: set[int]) -> list[list[int]]:
    """The rows of the table of layouts that have one of these keys."""
    words = pylayouts._table.tolist()
    rows = (words[at : at + LAYOUT_WORDS] for at in range(0, len(words), LAYOUT_WORDS))
    return [row for row in rows if row[0] in keys]


@pytest.mark.ranks(1)
def test_threads_put_layouts_into_their_table_at_once(comm: Any) -> None:
    """No row has the key of one and the fields of another; and none is there twice, of which only one row would be cleared in the end."""
    layouts = [Placed() for _ in range(THREADS)]
    keys = {id(layout) for layout in layouts}

    def put(index: int) -> None:
        for layout in layouts[index:] + layouts[:index]:
            pylayouts.remember(layout, [id(layout)] * (LAYOUT_WORDS - 1))

    with switching(EACH_INSTRUCTION):
        in_threads(put)
    found = rows_of(keys)
    assert found and all(set(row) == {row[0]} for row in found)
    assert len({row[0] for row in found}) == len(found)
    layouts.clear()
    assert not rows_of(keys)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("call", ["Recv", "Sendrecv", "Bcast", "Allreduce", "Alltoallv", "Allgatherv", "Send", "Ssend"])
def test_a_list_changed_while_its_call_waits(comm: Any, call: str, interval: float) -> None:
    """The array in ``[array, type]`` belongs to the call, though another thread takes it out of the list and drops it."""
    calls: dict[str, Callable[[Any], Any]] = {
        "Recv": lambda spec: comm.Recv(spec, 1, 1),
        "Sendrecv": lambda spec: comm.Sendrecv(np.zeros(1), 1, 1, spec, 1, 1),
        "Bcast": lambda spec: comm.Bcast(spec, 1),
        "Allreduce": lambda spec: comm.Allreduce(MPI.IN_PLACE, spec),
        "Alltoallv": lambda spec: comm.Alltoallv(np.ones(40_000), spec),
        "Allgatherv": lambda spec: comm.Allgatherv(np.ones(20_000), spec),
        "Send": lambda spec: comm.Send(spec, 1, 1),
        "Ssend": lambda spec: comm.Ssend(spec, 1, 1),
    }
    data = np.full(40_000, 2.0)
    others: dict[str, Callable[[], Any]] = {
        "Recv": lambda: comm.Send(data, 0, 1),
        "Sendrecv": lambda: comm.Sendrecv(data, 0, 1, np.zeros(1), 0, 1),
        "Bcast": lambda: comm.Bcast(data, 1),
        "Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, data),
        "Alltoallv": lambda: comm.Alltoallv(np.ones(40_000), data),
        "Allgatherv": lambda: comm.Allgatherv(np.ones(20_000), data),
        "Send": lambda: comm.Recv(data, 0, 1),
        "Ssend": lambda: comm.Recv(data, 0, 1),
    }
    if comm.rank == 1:
        comm.recv(source=0, tag=9)
        others[call]()
        return
    with switching(interval):
        array = np.full(40_000, 1.0)
        alive, spec = weakref.ref(array), [array, MPI.DOUBLE]
        del array
        references = sys.getrefcount(alive())
        thread = threading.Thread(target=calls[call], args=(spec,))
        thread.start()
        assert until(lambda: stays(lambda: sys.getrefcount(alive()) > references)), "the call has not taken what its list holds"
        spec.clear()
        gc.collect()
        assert alive() is not None, "the array was freed under the call"
        comm.send("changed", 1, 9)
        thread.join(20)
        assert not thread.is_alive() and alive() is None


@pytest.mark.ranks(1, timeout=60)
@pytest.mark.parametrize("kind", ["object", "array", "column"])
def test_cancel_beside_completion(comm: Any, kind: str) -> None:
    """A cancellation that comes too late, while another thread ends the request, changes nothing: neither that message nor the next."""
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    start: dict[str, Callable[[], Any]] = {
        "object": lambda: comm.irecv(source=0, tag=1),
        "array": lambda: comm.Irecv(np.zeros(3), 0, 1),
        "column": lambda: comm.Irecv([np.zeros(3), 1, column], 0, 1),
    }
    current: list[Any] = []
    is_over = threading.Event()

    def cancel(_: int) -> None:
        while not is_over.is_set():
            with contextlib.suppress(IndexError, MPI.Exception):
                current[0].Cancel()

    def exchange() -> None:
        for _ in range(1_500):
            request, following = start[kind](), start[kind]()
            current[:] = [request]
            comm.send(7, 0, 1) if kind == "object" else comm.Send(np.zeros(2 if kind == "column" else 3), 0, 1)
            status = MPI.Status()
            request.Wait(status)
            current.clear()
            if not status.Is_cancelled():
                comm.send(7, 0, 1) if kind == "object" else comm.Send(np.zeros(2 if kind == "column" else 3), 0, 1)
            following.Wait(status)
            assert not status.Is_cancelled(), "a message that nobody wanted to cancel was cancelled"

    with switching(1e-6):
        thread = threading.Thread(target=cancel, args=(0,))
        thread.start()
        try:
            exchange()
        finally:
            is_over.set()
            thread.join()

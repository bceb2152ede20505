"""Collectives that cannot complete raise, on every rank that can know, instead of hanging."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives import prepare
from ncclx_mpi.collectives.shm_oneshot import give_up
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import REFUSED
from numba_kernels import reduce as reductions
from numba_kernels.jit import entry, kernel
from tests.collectives.forked import Signals, run_ranks

LARGE = 1 << 20


def raises(error_class: int, call: Callable[[], object]) -> str:
    """Assert that `call` raises an MPI error of a class; returns the message."""
    with pytest.raises(errors.Exception) as caught:
        call()
    assert caught.value.Get_error_class() == error_class, str(caught.value)
    return str(caught.value)


def allreduce(comm: NativeComm, count: int) -> None:
    data = np.ones(count, dtype=np.float32)
    collectives.allreduce(comm, 0, data.ctypes.data, count, 4, reductions.address("sum", "f32"), True)


def bcast(comm: NativeComm, nbytes: int, root: int = 0) -> None:
    data = np.zeros(nbytes, dtype=np.uint8)
    collectives.bcast(comm, data.ctypes.data, nbytes, root)


def sizes_differ(comm: NativeComm, counts: tuple[int, int]) -> None:
    odd = comm.rank == comm.size - 1
    message = ""
    with pytest.raises(errors.Exception) as caught:
        allreduce(comm, counts[odd])
    message = str(caught.value)
    assert caught.value.Get_error_class() in (errors.ERR_TRUNCATE, errors.ERR_OTHER), message
    assert "rank" in message
    raises(errors.ERR_OTHER, lambda: collectives.barrier(comm))


@pytest.mark.parametrize("counts", [(1, 2), (1, LARGE), (LARGE, LARGE + 1), (LARGE, 1)])
@pytest.mark.parametrize("size", [2, 3])
def test_sizes_that_differ(size: int, counts: tuple[int, int]) -> None:
    run_ranks(size, sizes_differ, counts)


def kinds_differ(comm: NativeComm) -> None:
    if comm.rank == 0:
        message = raises(errors.ERR_OTHER, lambda: collectives.barrier(comm))
        assert "called barrier" in message and "called bcast" in message
    else:
        raises(errors.ERR_OTHER, lambda: bcast(comm, 8))


def test_collectives_that_differ() -> None:
    run_ranks(2, kinds_differ)


def gather(comm: NativeComm, nbytes: int, root: int) -> None:
    data = np.zeros(nbytes * (comm.size + 1), dtype=np.uint8)
    collectives.gather(comm, data.ctypes.data, nbytes, data.ctypes.data + nbytes, root)


def scatter(comm: NativeComm, nbytes: int, root: int) -> None:
    data = np.zeros(nbytes * (comm.size + 1), dtype=np.uint8)
    collectives.scatter(comm, data.ctypes.data + nbytes, data.ctypes.data, nbytes, root)


def reduce(comm: NativeComm, nbytes: int, root: int) -> None:
    data = np.zeros(2 * nbytes, dtype=np.uint8)
    fn = reductions.address("sum", "u8")
    collectives.reduce(comm, data.ctypes.data, data.ctypes.data + nbytes, nbytes, 1, fn, True, root)


def roots_differ(
    comm: NativeComm,
    rooted: Callable[[NativeComm, int, int], None],
    nbytes: int,
    then: Callable[[NativeComm, int], None],
    note: str,
) -> None:
    """The last rank takes itself for the root, all others rank 0."""
    own = comm.rank if comm.rank == comm.size - 1 else 0
    with pytest.raises(errors.Exception) as caught:
        rooted(comm, nbytes, own)
        for _ in range(100):
            then(comm, own)
    assert caught.value.Get_error_class() in (errors.ERR_ROOT, errors.ERR_OTHER), str(caught.value)
    Path(note, str(comm.rank)).write_text(f"{caught.value.Get_error_class()}")


@pytest.mark.parametrize("then", [lambda comm, own: collectives.barrier(comm), lambda comm, own: bcast(comm, 8, own)])
@pytest.mark.parametrize("nbytes", [1, LARGE])
@pytest.mark.parametrize("rooted", [bcast, gather, scatter, reduce])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_roots_that_differ(
    size: int,
    rooted: Callable[[NativeComm, int, int], None],
    nbytes: int,
    then: Callable[[NativeComm, int], None],
    tmp_path: Path,
) -> None:
    """Whoever sees it raises ERR_ROOT, at the latest in a later collective; the others find the communicator broken."""
    run_ranks(size, roots_differ, rooted, nbytes, then, str(tmp_path), timeout=5)
    seen = [int((tmp_path / str(rank)).read_text()) for rank in range(size)]
    assert errors.ERR_ROOT in seen


def all_agree(comm: NativeComm) -> None:
    """Ranks that run ahead compare what they called; nothing that is right may look wrong."""
    for step in range(300):
        bcast(comm, step % 3 * 40, step // 50 % comm.size)
        if step % 7 == 0:
            scatter(comm, 100, 0)
        if step % 90 == comm.rank:
            time.sleep(0.005)
    collectives.barrier(comm)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_that_run_ahead_agree(size: int) -> None:
    run_ranks(size, all_agree)


def planned_sizes_differ(comm: NativeComm) -> None:
    data = np.zeros(100, dtype=np.uint8)
    collective = prepare.bcast(comm, data.ctypes.data, 10 if comm.rank == 0 else 20, 0).start()
    if comm.rank == 0:
        collective.wait()
    else:
        raises(errors.ERR_TRUNCATE, collective.wait)


def test_plans_notice_sizes_that_differ() -> None:
    run_ranks(2, planned_sizes_differ)


def start_rooted(comm: NativeComm, name: str, nbytes: int, root: int) -> collectives.Collective:
    """A plan; both buffers are larger than any of them needs."""
    room = np.zeros(2 * nbytes * (comm.size + 1), dtype=np.uint8)
    send, recv = room.ctypes.data, room.ctypes.data + nbytes * (comm.size + 1)
    if name == "reduce":
        started = prepare.reduce(comm, send, recv, nbytes, 1, reductions.address("sum", "u8"), True, root).start()
    elif name == "bcast":
        started = prepare.bcast(comm, send, nbytes, root).start()
    elif name == "gather":
        started = prepare.gather(comm, send, nbytes, recv, root).start()
    else:
        started = prepare.scatter(comm, send, recv, nbytes, root).start()
    started.owner = room
    return started


def planned_roots_differ(comm: NativeComm, name: str, nbytes: int, note: str) -> None:
    """The last rank takes itself for the root, all others rank 0. Who waits finds out then, who does not when it frees the communicator."""
    own = comm.rank if comm.rank == comm.size - 1 else 0
    try:
        start_rooted(comm, name, nbytes, own).wait()
        Path(note, f"done{comm.rank}").touch()
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        comm.engine.idle_wait(lambda: all(Path(note, f"done{rank}").exists() for rank in others), "the others")
        time.sleep(0.05)
        comm.engine.progress()
        wrong = collectives.disagreement(comm)
        if wrong is not None:
            raise wrong
    except errors.Exception as error:
        Path(note, f"done{comm.rank}").touch()
        Path(note, f"error{comm.rank}").write_text(str(error))
        assert error.Get_error_class() in (errors.ERR_ROOT, errors.ERR_OTHER), str(error)


@pytest.mark.parametrize("nbytes", [1, LARGE])
@pytest.mark.parametrize(("name", "size"), [("bcast", 2), ("bcast", 3), ("scatter", 2), ("scatter", 3)])
def test_plans_notice_roots_that_differ(size: int, name: str, nbytes: int, tmp_path: Path) -> None:
    run_ranks(size, planned_roots_differ, name, nbytes, str(tmp_path), timeout=5)
    seen = [path.read_text() for path in tmp_path.glob("error*")]
    named = [text for text in seen if f"called {name} with root" in text]
    assert named, seen


def planned_roots_wait(comm: NativeComm, raised: Signals) -> None:
    """Two roots of a gather hear nothing of each other, and the deadline says what either waits for."""
    collectives.barrier(comm)
    message = raises(errors.ERR_PENDING, start_rooted(comm, "gather", 8, comm.rank).wait)
    assert re.search(r"rank 0: in gather with root 0, .*, for .*(?s:.*)rank 1: in gather with root 1, .*, for ", message), message
    raised.give(comm.rank)
    raised.wait(1 - comm.rank)


def test_the_deadline_names_roots_that_differ() -> None:
    run_ranks(2, planned_roots_wait, Signals(2), timeout=2)


def planned_kinds_differ(comm: NativeComm) -> None:
    if comm.rank == 0:
        message = raises(errors.ERR_OTHER, prepare.barrier(comm).start().wait)
        assert "called barrier with root 0, but rank 1 of the communicator called bcast with root 1" in message
        raises(errors.ERR_OTHER, lambda: prepare.barrier(comm).start())
    else:
        start_rooted(comm, "bcast", 8, 1).wait()


def test_plans_notice_collectives_that_differ() -> None:
    run_ranks(2, planned_kinds_differ)


def one_dies(comm: NativeComm, work: Callable[[NativeComm], None]) -> None:
    collectives.barrier(comm)
    if comm.rank == 1:
        time.sleep(0.1)
        comm.engine.arena.declare_dead(1)
        return
    start = time.monotonic()
    message = raises(errors.ERR_PROC_FAILED, lambda: work(comm))
    assert "rank 1 died" in message and time.monotonic() - start < 2


def wait_for_plan(comm: NativeComm) -> None:
    data = np.zeros(LARGE, dtype=np.uint8)
    prepare.alltoall(comm, 0, data.ctypes.data, LARGE // comm.size).start().wait()


def wait_for_neighbors(comm: NativeComm) -> None:
    """Of a circle; what goes to the left comes from the right."""
    edges = ((comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size)
    sent, received = np.zeros(2 * LARGE, dtype=np.uint8), np.zeros(2 * LARGE, dtype=np.uint8)
    blocks = [LARGE, LARGE], [0, LARGE]
    neighborhood = collectives.Neighborhood(edges, edges, (1, 0))
    collectives.neighbor_alltoall(comm, neighborhood, sent.ctypes.data, *blocks, received.ctypes.data, *blocks)


@pytest.mark.parametrize("work", [collectives.barrier, lambda comm: allreduce(comm, LARGE), wait_for_plan, wait_for_neighbors])
def test_a_dead_rank_is_named(work: Callable[[NativeComm], None]) -> None:
    run_ranks(3, one_dies, work)


@kernel("void(int64)", is_entry=True)
def refuse(comm):  # type: ignore[no-untyped-def]
    give_up(comm, REFUSED)


def one_is_refused(comm: NativeComm) -> None:
    """Rank 1 dies; what rank 2 copies from it is refused before anybody is told, and rank 0 hears of that alone."""
    collectives.barrier(comm)
    if comm.rank == 1:
        time.sleep(0.2)
        comm.engine.arena.declare_dead(1)
    elif comm.rank == 2:
        entry(refuse)(comm.address)
    else:
        assert "rank 1 died" in raises(errors.ERR_PROC_FAILED, lambda: collectives.barrier(comm))


def test_a_copy_refused_elsewhere_is_a_death_that_is_noticed_soon() -> None:
    run_ranks(3, one_is_refused)


def one_is_late(comm: NativeComm, work: Callable[[NativeComm], None], raised: Signals) -> None:
    if comm.rank == 0:
        message = raises(errors.ERR_PENDING, lambda: work(comm))
        assert "NCCLX_MPI_TIMEOUT" in message
        raised.give()
    else:
        raised.wait()


@pytest.mark.parametrize("work", [collectives.barrier, lambda comm: allreduce(comm, LARGE), wait_for_plan, wait_for_neighbors])
def test_the_deadline_ends_a_wait(work: Callable[[NativeComm], None]) -> None:
    run_ranks(2, one_is_late, work, Signals(), timeout=0.5)


def interrupted(comm: NativeComm, work: Callable[[NativeComm], None], with_slot: bool, raised: Signals) -> None:
    if comm.rank == 0:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT)).start()
            work(comm)
        assert time.monotonic() - start < 3
        raised.give()
        raises(errors.ERR_OTHER, lambda: collectives.barrier(comm))
    elif with_slot:
        raised.wait()
        with pytest.raises(errors.Exception, match="Make a new communicator"):
            work(comm)  # a barrier that rank 0 had entered may still complete, the next one cannot
            work(comm)


@pytest.mark.parametrize("work", [collectives.barrier, lambda comm: allreduce(comm, LARGE)])
def test_an_interrupt_ends_the_wait_and_wakes_the_others(work: Callable[[NativeComm], None]) -> None:
    run_ranks(2, interrupted, work, True, Signals())


@pytest.mark.parametrize("work", [collectives.barrier, wait_for_plan, wait_for_neighbors])
def test_an_interrupt_ends_a_plan(work: Callable[[NativeComm], None]) -> None:
    run_ranks(2, interrupted, work, False, Signals(), with_slot=False)


def handler_returns(comm: NativeComm, handled: Signals) -> None:
    signal.signal(signal.SIGUSR1, lambda *args: handled.give())
    if comm.rank == 0:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        handled.wait()  # rank 0 handles it in its barrier, which cannot end before
    collectives.barrier(comm)


def test_a_handler_that_returns_does_not_end_the_wait() -> None:
    run_ranks(2, handler_returns, Signals())


@ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
def concatenate(out: int, low: int, high: int, count: int) -> None:
    """A Python operation, not commutative: digits of `low`, then digits of `high`."""
    words = [(ctypes.c_int64 * count).from_address(address) for address in (out, low, high)]
    for index in range(count):
        words[0][index] = words[1][index] * 10 + words[2][index]


def python_operation(comm: NativeComm, count: int) -> None:
    fn = ctypes.cast(concatenate, ctypes.c_void_p).value or 0
    wanted = int("".join(str(rank + 1) for rank in range(comm.size)))
    for planned in (False, True):
        data = np.full(count, comm.rank + 1)
        if planned:
            prepare.allreduce(comm, 0, data.ctypes.data, count, 8, fn, False).start().wait()
        else:
            collectives.allreduce(comm, 0, data.ctypes.data, count, 8, fn, False)
        assert (data == wanted).all()


@pytest.mark.parametrize("count", [1, 10_000])
@pytest.mark.parametrize("size", [2, 3])
def test_an_operation_in_python(size: int, count: int) -> None:
    run_ranks(size, python_operation, count)


def python_operation_with_threads(comm: NativeComm) -> None:
    """Plans whose reductions need the GIL, while another thread computes and a third one makes progress."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    def poll() -> None:
        while not stop.is_set():
            comm.engine.progress()

    threads = [threading.Thread(target=work) for work in (compute, poll)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            python_operation(comm, 100)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_operation_in_python_beside_threads() -> None:
    run_ranks(2, python_operation_with_threads)

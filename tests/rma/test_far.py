"""What only windows to ranks without shared memory can do wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.api import test_window

ALONE, PAIRS = "nolocal", "vnode:2"
MIB = 1 << 20


@contextmanager
def window(comm: Any, nbytes: int) -> Iterator[tuple[Any, Any]]:
    """A window of bytes, and this rank's memory, all zero."""
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(nbytes, comm=comm)
    memory = np.frombuffer(win.tomemory(), np.uint8)
    memory[:] = 0
    comm.Barrier()
    yield win, memory
    win.Free()


@contextmanager
def unserved() -> Iterator[None]:
    """Leave requests to this rank alone meanwhile."""
    with only_compiled(), only_the_thread():
        yield


@contextmanager
def only_compiled() -> Iterator[None]:
    """Leave requests to this rank alone that compiled code does not serve."""
    from ncclx_mpi.rma.service import _service

    with _service._serving:
        yield


@contextmanager
def only_the_thread() -> Iterator[None]:
    """Have no compiled code serve requests to this rank."""
    from ncclx_mpi.rma.service import _service

    servings = _service._servings
    for serving in servings:
        serving.words.set("is_open", 0)
    try:
        yield
    finally:
        for serving in servings:
            serving.words.set("is_open", 1)


def has_thread() -> bool:
    return any(thread.name == "ncclx_mpi-windows" for thread in threading.enumerate())


@pytest.mark.ranks(2, topology=ALONE)
def test_a_failure_of_the_thread_is_told_and_it_goes_on(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncclx_mpi.rma import service
    from ncclx_mpi.rma.serving import Serving

    told: list[str] = []
    step, failures = Serving.step, iter([True, True])

    def fail_twice(self: Serving) -> bool:
        if next(failures, False):
            raise MemoryError("planted")
        return step(self)

    monkeypatch.setattr(service, "report_exception", told.append)
    with window(comm, 8) as (win, memory):
        monkeypatch.setattr(Serving, "step", fail_twice)
        win.Fence()
        win.Put(bytes([comm.rank + 1]), 1 - comm.rank)
        win.Fence()
        end = time.monotonic() + 60
        while len(told) < 2 and time.monotonic() < end:  # a step that had begun before may have served the Put
            time.sleep(0.001)
        assert memory[0] == 2 - comm.rank and len(told) == 2 and "serves windows failed" in told[0]


@pytest.mark.ranks(3, topology=PAIRS)
def test_near_locks_come_back_when_a_far_one_fails(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 share a node; rank 0 fails to unlock rank 2, and rank 1 is not kept out."""
    from ncclx_mpi.rma.far import Far

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with window(comm, 8) as (win, _):
        if comm.rank == 0:
            win.Lock_all()
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(Far, "start_end", fail)
                win.Unlock_all()
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(Far, "ask_for_lock", fail)
                win.Lock_all()
        comm.Barrier()
        if comm.rank == 1:
            win.Lock(0)
            win.Unlock(0)
            win.Lock(2)
            win.Unlock(2)
        comm.Barrier()


@pytest.mark.parametrize("kind", [test_window.ALLOCATED, test_window.PRIVATE])
@pytest.mark.ranks(3, 4, topology=PAIRS)
def test_near_and_far_origins_are_atomic_together(comm: Any, kind: str) -> None:
    test_window.test_accumulations_are_atomic_under_shared_locks(comm, kind)
    test_window.test_an_exclusive_lock_keeps_increments_apart(comm, kind)


@pytest.mark.parametrize("kind", [test_window.ARENA, test_window.PRIVATE])
@pytest.mark.ranks(4, topology=PAIRS)
def test_near_and_far_targets_in_one_epoch(comm: Any, kind: str) -> None:
    test_window.test_put_and_get_among_all_pairs(comm, kind)
    test_window.test_epochs_among_neighbours(comm, kind)


@pytest.mark.ranks(2, timeout=60, topology=ALONE)
def test_every_operation_on_every_type(comm: Any) -> None:
    """What is left at the target, and what is fetched, is what Reduce_local computes here."""
    from ncclx_mpi import MPI
    from ncclx_mpi.buffers.named import LAYOUTS
    from numba_kernels import reduce

    peer, count, tried = 1 - comm.rank, 3, 0
    mine, theirs = (np.random.default_rng(seed).integers(0, 3, 32 * count, np.uint8) for seed in (1, 2))
    padding = np.arange(32 * count) % 16 >= 10  # of a long double: anything may be left there
    with window(comm, 32 * count) as (win, memory):
        win.Lock_all()
        for name, layout in LAYOUTS.items():
            datatype, nbytes = getattr(MPI, name), count * layout.size
            for op in (MPI.MAX, MPI.MIN, MPI.SUM, MPI.PROD, MPI.LAND, MPI.LOR, MPI.BXOR, MPI.MAXLOC, MPI.REPLACE, MPI.NO_OP):
                if layout.kind is None or not reduce.defined(_name(op), layout.kind):
                    continue
                expected, before = theirs.copy(), np.full(32 * count, 9, np.uint8)
                if op != MPI.NO_OP:
                    op.Reduce_local([mine, count, datatype], [expected, count, datatype])
                win.Put(theirs, peer)
                win.Get_accumulate([mine, count, datatype], [before, count, datatype], peer, [0, count, datatype], op)
                found = np.zeros(32 * count, np.uint8)
                win.Get(found, peer)
                if layout.kind in ("f80", "c160", "f80,i32"):
                    found[padding] = expected[padding] = 0
                assert found.tolist() == expected.tolist(), (name, _name(op))
                if layout.contiguous:
                    assert before[:nbytes].tolist() == theirs[:nbytes].tolist()
                    assert (before[nbytes:] == 9).all()
                tried += 1
        win.Unlock_all()
    assert tried > 200


def _name(op: Any) -> str:
    return str(op._state.name).lower()


@pytest.mark.ranks(2, 3, topology=ALONE)
def test_large_accesses_go_in_parts(comm: Any) -> None:
    """Contiguous and scattered, more bytes than are under way at one time; a layout of more blocks than one request lists."""
    from ncclx_mpi import MPI

    nbytes, peer = 40 * MIB + 5, (comm.rank + 1) % comm.size
    data = np.arange(nbytes // 2, dtype=np.uint32).view(np.uint8)[:nbytes] + np.uint8(comm.rank)
    holes = MPI.UINT8_T.Create_vector(nbytes // 3, 2, 3).Commit()
    with window(comm, nbytes) as (win, memory):
        win.Fence()
        win.Put(data, peer)
        win.Fence()
        assert (memory == data - np.uint8(comm.rank) + np.uint8((comm.rank - 1) % comm.size)).all()
        found = np.zeros(nbytes, np.uint8)
        win.Get(found, peer)
        assert (found == data).all()
        win.Fence()
        memory[:] = 1
        comm.Barrier()
        win.Accumulate([data, 1, holes], peer, [0, 1, holes])
        win.Fence()
        expected = np.ones(nbytes, np.uint8)
        ours = data - np.uint8(comm.rank) + np.uint8((comm.rank - 1) % comm.size)
        used = nbytes // 3 * 3 - 1
        for first in (0, 1):
            expected[first:used:3] += ours[first:used:3]
        assert (memory == expected).all()
        win.Fence()


@pytest.mark.ranks(2, topology=ALONE)
def test_a_request_of_a_get_is_complete_when_it_says_so(comm: Any) -> None:
    from ncclx_mpi import MPI

    column = MPI.INT.Create_vector(4, 1, 2).Commit()
    with window(comm, 64) as (win, memory):
        memory[:] = np.arange(4, dtype=np.int32).repeat(4).view(np.uint8) + np.uint8(comm.rank)
        win.Fence()
        with unserved():
            comm.Barrier()
            first, second = np.full(8, -1, np.int32), np.full(4, -1, np.int32)
            requests = [win.Rget([first, 1, column], 1 - comm.rank, [0, 4, MPI.INT]), win.Rget(second, 1 - comm.rank)]
            assert not any(request.Test() for request in requests)
            assert first.tolist() == [-1] * 8
            comm.Barrier()
        assert MPI.Request.Waitall(requests)
        held = (np.zeros(16, np.uint8) + np.uint8(1 - comm.rank)).view(np.int32)
        assert first.tolist() == [held[0] if at % 2 == 0 else -1 for at in range(8)]
        assert second.tolist() == held.tolist()
        win.Fence()


@pytest.mark.parametrize("end", ["Fence", "Flush", "Unlock", "Flush_local_all"])
@pytest.mark.ranks(2, topology=ALONE)
def test_synchronisation_completes_what_was_not_waited_for(comm: Any, end: str) -> None:
    from ncclx_mpi import MPI

    peer, count = 1 - comm.rank, 3 * MIB // 8
    spread = MPI.INT64_T.Create_vector(count, 1, 2).Commit()
    with window(comm, 8 * count) as (win, memory):
        memory.view(np.int64)[:] = np.arange(count) + comm.rank
        found = np.full(2 * count, -1)
        win.Fence(0 if end == "Fence" else MPI.MODE_NOSUCCEED)
        if end != "Fence":
            win.Lock(peer)
        request = win.Rget([found, 1, spread], peer, [0, count, MPI.INT64_T])
        getattr(win, end)(*([peer] if end in ("Flush", "Unlock") else []))
        assert (found[::2] == np.arange(count) + peer).all() and (found[1::2] == -1).all()
        request.Wait()
        if end in ("Flush", "Flush_local_all"):
            win.Unlock(peer)
        comm.Barrier()


@pytest.mark.ranks(2, topology=ALONE)
def test_flush_and_complete_wait_for_the_target(comm: Any) -> None:
    with window(comm, 8) as (win, memory):
        if comm.rank == 1:
            with unserved():
                comm.Barrier()
                time.sleep(0.2)
                assert not memory.any()
        else:
            comm.Barrier()
            win.Lock(1)
            win.Put(b"\x05", 1)
            win.Flush(1)
        comm.Barrier()
        assert memory[0] == (5 if comm.rank == 1 else 0)
        if comm.rank == 0:
            win.Unlock(1)
        group = comm.Get_group()
        if comm.rank == 1:
            with unserved():  # before it begins, or a put that comes at once is served
                win.Post(group.Incl([0]))
                time.sleep(0.1)
                assert not win.Test() and memory[1] == 0
            win.Wait()
            assert memory[1] == 6
        else:
            win.Start(group.Incl([1]))
            win.Put(b"\x06", 1, 1)
            win.Complete()


@pytest.mark.ranks(2, topology=ALONE)
def test_what_an_access_takes_is_the_program_s_again(comm: Any) -> None:
    from ncclx_mpi import MPI

    with window(comm, 8 * MIB) as (win, memory):
        win.Fence()
        with unserved():
            comm.Barrier()
            data = np.full(4 * MIB, 1, np.uint8)
            win.Put(data, 1 - comm.rank)
            data[:] = 2
            win.Rput(data, 1 - comm.rank, 4 * MIB).Wait()
            data[:] = 3
            win.Raccumulate(data, 1 - comm.rank, [4 * MIB, 4 * MIB], MPI.SUM).Wait()
            data[:] = 4
            comm.Barrier()
        win.Fence()
        assert (memory[: 4 * MIB] == 1).all() and (memory[4 * MIB :] == 5).all()


@pytest.mark.ranks(2, topology=ALONE)
def test_small_requests_need_no_thread(comm: Any) -> None:
    """The target is in a barrier, and its thread is kept from serving."""
    from ncclx_mpi import MPI

    with window(comm, 64) as (win, memory):
        one, held = np.ones(1, np.int64), np.zeros(1, np.int64)
        if comm.rank == 0:
            win.Lock(1)
            for op in (MPI.SUM, MPI.MAX):  # the thread learns of a reduction when it is first asked for
                win.Fetch_and_op(one, held, 1, 8, op)
            win.Unlock(1)
        comm.Barrier()
        if comm.rank == 1:
            memory[:] = 0
            with only_compiled():
                comm.Barrier()
                comm.Barrier()
            assert memory.view(np.int64).tolist() == [5, 3, 9, 1, 7, 0, 0, 0]
        else:
            comm.Barrier()
            for _ in range(3):
                win.Lock(1)
                win.Fetch_and_op(one, held, 1, 8)
                win.Unlock(1)
            assert held[0] == 2
            win.Lock(1, MPI.LOCK_SHARED)
            win.Put(one * 5, 1)
            win.Flush(1)
            win.Accumulate(one, 1, 16)
            win.Accumulate(one * 9, 1, 16, MPI.MAX)
            win.Compare_and_swap(one, one * 0, held, 1, 24)
            assert held[0] == 0
            win.Compare_and_swap(one * 2, one * 0, held, 1, 24)
            assert held[0] == 1
            win.Get_accumulate(one * 7, held, 1, 32, MPI.REPLACE)
            assert held[0] == 0
            win.Get_accumulate(one, held, 1, 32, MPI.NO_OP)
            assert held[0] == 7
            win.Get(held, 1, 16)
            assert held[0] == 9
            win.Unlock(1)
            comm.Barrier()
        comm.Barrier()


@pytest.mark.ranks(2, topology=ALONE)
def test_what_compiled_code_serves_does_not_overtake(comm: Any) -> None:
    """Large and scattered accesses, which are the thread's, and small ones change the same elements."""
    from ncclx_mpi import MPI

    count = MIB // 8
    column = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    with window(comm, 8 * count) as (win, memory):
        words, one, found = np.arange(count), np.ones(1, np.int64), np.zeros(1, np.int64)
        win.Fence()
        if comm.rank == 0:
            for turn in range(50):
                win.Put(words, 1)
                win.Accumulate(one, 1)
                win.Put([words[1:3], 2, MPI.INT64_T], 1, [0, 1, column])
                win.Accumulate(one, 1)
                win.Put(np.full(1, turn), 1, 8)
                win.Get(found, 1)
                assert found[0] == 2
                win.Get(found, 1, 8)
                assert found[0] == turn
        win.Fence()
        assert memory.view(np.int64)[:3].tolist() == ([2, 49, 2] if comm.rank else [0, 0, 0])
        win.Fence()


@pytest.mark.ranks(3, topology=ALONE)
def test_an_exclusive_lock_goes_from_one_far_origin_to_the_next(comm: Any) -> None:
    """One has the lock by compiled code, the other waits for it in the thread, again and again; nobody is kept out for good."""
    with window(comm, 8) as (win, memory):
        found, turns = np.zeros(1, np.int64), 100
        if comm.rank:
            for _ in range(turns):
                win.Lock(0)
                win.Get(found, 0)
                win.Put(found + 1, 0)
                win.Unlock(0)
        comm.Barrier()
        assert memory.view(np.int64)[0] == (0 if comm.rank else 2 * turns)


@pytest.mark.ranks(2, topology=ALONE)
def test_a_target_serves_while_it_computes(comm: Any) -> None:
    with window(comm, 8) as (win, memory):
        if comm.rank == 0:
            win.Lock(1)
            win.Put(b"\x07", 1)
            win.Unlock(1)
        else:
            end = time.monotonic() + 20
            while memory[0] != 7 and time.monotonic() < end:
                sum(range(1000))
            assert memory[0] == 7
        comm.Barrier()


@pytest.mark.ranks(3, topology=ALONE)
def test_lock_all_holds_nothing_while_it_waits(comm: Any) -> None:
    """Rank 1 holds one lock and takes another one, though rank 0 wants both."""
    with window(comm, 8) as (win, memory):
        if comm.rank == 1:
            win.Lock(2)
            comm.Barrier()
            time.sleep(0.1)
            win.Lock(0)
            win.Put(b"\x01", 2)
            win.Unlock(0)
            win.Unlock(2)
        elif comm.rank == 0:
            comm.Barrier()
            win.Lock_all()
            found = bytearray(1)
            win.Get(found, 2)
            assert found[0] == 1
            win.Unlock_all()
        else:
            comm.Barrier()
        comm.Barrier()


@pytest.mark.ranks(2, topology=ALONE)
def test_an_interrupted_get_leaves_the_window_usable(comm: Any) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with window(comm, MIB) as (win, memory):
        memory[:] = 1
        win.Fence()
        if comm.rank == 1:
            with unserved():
                comm.Barrier()
                comm.Barrier()
        else:
            comm.Barrier()
            found = np.zeros(MIB, np.uint8)
            signal.signal(signal.SIGALRM, interrupt)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                win.Get(found, 1)
            comm.Barrier()
            again = np.zeros(MIB, np.uint8)
            win.Get(again, 1)
            assert again.all() and not found.any()
        win.Fence()


@pytest.mark.ranks(2, topology=ALONE)
def test_a_target_that_fails_to_serve_tells_the_origin(comm: Any) -> None:
    from ncclx_mpi import MPI

    with window(comm, 8) as (win, memory):
        if comm.rank == 1:
            near = win._state.window.target(1)

            def refuse(*args: Any) -> None:
                raise MemoryError("no memory for this")

            kept = near.write, near.read
            near.write = near.read = refuse
            with only_the_thread():
                comm.Barrier()
                comm.Barrier()
                near.write, near.read = kept
                comm.Barrier()
        else:
            comm.Barrier()
            win.Lock(1)
            win.Put(b"x", 1)
            with pytest.raises(MPI.Exception, match="rank 1"):
                win.Flush(1)
            with pytest.raises(MPI.Exception, match="stderr of rank 1"):
                win.Get(bytearray(1), 1)
            win.Put(b"y", 1)
            with pytest.raises(MPI.Exception, match="stderr of rank 1"):
                win.Flush(1)
            comm.Barrier()
            comm.Barrier()
            win.Put(b"z", 1)
            win.Unlock(1)
        comm.Barrier()


@pytest.mark.parametrize("end", ["Fence", "Flush_all"])
@pytest.mark.ranks(4, topology=ALONE)
def test_what_ends_accesses_to_all_targets_waits_for_each(comm: Any, end: str) -> None:
    """All put to all, some of it compiled code's and some the thread's; then one of the targets fails, and its origin is told which."""
    from ncclx_mpi import MPI

    with window(comm, 8 * comm.size) as (win, memory):
        words, ranks = memory.view(np.int64), range(comm.size)
        if end == "Fence":
            win.Fence()
        else:
            win.Lock_all()
        for turn in range(20):
            for rank in ranks:
                win.Put(np.full(1, 100 * turn + comm.rank), rank, 8 * comm.rank)
            getattr(win, end)()
            comm.Barrier()
            assert words.tolist() == [100 * turn + rank for rank in ranks]
            comm.Barrier()
        near = win._state.window.target(comm.rank)
        kept, failing = near.write, comm.size - 1

        def refuse(*args: Any) -> None:
            raise MemoryError("no memory for this")

        with only_the_thread():
            near.write = refuse if comm.rank == failing else kept
            comm.Barrier()
            for rank in ranks:
                if comm.rank == 0:
                    win.Put(np.full(1, 7), rank)
            if comm.rank == 0:
                with pytest.raises(MPI.Exception, match=f"stderr of rank {failing}"):
                    getattr(win, end)()
            comm.Barrier()
            near.write = kept
        if end == "Fence":
            win.Fence(MPI.MODE_NOSUCCEED)
        else:
            win.Unlock_all()
        comm.Barrier()
        assert words[0] == (1900 if comm.rank == failing else 7)


@pytest.mark.ranks(2, 4, topology=PAIRS)
def test_windows_of_near_ranks_have_no_thread(comm: Any) -> None:
    from ncclx_mpi import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    near = MPI.Win.Allocate(8, comm=node)
    assert not has_thread()
    with window(comm, 8), window(comm, 8):
        assert has_thread() == (comm.size > 2)
    assert not has_thread()
    near.Free()


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("win.Lock_all()", "win.Get(np.zeros(8, 'u1'), 1)"),
        ("win.Lock_all()", "win.Put(np.zeros(8, 'u1'), 1); win.Flush(1)"),
        ("win.Lock_all()", "win.Fetch_and_op(b'1', bytearray(1), 1)"),
        ("win.Lock_all()", "win.Rget(np.zeros(8, 'u1'), 1).Wait()"),
        ("win.Lock_all()", "win.Put(np.zeros(1 << 26, 'u1'), 1); win.Flush(1)"),
        ("win.Lock_all()", "win.Unlock_all(); win.Lock_all()"),
        ("comm.rank and win.Lock(1)", "win.Lock(1)"),
        ("comm.rank and win.Lock(1)", "win.Lock_all()"),
        ("win.Fence()", "win.Put(b'1', 1); win.Fence()"),
    ],
)
def test_the_death_of_a_target_is_told(before: str, call: str) -> None:
    code = (
        "import os, numpy as np; from ncclx_mpi import MPI; comm = MPI.COMM_WORLD\n"
        "win = MPI.Win.Allocate(1 << 26, comm=comm)\n"
        f"{before}; comm.Barrier()\n"
        "if comm.rank: os.kill(os.getpid(), 9)\n"
        "try:\n"
        f"    while True: {call}\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PROC_FAILED, error)\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", code]
    nodes = {**os.environ, "NCCLX_MPI_TOPOLOGY": ALONE}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=nodes)
    assert done.stdout.startswith("True") and "rank 1 died" in done.stdout, done.stdout + done.stderr
    assert ("Win.Lock of rank 1" if call == "win.Lock(1)" else "") in done.stdout

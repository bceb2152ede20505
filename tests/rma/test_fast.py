"""Calls on windows that never leave compiled code: they do what the general way does, and leave to it what is not usual or not valid."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

COUNT = 64


KINDS = pytest.mark.parametrize("kind", ["arena", "private"])


def make(comm: Any, kind: str) -> tuple[Any, Any]:
    """A window of `COUNT` words on each rank, and this rank's; private memory of others is known to be theirs."""
    from ncclx_mpi import MPI

    if kind == "arena":
        win = MPI.Win.Allocate(8 * COUNT, 8, comm=comm)
        memory = np.frombuffer(win.tomemory(), np.int64)
    else:
        memory = np.zeros(COUNT, np.int64)
        win = MPI.Win.Create(memory, 8, comm=comm)
    win.Fence()
    for rank in range(comm.size):
        win.Get(np.zeros(1, np.int64), rank)
    win.Fence()
    return win, memory


def epoch(win: Any, memory: Any, value: Any) -> None:
    """Set this rank's memory, and open an epoch for all."""
    win.Fence()
    memory[:] = value
    win.Fence()


SPECS = [None, 3, [5], (7, 2), [4, 16, "BYTE"], [0, 2, "INT64_T"]]


def named(spec: Any) -> Any:
    """A target with the datatype that its last item names."""
    from ncclx_mpi import MPI

    return [*spec[:2], getattr(MPI, spec[2])] if isinstance(spec, list) and len(spec) == 3 else spec


@KINDS
@pytest.mark.ranks(1, 2)
def test_copies_are_those_of_the_general_way(comm: Any, kind: str) -> None:
    from ncclx_mpi.api import fast_windows

    win, memory = make(comm, kind)
    target, data = comm.size - 1 - comm.rank, np.array([11, 12]) + 100 * comm.rank
    for spec in map(named, SPECS):
        epoch(win, memory, -1)
        assert fast_windows.put(win._state.address, data, target, spec) == 0
        win.Fence()
        found, seen = memory.copy(), np.zeros(2, np.int64)
        epoch(win, memory, -1)
        win._put(data, target, spec)
        win.Fence()
        assert found.tolist() == memory.tolist() and (found != -1).sum() == 2
        assert fast_windows.get(win._state.address, seen, target, spec) == 0
        assert seen.tolist() == data.tolist()
    win.Fence()
    win.Free()


TYPES = "bBhHiIlLqQfd"
OPERATIONS = "SUM PROD MAX MIN REPLACE BAND BXOR LOR NO_OP"


def defined(operation: str, code: str) -> bool:
    return not (code in "fd" and operation in ("BAND", "BXOR", "LOR"))


@KINDS
@pytest.mark.ranks(1, 2)
def test_accumulations_are_those_of_the_general_way(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast, fast_windows

    win, memory = make(comm, kind)
    target, address = comm.size - 1 - comm.rank, win._state.address
    for code, operation in itertools.product(TYPES, OPERATIONS.split()):
        if not defined(operation, code):
            continue
        op, one, many = getattr(MPI, operation), np.full(1, 3, code), np.array([1, 2, 3, 4], code)
        results: dict[bool, list[Any]] = {}
        for is_fast in (False, True):
            epoch(win, memory, 0x0102)
            held, element = np.zeros(4, code), np.zeros(1, code)
            if is_fast:
                table = fast.table_of(op)
                assert fast_windows.get_accumulate(address, many, held, target, 0, table) == 0
                assert fast_windows.fetch_and_op(address, one, element, target, 8, table) == 0
                assert fast_windows.accumulate(address, many, target, [16], table) == (-1 if operation == "NO_OP" else 0)
            else:
                win._fetch(target, *win._place(target, 0, placed(many)), op, placed(many), placed(held, True))
                win._fetch_and_op(one, element, target, 8, op)
                win._accumulate(many, target, [16], op)
            win.Fence()
            results[is_fast] = [memory.tolist(), held.tolist(), element.tolist()]
        assert results[False] == results[True], (code, operation)
    win.Free()


def placed(array: Any, is_result: bool = False) -> Any:
    from ncclx_mpi import arguments

    return arguments.recv(array) if is_result else arguments.send(array)


@KINDS
@pytest.mark.ranks(1, 2)
def test_compare_and_swap_is_that_of_the_general_way(comm: Any, kind: str) -> None:
    from ncclx_mpi.api import fast_windows

    win, memory = make(comm, kind)
    target = comm.size - 1 - comm.rank
    for code, expected in itertools.product("bhiq", (5, 6)):
        for is_fast in (False, True):
            epoch(win, memory, 0)
            memory.view(code)[1] = 5
            win.Fence()
            new, compare, held = (np.array([value], code) for value in (9, expected, 0))
            where = 1 if code == "q" else 0
            memory_is = 5 if code == "q" else 0
            if is_fast:
                assert fast_windows.compare_and_swap(win._state.address, new, compare, held, target, where) == 0
            else:
                win._compare_and_swap(new, compare, held, target, where)
            win.Fence()
            assert held[0] == memory_is
            assert memory.view(code)[where] == (9 if expected == memory_is else memory_is)
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2)
def test_what_is_not_usual_is_left_alone(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast, fast_windows, op

    win, memory = make(comm, kind)
    address, target, data, frozen = win._state.address, comm.size - 1, np.ones(4, np.int64), np.ones(4, np.int64)
    frozen.flags.writeable = False
    total = fast.table_of(MPI.SUM)
    op.native(MPI.SUM, MPI.INT64_T)
    epoch(win, memory, -1)
    strangers = (comm.size, -1, -5, MPI.PROC_NULL, comm.size + 0.5, float("nan"), None, True, 1 << 70)
    places = (
        COUNT - 3,
        -1,
        1 << 62,
        1 << 70,
        1.0,
        True,
        [],
        [0, 3],
        [0, 4, MPI.INT],
        [0, 4, MPI.INT64_T, 0],
        {},
        "0",
        [None],
        [0, -4],
    )
    arrays = (
        data[::2],
        data.astype(">i8"),
        "text",
        None,
        [data, 5],
        [data, -1, MPI.INT64_T],
        [data, 4, 1, MPI.INT64_T],
        np.array(["x"]),
    )
    tries = [(data, rank, None) for rank in strangers] + [(data, target, place) for place in places]
    for origin, rank, place in [*tries, *((array, target, None) for array in arrays)]:
        assert fast_windows.put(address, origin, rank, place) == -1
        assert fast_windows.get(address, origin, rank, place) == -1
        assert fast_windows.accumulate(address, origin, rank, place, total) == -1
        assert fast_windows.get_accumulate(address, origin, data, rank, place, total) == -1
        assert fast_windows.fetch_and_op(address, origin, data, rank, 0, total) == -1
        assert fast_windows.compare_and_swap(address, origin, data, data, rank, 0) == -1
    assert fast_windows.get(address, frozen, target, None) == -1
    assert fast_windows.get_accumulate(address, data, frozen, target, None, total) == -1
    assert fast_windows.accumulate(address, data, target, [0, 32, MPI.BYTE], total) == -1
    odd = np.zeros(9, np.uint8)[1:]
    assert fast_windows.accumulate(address, [odd, MPI.INT64_T], target, 0, total) == -1
    one, wrong = data[:1], np.ones(1, np.int32)
    assert fast_windows.fetch_and_op(address, one, wrong, target, 0, total) == -1
    assert fast_windows.compare_and_swap(address, one, wrong, one, target, 0) == -1
    for assertion in (1, 1 << 20, None, 1.0):
        assert fast_windows.fence(address, assertion) == -1
        assert fast_windows.lock_target(address, target, MPI.LOCK_SHARED, assertion) == -1
        assert fast_windows.lock_all(address, assertion) == -1
    assert fast_windows.lock_target(address, target, 0, 0) == -1
    win.Fence()
    assert (memory == -1).all() and data.tolist() == [1] * 4
    win.Free()


@KINDS
@pytest.mark.ranks(2)
def test_epochs_are_those_that_python_sees(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast_windows

    win, memory = make(comm, kind)
    address, peer, data = win._state.address, 1 - comm.rank, np.ones(1, np.int64)
    win.Fence(MPI.MODE_NOSUCCEED)

    def is_open() -> bool:
        return fast_windows.put(address, data, peer, None) == 0

    assert not is_open()
    win._lock(peer, MPI.LOCK_SHARED, 0)
    assert is_open() and fast_windows.flush(address, peer) == 0 == fast_windows.flush_all(address)
    assert fast_windows.lock_target(address, peer, MPI.LOCK_SHARED, 0) == -1 == fast_windows.lock_all(address, 0)
    assert fast_windows.unlock_target(address, peer) == 0
    assert not is_open() and fast_windows.flush(address, peer) == -1 == fast_windows.flush_all(address)
    assert fast_windows.lock_all(address, MPI.MODE_NOCHECK) == 0
    assert is_open() and fast_windows.lock_all(address, 0) == -1
    win._window.unlock_all()
    assert not is_open() and fast_windows.unlock_all(address) == -1 == fast_windows.unlock_target(address, peer)
    group = comm.Get_group().Incl([peer])
    win.Post(group)
    win.Start(group)
    assert is_open()
    win.Complete()
    assert not is_open()
    win.Wait()
    comm.Barrier()
    win.Free()


@KINDS
@pytest.mark.ranks(2)
def test_both_ways_keep_each_other_out(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, kind)
    rounds, one, before, seen = 300, np.ones(1, np.int64), np.zeros(1, np.int64), []
    win.Lock_all()
    for _ in range(rounds):
        if comm.rank == 0:
            win.Fetch_and_op(one, before, 1, 3)
        else:
            win._fetch_and_op(one, before, 1, 3, MPI.SUM)
        seen.append(int(before[0]))
    win.Unlock_all()
    assert sorted(itertools.chain(*comm.allgather(seen))) == list(range(2 * rounds))
    for turn in range(100):
        (win.Lock if turn % 2 else lambda rank: win._lock(rank, MPI.LOCK_EXCLUSIVE, 0))(0)
        win.Get(before, 0, 5)
        win.Put(before + 1, 0, 5)
        win.Unlock(0)
    comm.Barrier()
    assert comm.rank or memory[5] == 200
    win.Free()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@KINDS
@pytest.mark.ranks(2)
@pytest.mark.usefixtures("switching")
def test_threads_use_one_window(comm: Any, kind: str) -> None:
    win, memory = make(comm, kind)
    wrong: list[Any] = []

    def work(number: int) -> None:
        one, found = np.ones(1, np.int64), np.zeros(8, np.int64)
        for turn in range(200):
            mine = np.full(8, 1000 * number + turn)
            win.Put(mine, 1 - comm.rank, 8 * number)
            win.Get(found, 1 - comm.rank, 8 * number)
            win.Accumulate(one, 1 - comm.rank, 0)
            if found.tolist() != mine.tolist():
                wrong.append(found.tolist())

    win.Lock_all()
    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    win.Unlock_all()
    comm.Barrier()
    assert not wrong and memory[0] == 600
    win.Free()


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("switching")
def test_threads_that_lock_at_a_time_leave_no_lock_behind(comm: Any) -> None:
    """One of them gets the locks that all wait for; the others are told."""
    from ncclx_mpi import MPI

    win, codes, ready = MPI.Win.Allocate(8, comm=comm), [], threading.Barrier(4)

    def lock_all() -> None:
        ready.wait(60)
        try:
            win._window.lock_all()
        except MPI.Exception as error:
            codes.append(error.Get_error_class())

    for _ in range(20):
        if comm.rank:
            win.Lock(0)
        comm.Barrier()
        threads = [threading.Thread(target=lock_all) for _ in range(3)] if comm.rank == 0 else []
        for thread in threads:
            thread.start()
        if comm.rank == 0:
            ready.wait(60)
            time.sleep(0.005)  # all of them wait by now, as a rule
        comm.Barrier()
        if comm.rank:
            win.Unlock(0)
        for thread in threads:
            thread.join()
        if comm.rank == 0:
            win.Unlock_all()
        comm.Barrier()
    assert codes == ([] if comm.rank else [MPI.ERR_RMA_SYNC] * 40)
    win.Lock(0)
    win.Unlock(0)
    win.Free()


@KINDS
@pytest.mark.ranks(2)
@pytest.mark.usefixtures("switching")
def test_a_window_is_freed_while_threads_use_it(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    codes, small, large = [], np.ones(1, np.int64), np.ones(1 << 16, np.int64)
    memory = np.zeros(1 << 16, np.int64)
    win = MPI.Win.Allocate(memory.nbytes, 8, comm=comm) if kind == "arena" else MPI.Win.Create(memory, 8, comm=comm)
    win.Fence()
    begun = threading.Barrier(4)

    def use(data: Any) -> None:
        win.Put(data, 1 - comm.rank)
        begun.wait(60)
        try:
            while True:
                win.Put(data, 1 - comm.rank)
                win.Get(data, 1 - comm.rank)
                win.Accumulate(data, 1 - comm.rank)
        except MPI.Exception as error:
            codes.append(error.Get_error_class())

    threads = [threading.Thread(target=use, args=(data,)) for data in (small, large, large.copy())]
    for thread in threads:
        thread.start()
    begun.wait(60)
    win.Free()
    for thread in threads:
        thread.join()
    assert len(codes) == 3 and set(codes) <= {MPI.ERR_WIN, MPI.ERR_RMA_SYNC}
    comm.Barrier()


@pytest.mark.ranks(1)
def test_what_a_call_reads_outlives_the_window(comm: Any) -> None:
    """Another thread frees it between the look at the handle and the compiled call."""
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast_windows

    win, accumulate = MPI.Win.Allocate(8, comm=comm), fast_windows.accumulate
    words, living = weakref.ref(win._state.window.words), []
    win.Fence()

    def free_and_call(*given: Any) -> int:
        win.Free()
        living.append(words() is not None)
        return accumulate(*given)

    with mock.patch.object(fast_windows, "accumulate", free_and_call), pytest.raises(MPI.Exception) as caught:
        win.Accumulate(np.ones(1, np.int64), 0)
    assert caught.value.Get_error_class() == MPI.ERR_WIN and living == [True]


@pytest.mark.ranks(2)
def test_large_copies_give_the_interpreter_away(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(1 << 20, comm=comm)
    data, found = np.random.default_rng(comm.rank).integers(0, 256, 1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    win.Fence()
    win.Put(data, 1 - comm.rank)
    win.Fence()
    win.Get(found, 1 - comm.rank)
    assert (found == data).all()
    win.Accumulate(data, 1 - comm.rank, op=MPI.BXOR)
    win.Fence()
    assert not np.frombuffer(win.tomemory(), np.uint8).any()
    win.Free()


@pytest.mark.ranks(2)
def test_memory_that_its_rank_has_released_is_no_memory(comm: Any) -> None:
    """What the system refuses is told by the general way, and nothing is left locked."""
    from ncclx_mpi import MPI

    area = mmap.mmap(-1, 1 << 16)
    win = MPI.Win.Create(area, comm=comm)
    one, held = np.ones(1, np.int64), np.zeros(1, np.int64)
    win.Fence()
    win.Put(one, 1 - comm.rank)
    win.Fence()
    win._window.words.set_of(1 - comm.rank, "base", 4096)  # where nothing is mapped, for the kernel's calls
    calls = (win.Put, (one,)), (win.Get, (held,)), (win.Accumulate, (one,)), (win.Fetch_and_op, (one, held))
    for call, arrays in calls:
        call(*arrays, 1 - comm.rank)
    win.Fence()
    assert held[0] in (2, 3) and int(np.frombuffer(area, np.int64)[0]) == 3
    win.Free()


@pytest.mark.ranks(1, 2)
def test_a_freed_window_has_no_ranks(comm: Any) -> None:
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast_windows

    win = MPI.Win.Allocate(8, comm=comm)
    win.Fence()
    state, address = win._state, win._state.address
    win.Free()
    assert fast_windows.put(address, np.zeros(1), 0, None) == -1 == fast_windows.fence(address, 0)
    assert fast_windows.lock_all(address, 0) == -1 == fast_windows.flush_all(address) == fast_windows.unlock_all(address)
    with pytest.raises(MPI.Exception) as caught:
        state.address  # noqa: B018  (raises)
    assert caught.value.Get_error_class() == MPI.ERR_WIN


@pytest.mark.ranks(1, 2)
def test_a_fork_has_no_windows(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(8, comm=comm)
    one = np.ones(1, np.int64)
    win.Lock_all()
    calls = [
        (win.Put, one, 0), (win.Get, one, 0), (win.Accumulate, one, 0), (win.Fence,), (win.Flush, 0), (win.Flush_all,),
        (win.Unlock_all,), (win.Lock, 0), (win.Unlock, 0),
    ]  # fmt: skip
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call, *given in calls:
                try:
                    call(*given)
                except MPI.Exception:
                    refused += 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    win.Unlock_all()
    win.Free()


ENDS = """
import os, numpy as np
from ncclx_mpi import MPI
comm = MPI.COMM_WORLD
win = MPI.Win.Allocate(8, comm=comm)
one = np.ones(1, np.int64)
win.Lock_all()
{}
"""


def run(body: str, ranks: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(ranks), "-c", ENDS.format(body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_rank_that_dies_in_an_accumulation_blocks_nobody() -> None:
    """It dies with the guard in its hands, which nobody gives back."""
    done = run(
        "import ctypes\n"
        "guard = ctypes.c_int64.from_address(win._window._word(0, 64))\n"
        "comm.Barrier()\n"
        "if comm.rank:\n"
        "    guard.value = -2\n"
        "    os.kill(os.getpid(), 9)\n"
        "while guard.value != -2: pass\n"
        "try: win.Accumulate(one, 0)\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PROC_FAILED, error)\n",
        2,
    )
    assert done.stdout.startswith("True") and "an accumulation at rank 0" in done.stdout, done.stderr


def test_after_finalize_there_are_no_windows() -> None:
    done = run(
        "MPI.Finalize()\n"
        "for call, given in ((win.Put, (one, 0)), (win.Fence, ()), (win.Unlock_all, ())):\n"
        "    try: call(*given)\n"
        "    except MPI.Exception as error: print('finalized' in str(error))\n",
        1,
    )
    assert done.stdout.split() == ["True"] * 3, done.stderr

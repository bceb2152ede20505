"""Epochs among some ranks: whoever takes part, in whatever order they come, and what they are told when one is not there."""

from __future__ import annotations

import os
import random
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

from ncclx_mpi.testing import twins

PAIRS, ALONE = "vnode:2", "nolocal"
Edges = list[set[tuple[int, int]]]
"""For each turn the pairs of an origin and a target."""


@contextmanager
def window(comm: Any) -> Iterator[tuple[Any, Any]]:
    """A window of a word for each rank on each rank, and this rank's, all -1."""
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(8 * comm.size, 8, comm=comm)
    memory = np.frombuffer(win.tomemory(), np.int64)
    memory[:] = -1
    comm.Barrier()
    yield win, memory
    win.Free()


def drawn(size: int, turns: int) -> Edges:
    """Pairs of ranks as a seed draws them, the same on all ranks."""
    choice = random.Random(size)
    pairs = [(origin, target) for origin in range(size) for target in range(size)]
    return [set(choice.sample(pairs, choice.randint(0, len(pairs)))) for _ in range(turns)]


def chosen(comm: Any, ranks: list[int]) -> Any:
    return comm.Get_group().Incl(ranks)


def take_part(comm: Any, win: Any, pairs: set[tuple[int, int]], value: int) -> bool:
    """Do this rank's part of a turn; whether it was a target that found out by Test."""
    me = comm.rank
    origins = sorted(origin for origin, target in pairs if target == me)
    targets = sorted((target for origin, target in pairs if origin == me), reverse=True)
    if origins:
        win.Post(chosen(comm, origins), value % 2 * 1024)
    if targets:
        win.Start(chosen(comm, targets))
        for target in targets:
            win.Put(np.full(1, value), target, me)
        win.Complete()
    if origins and value % 3 == 0:
        while not win.Test():
            pass
    elif origins:
        win.Wait()
    return bool(origins)


def run(comm: Any, edges: Edges) -> None:
    with window(comm) as (win, memory):
        expected = np.full(comm.size, -1)
        for value, pairs in enumerate(edges):
            take_part(comm, win, pairs, value)
            for origin, target in pairs:
                if target == comm.rank:
                    expected[origin] = value
            assert memory.tolist() == expected.tolist(), value


@pytest.mark.ranks(1, 2, 3, 5)
def test_groups_change_from_turn_to_turn(comm: Any) -> None:
    """Nobody waits between the turns but for those of its own pairs, so some are far ahead of others."""
    run(comm, drawn(comm.size, 60))


@pytest.mark.ranks(3, 5, topology=PAIRS)
def test_groups_have_near_and_far_ranks(comm: Any) -> None:
    run(comm, drawn(comm.size, 30))


@pytest.mark.ranks(2, topology=ALONE)
def test_groups_of_far_ranks(comm: Any) -> None:
    run(comm, drawn(comm.size, 30))


@pytest.mark.ranks(1, 2, 3)
def test_counters_are_those_of_the_twin(comm: Any) -> None:
    edges = drawn(comm.size, 20)
    with window(comm) as (win, _):
        for value, pairs in enumerate(edges):
            take_part(comm, win, pairs, value)
        posted, completed = twins.epochs(edges, comm.size)
        found, row = counters_of(win), (8 * comm.size + 63) // 64 * 8
        assert found[: comm.size] == posted[comm.rank].tolist()
        assert found[row : row + comm.size] == completed[comm.rank].tolist()


def counters_of(win: Any) -> list[int]:
    """This rank's counters of epochs in a window."""
    import ctypes

    from ncclx_mpi.rma.fast_epochs import counters_bytes

    nbytes = counters_bytes(win.group_size)
    return list((ctypes.c_int64 * (nbytes // 8)).from_address(win._state.window.words.get("counters")))


@pytest.mark.ranks(1, 2, 3, topology="machine")
def test_usual_calls_stay_in_compiled_code(comm: Any) -> None:
    from ncclx_mpi.api import fast_windows

    with window(comm) as (win, memory):
        address, ranks = win._state.address, comm.Get_group()._state.ranks
        take_part(comm, win, {(origin, target) for origin in range(comm.size) for target in range(comm.size)}, 0)
        comm.Barrier()
        assert fast_windows.post_epoch(address, ranks, 0) == 0 == fast_windows.start_epoch(address, ranks, 1024)
        assert fast_windows.post_epoch(address, ranks, 0) == -1 == fast_windows.start_epoch(address, ranks, 0)
        assert fast_windows.put(address, np.full(1, 7), comm.size - 1, comm.rank) == 0
        assert fast_windows.complete_epoch(address) == 0 and fast_windows.complete_epoch(address) == -1
        assert fast_windows.wait_epoch(address) == 0 and fast_windows.wait_epoch(address) == -1 == fast_windows.test_epoch(address)
        assert memory.tolist() == [7 if comm.rank == comm.size - 1 else 0] * comm.size
        comm.Barrier()
        wrong = (None, (comm.size,), (-1,), (1 << 70,), (0.0,), (True,), ("0",), {0}, (0,) * (comm.size + 1), 0)
        for group, assertion in [*((each, 0) for each in wrong), *((ranks, each) for each in (1 << 30, None, 1.0))]:
            assert fast_windows.post_epoch(address, group, assertion) == -1 == fast_windows.start_epoch(address, group, assertion)
        assert fast_windows.post_epoch(address, (), 0) == 0 == fast_windows.start_epoch(address, (), 0)
        assert fast_windows.test_epoch(address) == 0 == fast_windows.complete_epoch(address)


@pytest.mark.ranks(1, 2)
def test_wrong_calls_raise_and_change_nothing(comm: Any) -> None:
    from ncclx_mpi import MPI

    def raises(error: int, call: Any, *given: Any) -> None:
        with pytest.raises(MPI.Exception) as caught:
            call(*given)
        assert caught.value.Get_error_class() == error

    alone = chosen(comm, [comm.rank])
    nobody, world = chosen(comm, []), comm.Get_group()
    with window(MPI.COMM_SELF) as (win, memory):
        for _ in range(2):  # before the first epoch, and after
            for call in (win.Wait, win.Test, win.Complete):
                raises(MPI.ERR_RMA_SYNC, call)
            for call in (win.Start, win.Post):
                raises(MPI.ERR_ASSERT, call, alone, 1 << 30)
                if comm.size > 1:
                    raises(MPI.ERR_GROUP, call, world)
                raises(MPI.ERR_GROUP, call, MPI.GROUP_NULL)
                with pytest.raises(TypeError):
                    call([0])
            win.Post(alone)
            raises(MPI.ERR_RMA_SYNC, win.Post, alone)
            raises(MPI.ERR_RMA_SYNC, win.Free)
            assert not win.Test()
            raises(MPI.ERR_RMA_SYNC, win.Put, memory, 0)
            win.Start(alone)
            raises(MPI.ERR_RMA_SYNC, win.Start, alone)
            win.Put(np.full(1, 3), 0)
            win.Complete()
            raises(MPI.ERR_RMA_SYNC, win.Free)
            assert win.Test() and memory[0] == 3
            win.Post(nobody)
            win.Start(nobody)
            win.Complete()
            win.Wait()
    raises(MPI.ERR_WIN, win.Start, alone)


@pytest.mark.ranks(2)
def test_counters_of_a_freed_window_do_not_reach_the_next(comm: Any) -> None:
    everybody = {(0, 1), (1, 0)}
    for value in range(5):
        with window(comm) as (win, memory):
            for _ in range(3):
                take_part(comm, win, everybody, value)
            assert memory[1 - comm.rank] == value


@pytest.mark.ranks(2, timeout=60)
def test_one_of_two_threads_starts_an_epoch(comm: Any) -> None:
    """Both come while nobody has posted; the other one is told, at once or when it looks."""
    from ncclx_mpi import MPI

    with window(comm) as (win, memory):
        codes: list[int] = []

        def start() -> None:
            try:
                win.Start(chosen(comm, [1]))
                codes.append(0)
            except MPI.Exception as error:
                codes.append(error.Get_error_class())

        if comm.rank == 0:
            threads = [threading.Thread(target=start) for _ in range(2)]
            for thread in threads:
                thread.start()
            while not codes:  # the thread that waits has given the interpreter away
                time.sleep(0.001)
            assert codes == [MPI.ERR_RMA_SYNC]
            comm.Barrier()
            for thread in threads:
                thread.join()
            assert codes == [MPI.ERR_RMA_SYNC, 0]
            win.Put(np.full(1, 5), 1)
            win.Complete()
        else:
            comm.Barrier()
            win.Post(chosen(comm, [0]))
            win.Wait()
            assert memory[0] == 5


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("call", ["Start", "Wait"])
def test_a_signal_ends_a_wait(comm: Any, call: str) -> None:
    """The epoch is given up where it is interrupted, and the next one finds its own counts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with window(comm) as (win, memory):
            if comm.rank == 0:
                if call == "Wait":
                    win.Post(chosen(comm, [1]))
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                with pytest.raises(KeyboardInterrupt):
                    win.Start(chosen(comm, [1])) if call == "Start" else win.Wait()
            comm.Barrier()
            if comm.rank == 1 and call == "Wait":
                win.Start(chosen(comm, [0]))
                win.Complete()
            comm.Barrier()
            take_part(comm, win, {(0, 1), (1, 0)}, 4)
            assert memory[1 - comm.rank] == 4
    finally:
        signal.signal(signal.SIGINT, before)


def told(code: str, **environment: str) -> str:
    """What two ranks print that run some lines with a window `win`, and a group of the other one."""
    program = (
        "import os, time, numpy as np; from ncclx_mpi import MPI; comm = MPI.COMM_WORLD\n"
        "win, other = MPI.Win.Allocate(8, comm=comm), comm.Get_group().Incl([1 - comm.rank])\n"
        f"comm.Barrier()\n{code}"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)
    return done.stdout + done.stderr


CALLS = pytest.mark.parametrize(
    "call",
    [
        pytest.param("win.Start(other)", id="Start"),
        pytest.param("win.Post(other); win.Wait()", id="Wait"),
        pytest.param("win.Post(other)\n    while not win.Test(): pass", id="Test"),
    ],
)


@CALLS
@pytest.mark.parametrize("has_counters", [False, True])
def test_the_death_of_a_peer_is_told(call: str, has_counters: bool) -> None:
    first = "win.Post(other); win.Start(other); win.Complete(); win.Wait()\n" if has_counters else ""
    said = told(
        f"{first}if comm.rank: time.sleep(0.1); os.kill(os.getpid(), 9)\n"
        f"try:\n    {call}\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PROC_FAILED, error)\n"
    )
    assert said.startswith("True") and "rank 1 died" in said, said


def test_a_wait_that_lasts_too_long_says_for_whom() -> None:
    said = told(
        "if comm.rank == 0:\n"
        "    try: win.Start(other)\n"
        "    except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PENDING, error)\n"
        "else: time.sleep(1.3)\n"
        "comm.Barrier()\n"
        "win.Post(other); win.Start(other); win.Complete(); win.Wait(); win.Free()\n"
        "print('goes on')\n",
        NCCLX_MPI_TIMEOUT="1",
    )
    assert said.startswith("True") and "Win.Start did not complete" in said and "recv from rank 1" in said, said
    assert said.count("goes on") == 2, said

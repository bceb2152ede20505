"""Ranks for tests of the native layer: forked processes on an arena of their own, without launcher or MPI face."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.bootstrap.meet import wait_all_joined
from ncclx_mpi.p2p.engine import Engine, NativeComm
from numba_kernels.jit import entry
from transports.shm import slots
from transports.shm.arena import Arena
from transports.shm.layout import SLOTS
from transports.shm.transport import SharedMemory

_JOIN_SECONDS = 60.0


class Signals:
    """Words that ranks give each other past the code under test: which of them come first does not depend on how busy the machine is."""

    def __init__(self, count: int = 1) -> None:
        self._events = [get_context("fork").Event() for _ in range(count)]

    def give(self, number: int = 0) -> None:
        self._events[number].set()

    def wait(self, number: int = 0) -> None:
        assert self._events[number].wait(_JOIN_SECONDS), "the other rank has not come so far"

    def is_given(self, number: int = 0) -> bool:
        return bool(self._events[number].is_set())


def run_ranks(
    size: int, function: Callable[..., Any], *args: Any, with_slot: bool = True, timeout: float = 60, copies: str = "auto"
) -> None:
    """Run ``function(comm, *args)`` on `size` forked ranks; asserts that all of them return."""
    arena = Arena.create(size)
    slot = lease(arena, size) if with_slot else -1
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _be_rank(arena, rank, slot, timeout, copies, function, args)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    arena.close()
    assert codes == [0] * size, f"exit codes of the ranks: {codes}"


def give_up_in_the_middle(function: Callable[..., Any], *args: Any, **settings: Any) -> None:
    """Run ``function(comm, *args, seen)`` on two ranks until one has given up while something was half done, and the other heard of it.

    Who gives up comes too late where it has no core for as long as the rest takes; it gives word 0 if it came in time, and the
    other one word 1 if its own call has failed.
    """
    for _ in range(10):
        seen = Signals(2)
        run_ranks(2, function, *args, seen, **settings)
        if seen.is_given(0):
            assert seen.is_given(1), "the other rank's call has not failed"
            return
    raise AssertionError("whoever gave up always came too late")


def die_in_the_middle(comm: NativeComm, are_started: Signals, wait: Callable[[], object]) -> None:
    """Rank 1 of three dies with some pieces of what has been started copied; the others are told within two seconds."""
    if comm.rank == 1:
        for other in (0, 2):
            are_started.wait(other)
        for _ in range(5):
            comm.engine.progress()
        comm.engine.arena.declare_dead(1)
        os._exit(0)
    are_started.give(comm.rank)
    begun = time.monotonic()
    with pytest.raises(errors.Exception, match="rank 1 died") as caught:
        wait()
    assert caught.value.Get_error_class() == errors.ERR_PROC_FAILED
    assert time.monotonic() - begun < 2


def lease(arena: Arena, size: int) -> int:
    """Index of a fresh collective slot."""
    plan = arena.plan
    return int(entry(slots.lease)(arena.base + plan.slot(0), plan.slot_stride, SLOTS, size))


def _be_rank(arena: Arena, rank: int, slot: int, timeout: float, copies: str, function: Callable[..., Any], args: Any) -> None:
    code = 1
    try:
        arena.join(rank)
        shared_memory = SharedMemory(arena, rank)
        engine = Engine(arena, [shared_memory], rank, timeout)
        shared_memory.choose_copies(copies)
        collectives.watch(engine)
        comm = engine.new_comm(0, range(arena.nranks), slot)
        wait_all_joined(arena, _JOIN_SECONDS)
        function(comm, *args)
        code = 0
    except BaseException:
        traceback.print_exc()
        arena.declare_dead(rank)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


__all__ = ["NativeComm", "Signals", "die_in_the_middle", "give_up_in_the_middle", "lease", "run_ranks"]

"""Ranks for tests of the native layer: forked processes on an arena of their own, without launcher or MPI face."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.placement import choose_copies
from numba_kernels.jit import entry
from transports.shm import slots
from transports.shm.arena import Arena
from transports.shm.layout import SLOTS

_JOIN_SECONDS = 60.0


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


def lease(arena: Arena, size: int) -> int:
    """Index of a fresh collective slot."""
    plan = arena.plan
    return int(entry(slots.lease)(arena.base + plan.slot(0), plan.slot_stride, SLOTS, size))


def _be_rank(arena: Arena, rank: int, slot: int, timeout: float, copies: str, function: Callable[..., Any], args: Any) -> None:
    code = 1
    try:
        arena.join(rank)
        engine = Engine(arena, rank, timeout)
        choose_copies(engine, copies)
        comm = engine.new_comm(0, range(arena.nranks), slot)
        arena.wait_all_joined(_JOIN_SECONDS)
        function(comm, *args)
        code = 0
    except BaseException:
        traceback.print_exc()
        arena.declare_dead(rank)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


__all__ = ["NativeComm", "lease", "run_ranks"]

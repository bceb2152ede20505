"""A window of this process: where each rank's part is, and which accesses are open.

At its creation all ranks exchange one row of words each. Everything else is one-sided: copies to and from the target's memory,
and atomic operations on the two words that each rank keeps for a window in its part of the arena: the ``lock`` of MPI, and the
``guard`` under which accumulations read and write, since they are atomic among ranks that share a lock or are between fences.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ncclx_mpi import collectives, errors
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.rma import locks
from ncclx_mpi.rma.epochs import Epochs
from ncclx_mpi.rma.reach import Mapped, Place, Private, Reach
from numba_kernels.jit import entry
from numba_kernels.layout import words
from transports.shm.cma import allow_peers
from transports.shm.layout import ALIVE

CONTROL = words("WindowControl", "lock | guard | end")
_ROW = words("WindowRow", "error is_mapped where size unit control pid token token_at")


class Part(NamedTuple):
    """What this rank brings into a window: memory, the unit of displacements in bytes, and what gives the memory back."""

    address: int
    nbytes: int
    unit: int
    owner: Any = None
    release: Callable[[], None] | None = None


class Window:
    """One rank's side of a window over the ranks of `comm`, which is its alone. Collective.

    Parameters
    ----------
    comm
        Communicator of the window.
    prepare
        Makes this rank's part. If it fails on one rank, the window fails on all.
    """

    def __init__(self, comm: NativeComm, prepare: Callable[[], Part]) -> None:
        self.comm = comm
        self.engine = comm.engine
        self.part = Part(0, 0, 1)
        self.is_fenced = False
        self.holds_all = False
        self.held: dict[int, bool] = {}
        self.epochs = Epochs(comm)
        self._control = 0
        self._token = np.array([secrets.randbits(62)], np.int64)
        self._rows = self._exchange(prepare)
        self._reaches: dict[int, Reach] = {comm.rank: Mapped(self.part.address)}

    def _exchange(self, prepare: Callable[[], Part]) -> list[list[int]]:
        """Return the row of each rank; a failure of one is raised on all."""
        failure = None
        try:
            row = self._join(prepare)
        except Exception as exception:
            failure = exception
            row = [exception.Get_error_class() if isinstance(exception, errors.Exception) else errors.ERR_OTHER] + [0] * 8
        mine, table = np.array(row, np.int64), np.empty((self.comm.size, len(row)), np.int64)
        collectives.allgather(self.comm, array_words(mine)[0], mine.nbytes, array_words(table)[0])
        bad = np.flatnonzero(table[:, 0])
        if failure is not None or len(bad):
            self._release()
            if failure is not None:
                raise failure
            errors.fail(int(table[bad[0], 0]), f"rank {bad[0]} could not make its part of the window; its own error says why")
        found: list[list[int]] = table.tolist()
        return found

    def _join(self, prepare: Callable[[], Part]) -> list[int]:
        """Make this rank's part and the row that tells the others of it."""
        arena, plan = self.engine.arena, self.engine.arena.plan
        self.part = part = prepare()
        self._control = arena.open_heap(self.engine.local_rank).allocate(CONTROL.total)
        heaps = arena.base + plan.heaps
        is_mapped = heaps <= part.address and part.address + part.nbytes <= arena.base + plan.nbytes
        if not is_mapped and part.nbytes and self.comm.size > 1:
            allow_peers()
        where = part.address - arena.base if is_mapped else part.address
        token = int(self._token[0]), array_words(self._token)[0]
        return [0, int(is_mapped), where, part.nbytes, part.unit, self._control - arena.base, os.getpid(), *token]

    def close(self) -> None:
        """Give everything back when all ranks have come here. Collective."""
        if self.held or self.holds_all:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} frees a window that it has locked: unlock it first")
        if self.epochs.is_open:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} frees a window in an epoch: call Complete or Wait first")
        collectives.barrier(self.comm)
        self._release()

    def _release(self) -> None:
        if self._control:
            self.engine.arena.open_heap(self.engine.local_rank).free(self._control)
            self._control = 0
        if self.part.release is not None:
            self.part.release()

    # Synchronisation

    def fence(self, is_last: bool) -> None:
        """Wait for all ranks; opens access to all, unless it `is_last`."""
        collectives.barrier(self.comm)
        self.is_fenced = not is_last

    def lock(self, rank: int, exclusive: bool) -> None:
        """Take the lock of a rank."""
        if self.holds_all or rank in self.held:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked target {rank} already: unlock it first")
        locks.acquire(self.engine, [self._word(rank, CONTROL.lock)], exclusive, f"Win.Lock of rank {rank}")
        self.held[rank] = exclusive

    def unlock(self, rank: int) -> None:
        """Give the lock of a rank back."""
        if rank not in self.held:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has not locked target {rank}: there is nothing to unlock")
        locks.release([self._word(rank, CONTROL.lock)], self.held.pop(rank))

    def lock_all(self) -> None:
        """Take the locks of all ranks, shared."""
        if self.holds_all or self.held:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked targets of the window already: unlock them first")
        locks.acquire(self.engine, self._all_locks(), False, "Win.Lock_all")
        self.holds_all = True

    def unlock_all(self) -> None:
        """Give the locks of all ranks back."""
        if not self.holds_all:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has not called Lock_all: there is nothing to unlock")
        self.holds_all = False
        locks.release(self._all_locks(), False)

    def flush(self, rank: int | None) -> None:
        """Complete accesses to a locked rank, or to all (None); they are complete, so this only orders memory."""
        if not self.holds_all and (not self.held if rank is None else rank not in self.held):
            whom = "no target" if rank is None else f"not target {rank}"
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked {whom}: Flush is for between Lock and Unlock")
        self.order_memory()

    def order_memory(self) -> None:
        """Order what this rank did to memory before ahead of what it does after."""
        entry(locks.order_memory)()

    def _word(self, rank: int, field: int) -> int:
        control = self._rows[rank][_ROW.control // 8]
        return int(self.engine.arena.base + control + field)

    def _all_locks(self) -> list[int]:
        return [self._word(rank, CONTROL.lock) for rank in range(self.comm.size)]

    # Access

    def check_open(self, rank: int) -> None:
        """Raise unless this rank may access the memory of `rank` now."""
        started = self.epochs.started
        if not (self.is_fenced or self.holds_all or rank in self.held or (started is not None and rank in started)):
            errors.fail(
                errors.ERR_RMA_SYNC,
                f"rank {self.comm.rank} accesses the window of rank {rank} outside of an epoch: call Fence, Lock, Lock_all or Start first",
            )

    def reach(self, rank: int) -> Reach:
        """The way to the memory of a rank."""
        found = self._reaches.get(rank)
        if found is None:
            _, is_mapped, where, _, _, _, pid, token, token_at = self._rows[rank]
            arena, world = self.engine.arena, self.comm.world_ranks[rank]
            if is_mapped:
                found = Mapped(arena.base + where)
            else:
                found = Private(rank, pid, where, token, token_at, lambda: arena.world_state(world) == ALIVE)
            self._reaches[rank] = found
        return found

    def place(self, rank: int, place: Place) -> Place:
        """Turn a displacement in the target's units into one in bytes, within the target's memory."""
        layout, count, displacement = place
        nbytes, unit = self._rows[rank][_ROW.size // 8], self._rows[rank][_ROW.unit // 8]
        start = displacement * unit
        low, high = (start + bound for bound in layout.reach(count))
        if low < high and (low < 0 or high > nbytes):
            errors.fail(
                errors.ERR_RMA_RANGE,
                f"target rank {rank}, displacement {displacement} (unit {unit}), {count} elements of {layout.extent} bytes: "
                f"bytes {low} to {high} are not in its window of {nbytes} bytes",
            )
        return Place(layout, count, start)

    @contextmanager
    def guarded(self, rank: int) -> Iterator[None]:
        """Keep other accumulations away from the memory of a rank."""
        guard = [self._word(rank, CONTROL.guard)]
        locks.acquire(self.engine, guard, True, f"an accumulation at rank {rank}")
        try:
            yield
        finally:
            locks.release(guard, True)

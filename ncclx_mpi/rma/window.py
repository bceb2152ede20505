"""A window of this process: where each rank's part is, and which accesses are open.

At its creation all ranks exchange one row of words each. Everything else is one-sided: copies to and from the target's memory,
and atomic operations on the two words that each rank keeps for a window in its part of the arena: the ``lock`` of MPI, and the
``guard`` under which accumulations read and write, since they are atomic among ranks that share a lock or are between fences.
A target that shares no memory with this rank is asked for all of that by requests (:mod:`ncclx_mpi.rma.far`), which its own process
serves (:mod:`ncclx_mpi.rma.service`).
"""

from __future__ import annotations

import functools
import os
import struct
import time
from array import array
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn

from ncclx_mpi import collectives, errors, late
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.rma import far, fast, fast_making, locks, requests, service
from ncclx_mpi.rma.accumulate import Near
from ncclx_mpi.rma.attached import Attached, Regions
from ncclx_mpi.rma.epochs import Epochs
from ncclx_mpi.rma.far import Far
from ncclx_mpi.rma.layout import ASKED, CONTROL, EXCLUSIVE, FREE, PRIVATE, ROW, SHARED, Words
from ncclx_mpi.rma.reach import Mapped, Place, Private, Reach
from ncclx_mpi.rma.serving import Serving
from numba_kernels.jit import entry
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple
from transports.base import Transport
from transports.shm.cma import allow_peers
from transports.shm.layout import ALIVE

if TYPE_CHECKING:
    from ncclx_mpi.rma import by_network
    from ncclx_mpi.rma.by_network import ByNetwork, OwnMemory, WordOperations
else:
    by_network = late.module("ncclx_mpi.rma.by_network")

_FIELDS = ROW.total // WORD
_HEAD_START = 200e-6
"""Seconds: what a rank takes at most to store to its memory after the first window was made, 120 us, and some; later ones take 20."""
_ROW, _ZERO = struct.Struct(f"{_FIELDS}q"), array("q", [0])


class Part(NamedTuple):
    """What this rank brings into a window: memory, the unit of displacements in bytes, and what gives the memory back.

    A dynamic window has no memory but what is attached, and the address of a table of that (:mod:`ncclx_mpi.rma.attached`), 0 for others.
    """

    address: int
    nbytes: int
    unit: int
    owner: Any = None
    release: Callable[[], None] | None = None
    regions: int = 0


@functools.cache
def _token(pid: int) -> tuple[int, int]:
    """A number by which others find out whether a process is this one, and where it stands for good: drawn here, as forks share memory."""
    token = array("q", [int.from_bytes(os.urandom(8), "little") >> 2])
    _tokens.append(token)
    return token[0], token.buffer_info()[0]


_tokens: list[array[int]] = []
_exchange_rows = functools.cache(lambda: entry(fast_making.exchange_rows))
_end = functools.cache(lambda: entry(fast_making.end))


class Window:
    """One rank's side of a window over the ranks of `comm`, which is its alone. Collective.

    Parameters
    ----------
    comm
        Communicator of the window.
    prepare
        Makes this rank's part. If it fails on one rank, the window fails on all.
    function_of
        Address of the reduction function with a number (:class:`ncclx_mpi.rma.accumulate.Reduction`), and whether it is compiled.
    not_reductions
        Addresses of the tables of REPLACE and NO_OP, for calls that never leave compiled code.
    operations
        What the network itself is to combine, if it reaches the memory of all ranks (:mod:`ncclx_mpi.rma.by_network`), and all ranks ask for
        it; None: nothing.

    Attributes
    ----------
    words
        Which epochs are open, and what is reached how.
    is_by_network
        Whether the network does so.
    """

    def __init__(
        self,
        comm: NativeComm,
        prepare: Callable[[], Part],
        function_of: Callable[[int], tuple[int, bool]],
        not_reductions: tuple[int, int] = (0, 0),
        operations: WordOperations | None = None,
    ) -> None:
        self.comm = comm
        self.engine = comm.engine
        self.part = Part(0, 0, 1)
        self.words = Words(comm.address, comm.size, not_reductions)
        self._control = 0
        self._operations = operations
        self._own: OwnMemory | None = None
        self._table = self._exchange(prepare)
        self._far: dict[int, Far] = {}
        self._near: dict[int, Near] = {}
        self._by_network: dict[int, ByNetwork] = {}
        self._serving: Serving | None = None
        self._locked_after = 0.0
        if self.words.reach_far:
            self._serving = self._serve(function_of)
            self._far = {
                rank: self._far_target(rank) for rank, world in enumerate(comm.world_ranks) if not self.engine.is_near(world)
            }
        self.is_by_network = operations is not None and all(row[ROW.network // WORD] for row in self._rows)
        if operations is not None and self.is_by_network:
            self._combine_by_network(operations)

    def _combine_by_network(self, operations: WordOperations) -> None:
        """Let the network combine words into the memory of all ranks, and of this one."""
        self.words.set_operations(operations.tables, operations.types)
        for rank in filter(self.size_of, range(self.comm.size)):
            way = self._far.get(rank) or self._near_target(rank)
            opened = self._own.opened if self._own is not None and rank == self.comm.rank else None
            self._by_network[rank] = by_network.ByNetwork(self.comm, rank, self.words, way, opened, operations)

    def _serve(self, function_of: Callable[[int], tuple[int, bool]]) -> Serving:
        """Serve far ranks from now on."""
        rank, part = self.comm.rank, self.part
        lock, guard = self._word(rank, CONTROL.lock), self._word(rank, CONTROL.guard)
        mapped = (0, 0, 0) if part.regions else (part.address, part.nbytes, guard)
        serving = Serving(
            self.comm, self._near_target(rank), lock, function_of, mapped, self._own.exposed if self._own is not None else None
        )
        service.add(serving)
        return serving

    def _far_target(self, rank: int) -> Far:
        """What asks a far rank; compiled code asks it, too, unless where its memory is changes, once it is known how it is reached."""
        reaches = self._reaching(rank) if self.size_of(rank) and not self.part.regions else None
        far_target = Far(self.comm, rank, reaches, functools.partial(self.words.set_of, rank, "kind", ASKED))
        self.words.set_of(rank, "far", far_target.address)
        if self.size_of(rank) and reaches is None:
            self.words.set_of(rank, "kind", ASKED)
        return far_target

    def _reaching(self, rank: int) -> Transport | None:
        """What may reach the memory of a far rank by the network itself; of other jobs' ranks, nothing does."""
        world = self.comm.world_ranks[rank]
        transport = self.engine.way_to(world) if world < self.engine.size else None
        return transport if transport is not None and transport.remote_memory is not None else None

    def _exchange(self, prepare: Callable[[], Part]) -> array[int]:
        """Return the rows of all ranks, one behind the other; a failure of one is raised on all."""
        failure = None
        try:
            row = self._join(prepare)
        except Exception as exception:
            failure = exception
            row = [exception.Get_error_class() if isinstance(exception, errors.Exception) else errors.ERR_OTHER] + [0] * (
                _FIELDS - 1
            )
        comm, arena, near = self.comm, self.engine.arena, self.engine.near
        table: array[int] = _ZERO * (_FIELDS * comm.size)
        rows, known = table.buffer_info()[0], (arena.base, near[0], near[-1], self.part.address)
        _ROW.pack_into(table, ROW.total * comm.rank, *row)
        code = _exchange_rows()(self.words.address, rows, *known)
        if code == fast.SLOW:
            collectives.allgather(comm, 0, ROW.total, rows)
            bad = entry(fast.fill_targets)(self.words.address, rows, *known)
        else:
            bad = max(0, fast_making.BAD_ROW - code)
        if code > 0:
            collectives.check(comm, code, "allgather")
        if bad:
            self._release()
            if failure is not None:
                raise failure
            rank = bad - 1
            errors.fail(table[rank * _FIELDS], f"rank {rank} could not make its part of the window; its own error says why")
        return table

    @property
    def epochs(self) -> Epochs:
        """Those among some ranks, if there are any; made when first asked for, once for all threads. Who asks begins or ends one."""
        self._begin()
        made: Epochs = self.__dict__.get("_epochs") or self.__dict__.setdefault("_epochs", Epochs(self.comm, self.words))
        return made

    @functools.cached_property
    def _rows(self) -> list[list[int]]:
        """The row of each rank."""
        table = self._table.tolist()
        return [table[at : at + _FIELDS] for at in range(0, len(table), _FIELDS)]

    def _join(self, prepare: Callable[[], Part]) -> list[int]:
        """Make this rank's part and the row that tells the others of it."""
        engine, arena = self.engine, self.engine.arena
        self.part = part = prepare()
        self._control = arena.open_heap(engine.local_rank).take_spare()
        is_mapped = arena.base + arena.plan.heaps <= part.address and part.address + part.nbytes <= arena.base + arena.plan.nbytes
        if not is_mapped and (part.nbytes or part.regions) and self.comm.size > 1:
            allow_peers()
        where = part.address - arena.base if is_mapped else part.address
        regions = part.regions - arena.base if part.regions else 0
        control, pid = self._control - arena.base, engine.pid
        if self._operations is not None and not part.regions:
            self._own = by_network.OwnMemory(self.comm, part.address, part.nbytes)
        reached = int(self._own is not None and self._own.is_reached)
        return [0, int(is_mapped), where, part.nbytes, part.unit, control, pid, regions, *_token(pid), reached]

    def give_head_start(self) -> None:
        """Let this rank lock no other one sooner than that one has probably stored first values to its new memory.

        MPI says nothing of the order of the two, so a program that relies on it is wrong; but it works where to lock a rank takes longer
        than to store to one's own memory, as it does in other MPIs. Until the first lock, or the first epoch of another kind, compiled code
        leaves everything to Python, so that no later call pays for this one.
        """
        if self.comm.size > 1 and not self._far:
            self._locked_after = time.perf_counter() + _HEAD_START
            self.words.set("size", 0)

    def _begin(self, locked: Collection[int] = ()) -> None:
        """Before the first epoch: let compiled code in; if it locks others, when their time is over."""
        after, self._locked_after = self._locked_after, 0.0
        if not after:
            return
        if any(rank != self.comm.rank for rank in locked):
            os.sched_yield()  # the other one may wait for this core, and have done so all the time
            while time.perf_counter() < after:
                os.sched_yield()
        self.words.set("size", self.comm.size)

    def close(self) -> None:
        """Give everything back when all ranks have come here. Collective."""
        self._begin()
        if self.words.are_locked:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} frees a window that it has locked: unlock it first")
        if self.words.are_in_epochs:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} frees a window in an epoch: call Complete or Wait first")
        if self._far:
            self._complete(self._far)
            for target in self._far.values():
                target.close()
        if self._own is not None:
            self._own.close()
        code = _end()(self.words.address)
        if code > 0:
            collectives.check(self.comm, code, "barrier")
        if code == fast.SLOW:
            collectives.barrier(self.comm)
            self.words.close()
        # nobody asks this rank for anything any more
        if code == 0:
            self.engine.arena.open_heap(self.engine.local_rank).give_spare(self._control)
            self._control = 0
        if self._serving is not None:
            service.remove(self._serving)
            self._serving.close()
        self._release()

    def _release(self) -> None:
        if "_epochs" in self.__dict__:
            self.epochs.free()
        if self._control:
            self.engine.arena.open_heap(self.engine.local_rank).free(self._control)
            self._control = 0
        if self._own is not None and self._serving is None:
            self._own.close()
            self._own.conceal()
        if self.part.release is not None:
            self.part.release()

    # Synchronisation

    def fence(self, is_last: bool) -> None:
        """Wait for all ranks; opens access to all, unless it `is_last`."""
        self._begin()
        self._complete(self._far)
        collectives.barrier(self.comm)
        self.words.set("fenced", int(not is_last))

    def lock(self, rank: int, exclusive: bool) -> None:
        """Take the lock of a rank."""
        self._begin([rank])
        if self.words.get("all") or self.words.of(rank, "held"):
            self._refuse_lock(rank)
        if rank in self._far:
            self._far[rank].lock(exclusive)
        else:
            locks.acquire(self.comm, [self._word(rank, CONTROL.lock)], exclusive, f"Win.Lock of rank {rank}")
        held = EXCLUSIVE if exclusive else SHARED
        if entry(fast.note_lock)(self.words.address, self.words.target(rank), held):
            self.give_back_second_lock(rank)

    def give_back_second_lock(self, rank: int) -> NoReturn:
        """Another thread was faster to lock a rank: give the lock back that this one has, too, unless that is done; raise."""
        self.forget_lock(rank)
        self._refuse_lock(rank)

    def forget_lock(self, rank: int) -> None:
        """Take back the lock of a far rank that was asked for, granted or not; nothing happens to that of another one."""
        if rank in self._far:
            self._far[rank].forget_lock()

    def _refuse_lock(self, rank: int) -> NoReturn:
        errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked target {rank} already: unlock it first")

    def unlock(self, rank: int) -> None:
        """Give the lock of a rank back."""
        held = entry(fast.forget_lock)(self.words.address, self.words.target(rank))
        if held == FREE:
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has not locked target {rank}: there is nothing to unlock")
        if rank in self._far:
            self._unlock_far([rank])
        else:
            locks.release([self._word(rank, CONTROL.lock)], held == EXCLUSIVE)

    def lock_all(self) -> None:
        """Take the locks of all ranks, shared."""
        self._begin(range(self.comm.size))
        if self.words.get("all") or self.words.get("held"):
            self._refuse_lock_all()
        also = functools.partial(far.take_locks, self._far.values())
        try:
            locks.acquire(self.comm, self._near_locks(), False, "Win.Lock_all", also if self._far else None)
        except BaseException:
            far.forget_locks(self._far.values())
            raise
        if entry(fast.note_all)(self.words.address):  # another thread was faster
            far.forget_locks(self._far.values())
            locks.release(self._near_locks(), False)
            self._refuse_lock_all()

    def _refuse_lock_all(self) -> NoReturn:
        errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked targets of the window already: unlock them first")

    def unlock_all(self) -> None:
        """Give the locks of all ranks back."""
        if not entry(fast.forget_all)(self.words.address):
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has not called Lock_all: there is nothing to unlock")
        try:
            self._unlock_far(self._far)
        finally:  # whatever failed at a far target
            locks.release(self._near_locks(), False)

    def _unlock_far(self, ranks: Collection[int]) -> None:
        """Complete what was asked of far ranks, and give their locks back, also if that is interrupted."""
        try:
            self._complete(ranks, requests.UNLOCK)
        except BaseException:
            far.forget_locks([self._far[rank] for rank in ranks if rank in self._far])
            raise

    def flush(self, rank: int | None) -> None:
        """Complete accesses to a locked rank, or to all (None). Those to near ranks are complete: their memory is only ordered."""
        if not self.words.get("all") and not (self.words.get("held") if rank is None else self.words.of(rank, "held")):
            whom = "no target" if rank is None else f"not target {rank}"
            errors.fail(errors.ERR_RMA_SYNC, f"rank {self.comm.rank} has locked {whom}: Flush is for between Lock and Unlock")
        if self._far:
            self._complete(self._far if rank is None else [rank])
        self.order_memory()

    def complete(self) -> None:
        """End the access epoch of some ranks."""
        self._complete(self.epochs.targets())
        self.epochs.complete()

    def _complete(self, ranks: Collection[int], action: int = requests.FLUSH) -> None:
        """Complete what this rank has asked of the far ones among some ranks, and give their locks back if `action` is UNLOCK."""
        far.end_all([self._far[rank] for rank in ranks if rank in self._far], action)

    def order_memory(self) -> None:
        """Order what this rank did to memory before ahead of what it does after."""
        entry(locks.order_memory)()

    def _word(self, rank: int, field: int) -> int:
        control = self._rows[rank][ROW.control // 8]
        return int(self.engine.arena.base + control + field)

    def _near_locks(self) -> list[int]:
        return [self._word(rank, CONTROL.lock) for rank in range(self.comm.size) if rank not in self._far]

    # Access

    def check_open(self, rank: int) -> None:
        """Raise unless this rank may access the memory of `rank` now."""
        words = self.words
        if not (words.get("fenced") or words.get("all") or words.of(rank, "held") or words.of(rank, "started")):
            errors.fail(
                errors.ERR_RMA_SYNC,
                f"rank {self.comm.rank} accesses the window of rank {rank} outside of an epoch: call Fence, Lock, Lock_all or Start first",
            )

    def target(self, rank: int) -> Near | Far | ByNetwork:
        """The memory of a rank."""
        return self._by_network.get(rank) or self._far.get(rank) or self._near.get(rank) or self._near_target(rank)

    def _near_target(self, rank: int) -> Near:
        found = self._near[rank] = Near(self._reach(rank), self._guard(rank))
        return found

    def segment(self, rank: int) -> tuple[int, int, int]:
        """Address in this process of the memory of a rank, its bytes, and its unit; no bytes where it is not mapped here."""
        row = self._rows[rank]
        if rank in self._far or not row[ROW.is_mapped // 8]:
            return (self.part.address, self.part.nbytes, self.part.unit) if rank == self.comm.rank else (0, 0, row[ROW.unit // 8])
        return self.engine.arena.base + row[ROW.where // 8], row[ROW.size // 8], row[ROW.unit // 8]

    def size_of(self, rank: int) -> int:
        """Bytes of the memory of a rank, wherever it is."""
        return int(self._rows[rank][ROW.size // 8])

    def _reach(self, rank: int) -> Reach:
        """The way to the memory of a near rank."""
        _, is_mapped, where, _, _, _, pid, _, token, token_at, _ = self._rows[rank]
        arena, world = self.engine.arena, self.comm.world_ranks[rank]
        if rank == self.comm.rank:
            return self._attached(rank, Mapped(self.part.address))
        if is_mapped:
            return Mapped(arena.base + where)
        private = Private(
            rank, pid, where, token, token_at, lambda: arena.world_state(world) == ALIVE, functools.partial(self._know, rank)
        )
        return self._attached(rank, private)

    def _know(self, rank: int) -> None:
        """Let compiled code reach private memory, whose process has been found to be the right one."""
        if not self.part.regions:
            self.words.set_of(rank, "base", self._rows[rank][ROW.where // 8])
            self.words.set_of(rank, "kind", PRIVATE)

    def _attached(self, rank: int, reach: Reach) -> Reach:
        """That way; in a dynamic window to what the rank has attached only."""
        regions = self._rows[rank][ROW.regions // 8]
        return Attached(reach, Regions(rank, self.engine.arena.base + regions)) if regions else reach

    def place(self, rank: int, place: Place) -> Place:
        """Turn a displacement in the target's units into one in bytes, within the target's memory."""
        layout, count, displacement = place
        nbytes, unit = self._rows[rank][ROW.size // 8], self._rows[rank][ROW.unit // 8]
        start = displacement * unit
        if self.part.regions:  # looked up when it is accessed
            return Place(layout, count, start)
        low, high = (start + bound for bound in layout.reach(count))
        if low < high and (low < 0 or high > nbytes):
            errors.fail(
                errors.ERR_RMA_RANGE,
                f"target rank {rank}, displacement {displacement} (unit {unit}), {count} elements of {layout.extent} bytes: "
                f"bytes {low} to {high} are not in its window of {nbytes} bytes",
            )
        return Place(layout, count, start)

    def _guard(self, rank: int) -> locks.Guard:
        """What keeps other accumulations away from the memory of a near rank."""
        return locks.Guard(self.comm, self._word(rank, CONTROL.guard), f"an accumulation at rank {rank}")

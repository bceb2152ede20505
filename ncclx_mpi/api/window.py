"""MPI.Win: memory of each rank that the others write and read without its help.

Memory in the arena (:meth:`Win.Allocate`, or ``MPI.Alloc_mem`` given to :meth:`Win.Create`) is copied to and from directly;
private memory by system calls, and that of ranks which share no memory with this one by requests that they serve. The origin's side of
an access is complete when its method returns, or the request of its R-form is; the target's side too, but for the last ones: it is after
the next synchronisation. A dynamic window (:meth:`Win.Create_dynamic`) has the memory that ranks attach to it, which is private here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from ncclx_mpi import arguments, errors, late, runtime
from ncclx_mpi import constants as mpi
from ncclx_mpi.api import attributes, communicator, errhandler_dispatch, fast, fast_windows
from ncclx_mpi.api.accessors import Attributed, ErrorHandled, Hinted, Named, hints
from ncclx_mpi.api.datatype import Datatype
from ncclx_mpi.api.docstrings import begin_with_signatures
from ncclx_mpi.api.errhandler import Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import PUBLIC, Handle, constant, instance, integer
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.intracomm import COMM_SELF, Intracomm
from ncclx_mpi.api.op import NO_OP, NO_TABLE, REPLACE, SUM, Op, numbered, word_operations
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.window_arguments import check_single, checked_assertion, checked_size, checked_unit, host_memory, reduction_of
from ncclx_mpi.api.window_codes import settle, settle_all, settle_epoch, settle_fence, settle_lock, settle_unlock
from ncclx_mpi.arguments.spec import is_bottom
from ncclx_mpi.buffers.export import export
from ncclx_mpi.buffers.layout import committed
from ncclx_mpi.constants import PROC_NULL
from ncclx_mpi.operations.operation import Operation, wait_for
from ncclx_mpi.rma.attached import TABLE_BYTES, Regions
from ncclx_mpi.rma.far import Fetch
from ncclx_mpi.rma.reach import Landing, Place
from ncclx_mpi.rma.shared import shared_part
from ncclx_mpi.rma.window import Part, Window
from ncclx_mpi.state import State
from ncclx_mpi.typing import Buffer, BufSpec, TargetSpec

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
    from ncclx_mpi.api.memory import buffer
else:
    memory = late.module("ncclx_mpi.api.memory")

_BY_NETWORK = "disable_shm_accumulate"
"""A hint, as MPICH names it: accumulations go by the network, to memory that is shared, too."""
_OF_NEW_MEMORY = mpi.WIN_FLAVOR_ALLOCATE, mpi.WIN_FLAVOR_SHARED
_NOT_REDUCTIONS = fast.table_of(REPLACE), fast.table_of(NO_OP)


class WinState(State):
    """A window of this process.

    Attributes
    ----------
    address : int
        Of what compiled code knows of it (:mod:`ncclx_mpi.rma.layout`).
    retired : Window
        What it was until it was freed: another thread may be inside a call that was given the address, and holds this state meanwhile.
    """

    __slots__ = ("address", "attached", "attributes", "errhandler", "flavor", "info", "name", "retired", "window")
    WHAT = "window"
    ERROR = errors.ERR_WIN
    LATE = ("retired",)
    attached: dict[int, Any]
    """What keeps attached memory alive, by its address."""
    attributes: attributes.Table
    errhandler: Errhandler
    flavor: int
    info: dict[str, str]
    name: str
    window: Window
    address: int
    retired: Window


_NULL = WinState()
_open: set[WinState] = set()
"""Windows that were not freed: peers may reach their memory, whatever became of the handles."""


def _close_all() -> None:
    """Let no compiled call access a window any more: this process has left the job, or is the fork of a rank."""
    for state in _open:
        state.window.words.close()


os.register_at_fork(after_in_child=_close_all)
runtime.after_leaving(_close_all)


class Win(Named, Attributed, Hinted, ErrorHandled, Handle):
    """Remote memory access context."""

    __module__ = PUBLIC
    __slots__ = ()
    _NULL = _NULL
    _NULL_NAME = "MPI_WIN_NULL"
    _KIND = "window"
    _FIXED_HINTS = frozenset({_BY_NETWORK})
    _STATE = (WinState,)
    _state: WinState

    def __new__(cls, win: Win | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(win, "win")

    # Making and ending

    @classmethod
    def Create(cls, memory: Buffer, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Make a window of memory that each rank has, perhaps none (`BOTTOM`)."""

        def prepare() -> Part:
            unit = checked_unit(disp_unit)
            if is_bottom(memory):
                return Part(0, 0, unit)
            found = host_memory(memory, "Win.Create")
            return Part(found.address, found.nbytes, unit, (memory, found.owner))

        return cls._make(comm, prepare, mpi.WIN_FLAVOR_CREATE, info)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Make a window of new memory, `size` bytes on each rank, that all ranks reach without a system call."""

        def prepare() -> Part:
            memory.begin_exports()  # now: who stores to it right behind this call comes before others reach it, as in other MPIs
            unit, nbytes = checked_unit(disp_unit), checked_size(size, "Win.Allocate")
            engine = comm._state.native.engine
            heap = engine.arena.open_heap(engine.local_rank)
            try:
                address = heap.allocate(nbytes)
            except MemoryError as error:
                errors.fail(errors.ERR_NO_MEM, f"Win.Allocate: {error}")
            return Part(address, nbytes, unit, None, lambda: heap.free(address))

        return cls._make(comm, prepare, mpi.WIN_FLAVOR_ALLOCATE, info)

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Make a window of new memory, `size` bytes on each rank, that all ranks load from and store to (`Shared_query`).

        The segments lie one behind the other, in the order of ranks.

        Raises
        ------
        Exception
            ERR_RMA_SHARED: ranks of the communicator are on other nodes. ERR_SIZE, ERR_NO_MEM: an argument of a rank, or memory.
        """

        def prepare() -> Part:
            memory.begin_exports()  # as above
            return shared_part(
                comm._state.native, lambda: checked_size(size, "Win.Allocate_shared"), lambda: checked_unit(disp_unit)
            )

        return cls._make(comm, prepare, mpi.WIN_FLAVOR_SHARED, info)

    @classmethod
    def Create_dynamic(cls, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Make a window to which ranks attach memory later; displacements are the addresses there (`MPI.Get_address`)."""

        def prepare() -> Part:
            engine = comm._state.native.engine
            heap = engine.arena.open_heap(engine.local_rank)
            table = heap.allocate(TABLE_BYTES)
            return Part(0, 0, 1, None, lambda: heap.free(table), table)

        return cls._make(comm, prepare, mpi.WIN_FLAVOR_DYNAMIC, info)

    def Attach(self, memory: Buffer) -> None:
        """Attach a local memory region, which is the window's until it is detached, or the window freed.

        Raises
        ------
        Exception
            ERR_RMA_FLAVOR: the window is not dynamic. ERR_RMA_ATTACH: the memory overlaps what is attached.
        """
        regions, found = self._regions("Attach"), host_memory(memory, "Win.Attach")
        regions.add(found.address, found.nbytes)
        self._state.attached[found.address] = memory, found.owner

    def Detach(self, memory: Buffer) -> None:
        """Detach a local memory region.

        Raises
        ------
        Exception
            ERR_RMA_FLAVOR: the window is not dynamic. ERR_RMA_ATTACH: the memory is not attached.
        """
        address = host_memory(memory, "Win.Detach").address
        self._regions("Detach").remove(address)
        del self._state.attached[address]

    def _regions(self, what: str) -> Regions:
        window = self._window
        if not window.part.regions:
            errors.fail(errors.ERR_RMA_FLAVOR, f"Win.{what} is for windows of Create_dynamic")
        return Regions(window.comm.rank, window.part.regions)

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        """Query the process-local address for remote memory segments.

        Returns the memory of a rank, and its displacement unit; for `PROC_NULL` of the first rank that has any, wherever that is. It
        has no bytes if it cannot be loaded from and stored to here.

        Raises
        ------
        Exception
            ERR_RMA_FLAVOR: the window is dynamic.
        """
        window, target = self._window, self._target_rank(rank, must_be_open=False)
        if window.part.regions:
            errors.fail(
                errors.ERR_RMA_FLAVOR, "Win.Shared_query: a dynamic window has no segments; Allocate_shared makes one that has"
            )
        every = range(window.comm.size)
        chosen = next((other for other in every if window.size_of(other)), 0) if target == PROC_NULL else target
        address, nbytes, unit = window.segment(chosen)
        return memory.buffer._over(address, nbytes, False, None, window.part), unit

    @classmethod
    def _make(cls, comm: Intracomm, prepare: Callable[[], Part], flavor: int, info: Info) -> Self:
        instance(comm, Intracomm)
        items = hints(info)
        own = communicator.duplicate(comm._state.native)
        state = WinState()
        try:
            operations = word_operations() if items.get(_BY_NETWORK) == "true" else None
            state.window = Window(own, prepare, numbered, _NOT_REDUCTIONS, operations)
        except BaseException:
            communicator.return_slot(own)
            raise
        if flavor in _OF_NEW_MEMORY:
            state.window.give_head_start()
        state.address = state.window.words.address
        state.attached = {}
        state.flavor = flavor
        state.name = ""
        if _BY_NETWORK in items:
            items[_BY_NETWORK] = "true" if state.window.is_by_network else "false"
        state.info = items
        state.attributes = {}
        state.errhandler = default_errhandler()
        errhandler_dispatch.use(state.errhandler, Win)
        _open.add(state)
        return cls._refer(state)

    def Free(self) -> None:
        """Free the window, when all ranks have come here."""
        state, window = self._state, self._window
        if state.attributes:
            attributes.delete_all(self._KIND, self, state.attributes)
        window.close()
        communicator.return_slot(window.comm)
        _open.discard(state)
        state.empty()
        state.retired = window
        self._become_null()

    # What it is

    def tomemory(self) -> buffer:
        """Return this rank's memory in the window."""
        part = self._state.window.part
        return memory.buffer._over(part.address, part.nbytes, False, None, part if part.nbytes else None)

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return this rank's memory in the window."""
        return memoryview(self.tomemory())

    def Get_group(self) -> Group:
        """Return a duplicate of the group of the communicator used to create the window."""
        comm = self._state.window.comm
        return Group._of(comm.world_ranks, comm.engine.rank)

    @property
    def group(self) -> Group:
        """Group."""
        return self.Get_group()

    @property
    def group_size(self) -> int:
        """Group size."""
        return self._state.window.comm.size

    @property
    def group_rank(self) -> int:
        """Group rank."""
        return self._state.window.comm.rank

    @property
    def attrs(self) -> tuple[int, int, int]:
        """Window attributes: base, size and displacement unit."""
        part = self._state.window.part
        return part.address, part.nbytes, part.unit

    @property
    def flavor(self) -> int:
        """Create flavor."""
        return self._state.flavor

    @property
    def model(self) -> int:
        """Memory model."""
        self._state.window  # noqa: B018  (raises if it is null or was freed)
        return mpi.WIN_UNIFIED

    # Access

    def Put(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> None:
        """Put data into a memory window on a remote process."""
        state = self._state
        code = fast_windows.put(state.address, origin, target_rank, target)
        if code != 0 and settle(state.window, code, target_rank):
            self._put(origin, target_rank, target)

    def _put(self, origin: BufSpec, target_rank: int, target: TargetSpec | None) -> None:
        """Put what is not usual, or not valid."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return
        sent = arguments.send(origin)
        place, _ = self._place(rank, target, sent)
        if sent.nbytes:
            address, owner = sent.packed()
            self._window.target(rank).write(place, address, owner)

    def Get(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> None:
        """Get data from a memory window on a remote process."""
        state = self._state
        code = fast_windows.get(state.address, origin, target_rank, target)
        if code != 0 and settle(state.window, code, target_rank):
            _wait(self._get(origin, target_rank, target))

    def _get(self, origin: BufSpec, target_rank: int, target: TargetSpec | None) -> Fetch | None:
        """Start getting data; None if it is here."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return None
        received = arguments.recv(origin)
        place, _ = self._place(rank, target, received)
        return self._window.target(rank).read(place, received.landing()) if received.nbytes else None

    def Accumulate(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None, op: Op = SUM) -> None:
        """Accumulate data into a memory window on a remote process."""
        state = self._state
        table = op._state.table if isinstance(op, Op) else NO_TABLE  # a call of table_of would be a tenth of this one
        code = fast_windows.accumulate(state.address, origin, target_rank, target, table)
        if code != 0 and settle(state.window, code, target_rank):
            self._accumulate(origin, target_rank, target, op)

    def _accumulate(self, origin: BufSpec, target_rank: int, target: TargetSpec | None, op: Op) -> None:
        """Accumulate what is not usual, or not valid."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return
        sent = arguments.send(origin)
        place, datatype = self._place(rank, target, sent)
        self._combine(rank, place, datatype, op, sent)

    def Get_accumulate(
        self, origin: BufSpec, result: BufSpec, target_rank: int, target: TargetSpec | None = None, op: Op = SUM
    ) -> None:
        """Fetch-and-accumulate data into a memory window on a remote process."""
        state = self._state
        code = fast_windows.get_accumulate(state.address, origin, result, target_rank, target, fast.table_of(op))
        if code != 0 and settle(state.window, code, target_rank):
            _wait(self._get_accumulate(origin, result, target_rank, target, op))

    def _get_accumulate(
        self, origin: BufSpec, result: BufSpec, target_rank: int, target: TargetSpec | None, op: Op
    ) -> Fetch | None:
        """Start fetching and accumulating; None if the result is here."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return None
        sent, received = arguments.send(origin), arguments.recv(result)
        place, datatype = self._place(rank, target, received if op == NO_OP else sent)
        return self._fetch(rank, place, datatype, op, sent, received)

    def Fetch_and_op(self, origin: BufSpec, result: BufSpec, target_rank: int, target_disp: int = 0, op: Op = SUM) -> None:
        """Perform one-sided read-modify-write of a single element."""
        state = self._state
        table = op._state.table if isinstance(op, Op) else NO_TABLE
        code = fast_windows.fetch_and_op(state.address, origin, result, target_rank, target_disp, table)
        if code != 0 and settle(state.window, code, target_rank):
            self._fetch_and_op(origin, result, target_rank, target_disp, op)

    def _fetch_and_op(self, origin: BufSpec, result: BufSpec, target_rank: int, target_disp: int, op: Op) -> None:
        """Read, modify and write what is not usual, or not valid."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return
        sent, received = arguments.send(origin), arguments.recv(result)
        check_single(origin=sent, result=received)
        place, datatype = self._place(rank, integer(target_disp, "target_disp"), sent)
        _wait(self._fetch(rank, place, datatype, op, sent, received))

    def Compare_and_swap(self, origin: BufSpec, compare: BufSpec, result: BufSpec, target_rank: int, target_disp: int = 0) -> None:
        """Perform one-sided atomic compare-and-swap of a single element."""
        state = self._state
        code = fast_windows.compare_and_swap(state.address, origin, compare, result, target_rank, target_disp)
        if code != 0 and settle(state.window, code, target_rank):
            self._compare_and_swap(origin, compare, result, target_rank, target_disp)

    def _compare_and_swap(self, origin: BufSpec, compare: BufSpec, result: BufSpec, target_rank: int, target_disp: int) -> None:
        """Compare and swap what is not usual, or not valid."""
        rank = self._target_rank(target_rank)
        if rank == PROC_NULL:
            return
        sent, expected, received = arguments.send(origin), arguments.send(compare), arguments.recv(result)
        check_single(origin=sent, compare=expected, result=received)
        place, _ = self._place(rank, integer(target_disp, "target_disp"), sent)
        (address, _a), (other, _b) = sent.packed(), expected.packed()
        _wait(self._window.target(rank).swap_if_same(place, address, other, received.landing()))

    def Rput(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> Request:
        """Put data into a memory window on a remote process."""
        self.Put(origin, target_rank, target)
        return Request._refer(Operation())

    def Rget(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> Request:
        """Get data from a memory window on a remote process."""
        if self._has_near_only and fast_windows.get(self._state.address, origin, target_rank, target) == 0:
            return _request(None)
        return _request(self._get(origin, target_rank, target))

    def Raccumulate(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None, op: Op = SUM) -> Request:
        """Accumulate data into a memory window on a remote process."""
        self.Accumulate(origin, target_rank, target, op)
        return Request._refer(Operation())

    def Rget_accumulate(
        self, origin: BufSpec, result: BufSpec, target_rank: int, target: TargetSpec | None = None, op: Op = SUM
    ) -> Request:
        """Fetch-and-accumulate data into a memory window on a remote process."""
        address, table = self._state.address, fast.table_of(op)
        if self._has_near_only and fast_windows.get_accumulate(address, origin, result, target_rank, target, table) == 0:
            return _request(None)
        return _request(self._get_accumulate(origin, result, target_rank, target, op))

    @property
    def _has_near_only(self) -> bool:
        """Whether no target has to be asked: the compiled calls wait for the answer."""
        return not self._state.window.words.reach_far

    @property
    def _window(self) -> Window:
        """The window, for a process that can communicate."""
        window = self._state.window
        runtime.engine()  # raises after Finalize, and in a fork of a rank
        return window

    def _target_rank(self, target_rank: int, must_be_open: bool = True) -> int:
        """Return a target's rank, once it is found to be one; usually one whose memory may be accessed now."""
        window, rank = self._window, integer(target_rank, "target_rank")
        if rank == PROC_NULL:
            return rank
        if not 0 <= rank < window.comm.size:
            errors.fail(errors.ERR_RANK, f"target rank {rank} is none of the ranks 0 to {window.comm.size - 1} of this window")
        if must_be_open:
            window.check_open(rank)
        return rank

    def _place(self, rank: int, target: TargetSpec | None, origin: arguments.Buffer) -> tuple[Place, Datatype]:
        """Return where in the target's memory an access goes, and the datatype there."""
        displacement, count, datatype = arguments.target(target, origin)
        if count < 0:
            errors.fail(errors.ERR_COUNT, f"target rank {rank}: the count is negative: {count}")
        layout = committed(datatype._state, "target")
        if count * layout.size != origin.nbytes:
            errors.fail(
                errors.ERR_TRUNCATE,
                f"target rank {rank}: {origin.nbytes} bytes at the origin do not match {count * layout.size} at the target",
            )
        return self._window.place(rank, Place(layout, count, displacement)), datatype

    def _fetch(
        self, rank: int, place: Place, datatype: Datatype, op: Op, sent: arguments.Buffer, received: arguments.Buffer
    ) -> Fetch | None:
        """Start combining into a target, and getting what it held before; None if that is here."""
        if received.nbytes != place.nbytes:
            errors.fail(
                errors.ERR_TRUNCATE,
                f"target rank {rank}: {received.nbytes} bytes in the result buffer do not match {place.nbytes} at the target",
            )
        return self._combine(rank, place, datatype, op, sent, received)

    def _combine(
        self,
        rank: int,
        place: Place,
        datatype: Datatype,
        op: Op,
        sent: arguments.Buffer,
        received: arguments.Buffer | None = None,
    ) -> Fetch | None:
        """Combine a buffer into a target; what the target held before goes to another buffer, if there is one."""
        nbytes = place.nbytes
        reduction = None if op in (REPLACE, NO_OP) else reduction_of(op, datatype, sent.datatype, nbytes)
        if not nbytes or (reduction is None and received is None and op == NO_OP):
            return None
        (address, _owner), target = sent.packed(), self._window.target(rank)
        landing: Landing | None = None if received is None else received.landing()
        if reduction is None and op == REPLACE:
            return target.replace(place, address, landing)
        return target.combine(place, reduction, address, landing)

    # Synchronisation

    def Fence(self, assertion: int = 0) -> None:
        """Perform an MPI fence synchronization on a window."""
        state = self._state
        code = fast_windows.fence(state.address, assertion)
        if code != 0 and settle_fence(state.window, code):
            self._window.fence(bool(checked_assertion(assertion) & mpi.MODE_NOSUCCEED))

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Start an RMA access epoch."""
        state = self._state
        code = fast_windows.start_epoch(state.address, group._state.ranks if isinstance(group, Group) else None, assertion)
        if code != 0 and settle_epoch(state.window, code, "Win.Start"):
            checked_assertion(assertion)
            self._window.epochs.start(self._members(group))

    def Complete(self) -> None:
        """Complete an RMA operation begun after an `Start`."""
        state = self._state
        if fast_windows.complete_epoch(state.address) != 0:
            self._window.complete()

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Start an RMA exposure epoch."""
        state = self._state
        if fast_windows.post_epoch(state.address, group._state.ranks if isinstance(group, Group) else None, assertion) != 0:
            checked_assertion(assertion)
            self._window.epochs.post(self._members(group))

    def Wait(self) -> Literal[True]:
        """Complete an RMA exposure epoch begun with `Post`."""
        state = self._state
        code = fast_windows.wait_epoch(state.address)
        if code != 0 and settle_epoch(state.window, code, "Win.Wait"):
            self._window.epochs.wait()
        return True

    def Test(self) -> bool:
        """Test whether an RMA exposure epoch has completed."""
        state = self._state
        code: int = fast_windows.test_epoch(state.address)
        if code < 0 and settle_epoch(state.window, code, "Win.Test"):
            return self._window.epochs.test()
        return code == 0

    def _members(self, group: Group) -> list[int]:
        """Return the ranks in the window that the members of a group have."""
        instance(group, Group)
        comm = self._window.comm
        strangers = set(group._state.ranks) - set(comm.world_ranks)
        if strangers:
            errors.fail(errors.ERR_GROUP, f"world ranks {sorted(strangers)} of the group have no part in this window")
        return [comm.world_ranks.index(rank) for rank in group._state.ranks]

    def Lock(self, rank: int, lock_type: int = mpi.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an RMA access epoch at the target process."""
        state = self._state
        code = fast_windows.lock_target(state.address, rank, lock_type, assertion)
        if code != 0 and settle_lock(state.window, code, rank):
            self._lock(rank, lock_type, assertion)

    def _lock(self, rank: int, lock_type: int, assertion: int) -> None:
        """Lock what is waited for, not usual, or not valid."""
        checked_assertion(assertion)
        if lock_type not in (mpi.LOCK_EXCLUSIVE, mpi.LOCK_SHARED):
            errors.fail(errors.ERR_LOCKTYPE, f"{lock_type} is no lock type; MPI.LOCK_EXCLUSIVE and MPI.LOCK_SHARED are")
        target = self._target_rank(rank, must_be_open=False)
        if target != PROC_NULL:
            self._window.lock(target, lock_type == mpi.LOCK_EXCLUSIVE)

    def Unlock(self, rank: int) -> None:
        """Complete an RMA access epoch at the target process."""
        state = self._state
        code = fast_windows.unlock_target(state.address, rank)
        if code != 0 and settle_unlock(state.window, code, rank):
            target = self._target_rank(rank, must_be_open=False)
            if target != PROC_NULL:
                self._window.unlock(target)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an RMA access epoch at all processes."""
        state = self._state
        if fast_windows.lock_all(state.address, assertion) != 0:
            checked_assertion(assertion)
            self._window.lock_all()

    def Unlock_all(self) -> None:
        """Complete an RMA access epoch at all processes."""
        state = self._state
        if fast_windows.unlock_all(state.address) != 0:
            self._window.unlock_all()

    def Flush(self, rank: int) -> None:
        """Complete all outstanding RMA operations at a target."""
        state = self._state
        code = fast_windows.flush(state.address, rank)
        if code != 0 and settle(state.window, code, rank):
            target = self._target_rank(rank, must_be_open=False)
            if target != PROC_NULL:
                self._window.flush(target)

    def Flush_all(self) -> None:
        """Complete all outstanding RMA operations at all targets."""
        state = self._state
        code = fast_windows.flush_all(state.address)
        if code != 0 and settle_all(state.window, code, "Win.Flush_all"):
            self._window.flush(None)

    def Flush_local(self, rank: int) -> None:
        """Complete locally all outstanding RMA operations at a target."""
        self.Flush(rank)

    def Flush_local_all(self) -> None:
        """Complete locally all outstanding RMA operations at all targets."""
        self.Flush_all()

    def Sync(self) -> None:
        """Synchronize public and private copies of the window."""
        self._window.order_memory()


class Fetching(Operation):
    """An access that brings something from a rank which shares no memory with this one."""

    __slots__ = ("fetch",)

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self.fetch = fetch

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.fetch.poll()

    def wait(self) -> None:
        """Return when it is done."""
        self.fetch.wait()

    def finish(self) -> None:
        """Put what it brought where it belongs, and empty it."""
        fetch = self.fetch
        self.empty()
        fetch.wait()

    def abandon(self) -> None:
        """Give it up after a wait that failed."""
        fetch = self.fetch
        self.empty()
        fetch.abandon()


def _wait(fetch: Fetch | None) -> None:
    """Return when what was started is here, if it is not yet."""
    if fetch is not None:
        wait_for(Fetching(fetch))


def _request(fetch: Fetch | None) -> Request:
    """Return the request for what was started, None if it is here already."""
    return Request._refer(Operation() if fetch is None else Fetching(fetch))


_PREDEFINED: dict[int, Callable[[Win], int]] = {
    mpi.WIN_BASE: lambda win: win.attrs[0],
    mpi.WIN_SIZE: lambda win: win.attrs[1],
    mpi.WIN_DISP_UNIT: lambda win: win.attrs[2],
    mpi.WIN_CREATE_FLAVOR: lambda win: win.flavor,
    mpi.WIN_MODEL: lambda win: win.model,
}

Win._PREDEFINED = _PREDEFINED
export(Win, lambda win: win.attrs[:2])
WIN_NULL = constant(Win(), "WIN_NULL")


begin_with_signatures([Win])

"""MPI.Win: memory that other ranks write and read without the owner's help, between fences.

A window lies in the shared memory of the node, so Put and Get are copies, complete on return. What this part does not
have, later parts will: windows over the program's own memory, locks, accumulation.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

from ncclx_mpi import buffers, errors, runtime
from ncclx_mpi.api.constants import PROC_NULL
from ncclx_mpi.api.datatype import Datatype
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import Handle, State, constant, integer, is_constant
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.intracomm import COMM_SELF, Intracomm
from ncclx_mpi.api.memory import Alloc_mem, Free_mem, buffer
from ncclx_mpi.buffers import Buffer, packing
from ncclx_mpi.buffers.layout import committed
from ncclx_mpi.typing import BufSpec, TargetSpec

_NO_SUCCEED = 16384
"""Assertion that no epoch follows a fence."""


class Part(NamedTuple):
    """One rank's memory in a window: where in the arena, bytes, and bytes of a displacement."""

    offset: int
    nbytes: int
    unit: int


class WinState(State):
    """The window that handles share."""

    __slots__ = ("base", "comm", "is_open", "memory", "parts")
    WHAT = "window"
    ERROR = errors.ERR_WIN
    base: int
    comm: Intracomm
    is_open: bool
    memory: buffer
    parts: list[Part]


_NULL = WinState()


class Win(Handle):
    """Memory of all ranks of a communicator that each of them can write and read."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = WinState
    _ROOT: ClassVar[type[Handle]]
    _state: WinState

    def __new__(cls, win: Win | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(win, "win")

    @classmethod
    def fromhandle(cls, handle: int) -> Win:
        """Make the handle that :attr:`handle` gave."""
        return cls._refer(cls._find(handle))

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Allocate `size` bytes on each rank and make a window of them; displacements are multiples of `disp_unit` bytes."""
        nbytes, unit = integer(size, "size"), integer(disp_unit, "disp_unit")
        if not isinstance(comm, Intracomm):
            raise TypeError(f"expected an Intracomm, got {type(comm).__name__}")
        if nbytes < 0:
            errors.fail(errors.ERR_SIZE, f"Win.Allocate: the size is negative: {nbytes}")
        if unit <= 0:
            errors.fail(errors.ERR_DISP, f"Win.Allocate: the unit of displacements is not positive: {unit}")
        state = WinState()
        state.comm = comm.Dup()
        state.base = runtime.engine().arena.base
        state.memory = Alloc_mem(nbytes, info)
        state.is_open = False
        state.parts = state.comm.allgather(Part(state.memory.address - state.base, nbytes, unit))
        return cls._refer(state)

    def Free(self) -> None:
        """Free the window and its memory, when all ranks have come here."""
        state = self._state
        state.comm.Barrier()
        Free_mem(state.memory)
        state.comm.Free()
        state.empty()
        self._state = _NULL

    def free(self) -> None:
        """Free the window unless it is null."""
        if self and not is_constant(self):
            self.Free()

    def Fence(self, assertion: int = 0) -> None:
        """Wait for all ranks; what they put before is there, and may be read and written by all after."""
        state, asserted = self._state, integer(assertion, "assertion")
        state.comm.Barrier()
        state.is_open = not asserted & _NO_SUCCEED

    def Put(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> None:
        """Write elements of `origin` to a rank's memory, at ``displacement`` or ``[displacement, count, type]``."""
        state, rank = self._state, self._target(target_rank)
        if rank == PROC_NULL:
            return
        resolved = buffers.send(origin)
        there = _resolve(state, rank, target, resolved)
        if not there.contiguous:
            address, _owner = resolved.packed()
            packing.unpack(there.layout, address, resolved.nbytes, there.address)
        elif resolved.nbytes:
            packing.pack(resolved.layout, resolved.origin, resolved.count, there.address)

    def Get(self, origin: BufSpec, target_rank: int, target: TargetSpec | None = None) -> None:
        """Read elements from a rank's memory, at ``displacement`` or ``[displacement, count, type]``, into `origin`."""
        state, rank = self._state, self._target(target_rank)
        if rank == PROC_NULL:
            return
        resolved = buffers.recv(origin)
        there = _resolve(state, rank, target, resolved)
        address, _owner = there.packed()
        packing.unpack(resolved.layout, address, resolved.nbytes, resolved.origin)

    def Get_group(self) -> Group:
        """The group of the ranks of the window."""
        return self._state.comm.Get_group()

    @property
    def group(self) -> Group:
        """The group of the ranks of the window."""
        return self.Get_group()

    def tomemory(self) -> buffer:
        """This rank's memory."""
        memory = self._state.memory
        return buffer.fromaddress(memory.address, memory.nbytes)

    def _target(self, target_rank: int) -> int:
        """The rank, once it and the epoch are found to be right."""
        state, rank = self._state, integer(target_rank, "target_rank")
        if rank != PROC_NULL and not 0 <= rank < len(state.parts):
            errors.fail(errors.ERR_RANK, f"target rank {rank} is no rank of this window of {len(state.parts)}")
        if not state.is_open:
            errors.fail(errors.ERR_RMA_SYNC, "a window is written and read between fences: call Fence on all its ranks first")
        return rank


def _resolve(state: WinState, rank: int, target: Any, origin: Buffer) -> Buffer:
    """The memory of the target as a buffer, as many bytes as `origin` when packed."""
    displacement, count, datatype = buffers.target(target, origin)
    layout, part = committed(datatype._state, "target"), state.parts[rank]
    start = displacement * part.unit
    reach = (count - 1) * layout.extent
    low = start + min(reach, 0) + layout.true_lb
    high = start + max(reach, 0) + layout.true_ub
    if count < 0:
        errors.fail(errors.ERR_COUNT, f"the target count is {count}")
    if count and layout.packed and (low < 0 or high > part.nbytes):
        errors.fail(errors.ERR_RMA_RANGE, f"bytes {low} to {high} are not in the {part.nbytes} bytes of rank {rank} in this window")
    if count * layout.packed != origin.nbytes:
        errors.fail(errors.ERR_TRUNCATE, f"{origin.nbytes} bytes at the origin do not match {count * layout.packed} at the target")
    address = state.base + part.offset + start
    return Buffer(address, count, Datatype(datatype), layout, state.memory, False)


Win._ROOT = Win
WIN_NULL = constant(Win(), "WIN_NULL")

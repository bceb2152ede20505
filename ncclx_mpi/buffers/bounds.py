"""Whether elements lie in memory that is there, as far as this can be known.

A view names an address. A derived datatype may reach over the ends of a view, as a column does that begins at the first element of
an array, so what it is held against are facts: the memory of the array that owns the view, or of the object that exports it. Where
only an address and a claimed length are known (``MPI.memory.fromaddress``, DLPack, array interfaces) there is nothing to hold it
against. A count of a predefined datatype says no more than how much of the view is meant: more than the view has is a mistake.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.buffers.source import Raw, open_export
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from ncclx_mpi.gpu_memory.staging import Lease
from numba_kernels.late_numpy import is_any_array

_FROM_BUFFER = "ffffffff"
"""Under which key ctypes keeps what ``from_buffer`` was given."""

Range = tuple[int, int]
"""First address, and address after the last."""

_Data: Any = ctypes.Array.__mro__[-2]
"""What all objects of ctypes are."""


class Memory(Protocol):
    """Memory as a program names it; a length of -1 stands for an address alone."""

    @property
    def address(self) -> int:
        """Of the first byte."""

    @property
    def nbytes(self) -> int:
        """Length of the view."""

    @property
    def owner(self) -> Any:
        """What keeps the memory alive."""

    @property
    def lent(self) -> DeviceMemory | None:
        """The GPU's memory that it is."""


def check_inside(memory: Memory, offset: int, count: int, layout: Layout) -> None:
    """Raise ValueError if `count` elements at byte `offset` are known to reach beyond the memory that is there."""
    low, high = layout.reach(count)
    nbytes = memory.nbytes
    if nbytes < 0 or (low + offset >= 0 and high + offset <= nbytes) or low == high:
        return
    room = memory.address, memory.address + nbytes
    if not layout.is_predefined:
        known = _room(memory)
        if known is None:
            return
        room = known
    start, end = room[0] - memory.address, room[1] - memory.address
    low, high = low + offset, high + offset
    if low < start or high > end:
        around = "" if (start, end) == (0, nbytes) else f", in memory from byte {start} to {end}"
        raise ValueError(
            f"message: {count} elements of {layout.name or 'a derived datatype'} reach from byte {low} to {high}, "
            f"but the buffer has {nbytes} bytes{around}"
        )


def _room(memory: Memory) -> Range | None:
    """All the memory that is known to be there around a view; None if there is but a claim."""
    start, end = memory.address, memory.address + memory.nbytes
    if isinstance(memory.owner, Lease):  # a copy of the view, and of nothing around it
        return start, end
    known = memory.lent.known if memory.lent is not None else None
    room = _owned(memory.owner) if known is None else (known.base, known.base + known.nbytes)
    return room if room is not None and room[0] <= start and end <= room[1] else None


def _owned(owner: Any) -> Range | None:
    """The memory of the object at the end of the chain of views that begins with `owner`."""
    while owner is not None:
        following = _behind(owner)
        if following is owner:
            return _own(owner)
        owner = following
    return None


def _behind(owner: Any) -> Any:
    """The object whose memory another one views; itself if it views none, None if that is not known."""
    if isinstance(owner, tuple):  # an export, and the object that it is of
        return owner[-1]
    if isinstance(owner, memoryview):
        return owner.obj
    if is_any_array(owner):
        return owner if owner.flags.owndata else owner.base
    if isinstance(owner, Raw):  # its owner is an address where that was allocated
        return owner if isinstance(owner._owner, int) else owner._owner
    if isinstance(owner, _Data):
        return owner if owner._b_needsfree_ else _behind_data(owner)
    return owner


def _behind_data(owner: Any) -> Any:
    """The same for an object of ctypes that lies in memory of another one: part of it, or made by its type's ``from_buffer``."""
    if owner._b_base_ is not None:
        return owner._b_base_
    kept = owner._objects
    found = kept.get(_FROM_BUFFER) if isinstance(kept, dict) else kept
    return found if isinstance(found, memoryview) else None


def _own(owner: Any) -> Range | None:
    """The memory that an object has, None if it exports none."""
    if is_any_array(owner):
        address = array_words(owner)[0]
        return address, address + owner.nbytes
    try:
        export = open_export(owner)
    except (TypeError, ValueError, BufferError):
        return None
    start = export.buf or 0
    return start, start + export.len

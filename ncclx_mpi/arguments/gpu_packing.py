"""Elements in GPU memory to and from packed bytes in pinned host memory: what a device array takes part in a call with.

Contiguous elements are one copy each. Others are packed by a kernel, which reads and writes pinned memory itself. Without a compiler for
it, or memory that can be pinned, they are packed by the CPU: the range that they span is copied where it is dense, else each of their
blocks by itself. What arrives then goes block by block, since the gaps between belong to the program and may change meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from numba_kernels.cuda.driver import Driver
from numba_kernels.cuda.ptx import CompilerMissing
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from numba_kernels.cuda.pack import Typemap

_FEW = 8
"""So many blocks are copied one by one: about the cost of a kernel."""

_THREADS, _BLOCKS_EACH = 512, 2
"""Threads a block, and blocks a multiprocessor at most: a few reach the speed of the bus."""

_WINDOW = 4 << 20
_DENSE = 16
"""A range is copied whole by the CPU's way if at least one byte in so many is wanted."""


class _Compiler:
    is_missing = False


class Piece(NamedTuple):
    """Some elements and their packed form.

    Attributes
    ----------
    layout, origin
        What one element is, and where offset 0 of the first one is.
    nbytes
        How many packed bytes; perhaps no whole number of elements.
    packed
        Where these are, in a lease.
    first
        Which byte of the packed elements is the first of them.
    """

    layout: Layout
    origin: int
    nbytes: int
    packed: int
    first: int = 0


def read(memory: DeviceMemory, pieces: Sequence[Piece], room: staging.Lease) -> None:
    """Copy elements to packed bytes in `room`, after what the array's stream holds; complete on return."""
    left = []
    keeps: list[Any] = [room]
    with memory.in_order(keeps) as driver:
        for piece in _flat(pieces):
            if _is_few(piece):
                for at, packed, nbytes in _blocks(piece):
                    driver.copy(packed, at, nbytes, memory.stream.handle)
            elif not (room.is_pinned and _launch(driver, memory, piece, False, keeps)):
                left.append(piece)
    for piece in left:
        _read_without_kernel(memory, piece, room)


def write(memory: DeviceMemory, pieces: Sequence[Piece], room: staging.Lease) -> None:
    """Copy packed bytes in `room` to elements, after what the array's stream holds; complete on return."""
    keeps: list[Any] = [room]
    with memory.in_order(keeps) as driver:
        for piece in _flat(pieces):
            if _is_few(piece) or not (room.is_pinned and _launch(driver, memory, piece, True, keeps)):
                for at, packed, nbytes in _blocks(piece):
                    driver.copy(at, packed, nbytes, memory.stream.handle)


def _flat(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same, of layouts whose blocks are few enough to be listed."""
    for piece in pieces:
        if piece.layout.is_flat:
            yield piece
        else:
            yield from _walked(*piece)


def _walked(layout: Layout, origin: int, nbytes: int, packed: int, first: int) -> Iterator[Piece]:
    """A piece as pieces of flat layouts."""
    passed, skipped = divmod(first, layout.size)
    for run in layout.runs(origin + passed * layout.extent, -(-(skipped + nbytes) // layout.size)):
        size = run.number * run.layout.size
        part = max(min(size - skipped, nbytes), 0)
        if part:
            yield Piece(run.layout, run.origin, part, packed, skipped)
        skipped = max(skipped - size, 0)
        packed, nbytes = packed + part, nbytes - part
        if not nbytes:
            return


def lease(memory: DeviceMemory, nbytes: int) -> staging.Lease:
    """Pinned memory for packed elements of an array."""
    again = staging.lease_again(memory.driver, nbytes)
    if again is not None:
        return again
    with memory.current() as driver:
        return staging.lease(driver, nbytes)


def _is_few(piece: Piece) -> bool:
    """Whether copying block by block is the fastest way."""
    layout = piece.layout
    return layout.contiguous or -(-piece.nbytes // layout.size) * len(layout.blocks) <= _FEW


def _launch(driver: Driver, memory: DeviceMemory, piece: Piece, unpacking: bool, keeps: list[Any]) -> bool:
    """Enqueue a kernel that packs or unpacks; False if there is none. `keeps` gets what it reads."""
    if _Compiler.is_missing:
        return False
    passed, first = divmod(piece.first, piece.layout.size)
    typemap = _typemap(piece.layout, -(-(first + piece.nbytes) // piece.layout.size))
    table = 0
    if typemap.table is not None:
        room = staging.lease(driver, typemap.table.nbytes)
        if not room.is_pinned:
            return False
        ctypes.memmove(room.address, typemap.table.ctypes.data, typemap.table.nbytes)
        keeps.append(room)
        table = room.address
    origin = piece.origin + passed * piece.layout.extent
    launch = typemap.launch(origin, piece.packed, unpacking=unpacking, first=first, nbytes=piece.nbytes, table=table)
    blocks = min(-(-launch.units // _THREADS), _BLOCKS_EACH * driver.multiprocessors(memory.device))
    try:
        driver.launch(launch.kernel, memory.stream.handle, blocks, _THREADS, launch.arguments)
    except CompilerMissing as missing:
        _Compiler.is_missing = True
        warnings.warn(
            f"derived datatypes of GPU arrays are packed by the CPU, which is slow: {missing}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@functools.lru_cache(maxsize=64)
def _typemap(layout: Layout, count: int) -> Typemap:
    from numba_kernels.cuda.pack import Typemap  # kernels are declared when the first one is needed

    return Typemap(layout.blocks, layout.extent, count)


def _read_without_kernel(memory: DeviceMemory, piece: Piece, room: staging.Lease) -> None:
    if _is_dense(piece):
        _read_ranges(memory, piece)
        return
    with memory.in_order(room) as driver:
        for at, packed, nbytes in _blocks(piece):
            driver.copy(packed, at, nbytes, memory.stream.handle)


def _is_dense(piece: Piece) -> bool:
    """Whether these are whole elements, and the range that they span is worth being copied."""
    layout = piece.layout
    span = layout.true_ub - layout.true_lb
    if piece.first % layout.size or piece.nbytes % layout.size:
        return False
    return 0 < layout.extent <= _WINDOW and span <= _WINDOW and max(span, layout.extent) <= _DENSE * layout.size


def _read_ranges(memory: DeviceMemory, piece: Piece) -> None:
    """Copy what some elements span at a time, and pack it here."""
    layout, count = piece.layout, piece.nbytes // piece.layout.size
    origin = piece.origin + piece.first // layout.size * layout.extent
    span = layout.true_ub - layout.true_lb
    step = min(count, (_WINDOW - span) // layout.extent + 1)
    bounce = lease(memory, (step - 1) * layout.extent + span)
    for first in range(0, count, step):
        number = min(step, count - first)
        low = origin + first * layout.extent + layout.true_lb
        with memory.in_order(bounce) as driver:
            driver.copy(bounce.address, low, (number - 1) * layout.extent + span, memory.stream.handle)
        packing.pack(layout, bounce.address - layout.true_lb, number, piece.packed + first * layout.size)


def _blocks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """Address, packed address and length of each run of bytes, neighbours joined."""
    layout, left, at, packed, length = piece.layout, piece.nbytes, 0, piece.packed, 0
    if layout.contiguous:
        if left:
            yield piece.origin + layout.true_lb + piece.first, packed, left
        return
    passed, skipped = divmod(piece.first, layout.size or 1)
    element, blocks = piece.origin + passed * layout.extent, layout.blocks.tolist()
    while left:
        for start, size in blocks:
            before = min(size, skipped)
            skipped -= before
            offset, taken = start + before, min(size - before, left)
            if not taken:
                continue
            if length and element + offset == at + length:
                length += taken
            else:
                if length:
                    yield at, packed, length
                    packed += length
                at, length = element + offset, taken
            left -= taken
            if not left:
                break
        element += layout.extent
    if length:
        yield at, packed, length

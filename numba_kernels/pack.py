"""Packing: the bytes of a non-contiguous datatype to and from one contiguous stream.

A datatype is a typemap: an int64 array ``blocks`` of (byte offset, byte count), in the order in which MPI packs, merged
where neighbours touch. Element ``k`` of a buffer lies at ``address + k * extent``; offsets and extent may be negative,
and nothing needs to be aligned::

    element 0          element 1                   blocks (0, 8) (16, 4), extent 24
    AAAAAAAA........BBBB....CCCCCCCC........DDDD....
    stream: AAAAAAAABBBBCCCCCCCCDDDD

``pack`` and ``unpack`` move whole elements; ``pack_range`` and ``unpack_range`` any part of the stream, so that a
large message goes in chunks and a truncated one fills just what came. The order in which bytes are moved is
free (MPI forbids overlapping blocks where data arrives).

Many small elements are moved block by block: the same block of all elements lies at a constant distance, and one loop
moves it. Large elements are walked one after the other. Blocks of the sizes of C's types go through registers,
others through ``memcpy``. (A loop of its own for vectors, equal blocks at equal distances, gained nothing.)
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.deferred import emitted
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy

CURSOR = words("Cursor", "position block inside")
"""Where the last range of a stream ended, so that the next one need not search: stream position in bytes, the index
of the block that holds it, and the position in that block. All zero is the start of the stream."""

_BLOCK = 16
"""Bytes of one row of the typemap."""

_TILE = 16384
"""Bytes of memory that are walked once for each block before moving on: what a core's nearest cache holds."""

_WORTHWHILE = 4
"""Elements in a tile from which one loop for each block beats one for each element."""


_move1, _move2, _move4, _move8, _move16 = (emitted("pack", "make_mover", nbytes) for nbytes in (1, 2, 4, 8, 16))


@kernel("void(int64, int64, int64)")
def _move(target, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy one block; the sizes of C's types, and of two or three of them, without a call."""
    if nbytes == 8:
        _move8(target, source)
    elif nbytes == 4:
        _move4(target, source)
    elif nbytes == 16:
        _move16(target, source)
    elif 16 < nbytes <= 32:
        _move16(target, source)
        _move16(target + nbytes - 16, source + nbytes - 16)
    elif nbytes == 1:
        _move1(target, source)
    elif nbytes == 2:
        _move2(target, source)
    else:
        copy(target, source, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64, boolean)")
def _strided(memory, memory_stride, stream, stream_stride, nbytes, count, unpacking):  # type: ignore[no-untyped-def]
    """Copy `count` blocks at constant distances. LLVM makes one loop for each size of :func:`_move` out of it."""
    target, target_stride = (memory, memory_stride) if unpacking else (stream, stream_stride)
    source, source_stride = (stream, stream_stride) if unpacking else (memory, memory_stride)
    if nbytes == target_stride and nbytes == source_stride:
        copy(target, source, nbytes * count)
    else:
        for i in range(count):
            _move(target + i * target_stride, source + i * source_stride, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, boolean)")
def _by_block(blocks, nblocks, size, extent, memory, count, stream, unpacking):  # type: ignore[no-untyped-def]
    """For each block, move it for all `count` elements."""
    filled = 0
    for b in range(nblocks):
        offset, nbytes = load64(blocks + b * _BLOCK), load64(blocks + b * _BLOCK + 8)
        _strided(memory + offset, extent, stream + filled, size, nbytes, count, unpacking)
        filled += nbytes


@kernel("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, boolean)")
def _whole_blocks(blocks, block, nblocks, memory, stream, room, unpacking):  # type: ignore[no-untyped-def]
    """Move the blocks of one element from `block` on, while they fit in `room` bytes: the next block, bytes moved."""
    moved = 0
    while block < nblocks:
        at, nbytes = memory + load64(blocks + block * _BLOCK), load64(blocks + block * _BLOCK + 8)
        if moved + nbytes > room:
            break
        there = stream + moved
        _move(at if unpacking else there, there if unpacking else at, nbytes)
        moved += nbytes
        block += 1
    return block, moved


@kernel("void(int64, int64, int64, int64, int64, int64, int64, boolean)")
def _elements(blocks, nblocks, size, extent, memory, count, stream, unpacking):  # type: ignore[no-untyped-def]
    """Move whole elements, by the loop that suits the shape."""
    tile = _TILE // max(abs(extent), 1)
    if nblocks == 1:
        tile = count
    if nblocks == 1 or (count >= _WORTHWHILE and tile >= _WORTHWHILE):
        for first in range(0, count, max(tile, 1)):
            here, there = memory + first * extent, stream + first * size
            _by_block(blocks, nblocks, size, extent, here, min(tile, count - first), there, unpacking)
        return
    for k in range(count):
        _whole_blocks(blocks, 0, nblocks, memory + k * extent, stream + k * size, size, unpacking)


@kernel("int64(int64, int64)")
def _size(blocks, nblocks):  # type: ignore[no-untyped-def]
    total = 0
    for b in range(nblocks):
        total += load64(blocks + b * _BLOCK + 8)
    return total


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def pack(blocks, nblocks, extent, source, count, target):  # type: ignore[no-untyped-def]
    """Pack `count` elements at `source` to `target`. Returns the number of bytes."""
    size = _size(blocks, nblocks)
    _elements(blocks, nblocks, size, extent, source, count, target, False)
    return size * count


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def unpack(blocks, nblocks, extent, source, count, target):  # type: ignore[no-untyped-def]
    """Unpack the stream at `source` to `count` elements at `target`. Returns the number of bytes."""
    size = _size(blocks, nblocks)
    _elements(blocks, nblocks, size, extent, target, count, source, True)
    return size * count


@kernel("UniTuple(int64, 2)(int64, int64, int64)")
def _seek(blocks, nblocks, inside):  # type: ignore[no-untyped-def]
    """Block, and position in it, of a stream position within one element."""
    block = 0
    if inside > 0:
        while block < nblocks and inside >= load64(blocks + block * _BLOCK + 8):
            inside -= load64(blocks + block * _BLOCK + 8)
            block += 1
    return block, inside


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, boolean)")
def _range(blocks, nblocks, size, extent, memory, first, nbytes, stream, cursor, unpacking):  # type: ignore[no-untyped-def]
    """Move `nbytes` of the stream from its position `first` on; `stream` is where that position is in memory."""
    if nbytes <= 0 or size <= 0:
        return 0
    element = first // size
    if cursor and load64(cursor + CURSOR.position) == first:
        block, inside = load64(cursor + CURSOR.block), load64(cursor + CURSOR.inside)
    else:
        block, inside = _seek(blocks, nblocks, first - element * size)
    moved = 0
    while moved < nbytes:
        here, there = memory + element * extent, stream + moved
        if block == 0 and inside == 0 and nbytes - moved >= size:
            whole = (nbytes - moved) // size
            _elements(blocks, nblocks, size, extent, here, whole, there, unpacking)
            element += whole
            moved += whole * size
        elif inside == 0 and nbytes - moved >= load64(blocks + block * _BLOCK + 8):
            block, part = _whole_blocks(blocks, block, nblocks, here, there, nbytes - moved, unpacking)
            moved += part
        else:
            at = here + load64(blocks + block * _BLOCK) + inside
            part = min(load64(blocks + block * _BLOCK + 8) - inside, nbytes - moved)
            copy(at if unpacking else there, there if unpacking else at, part)
            moved += part
            inside += part
            while block < nblocks and inside == load64(blocks + block * _BLOCK + 8):
                block += 1
                inside = 0
        if block == nblocks:
            block = 0
            element += 1
    if cursor:
        store64(cursor + CURSOR.position, first + nbytes)
        store64(cursor + CURSOR.block, block)
        store64(cursor + CURSOR.inside, inside)
    return nbytes


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def pack_range(blocks, nblocks, size, extent, source, first, nbytes, target, cursor):  # type: ignore[no-untyped-def]
    """Pack `nbytes` of the stream, from its byte `first` on, to `target`.

    `size` is the number of bytes in one element. `cursor` is the address of the words of :data:`CURSOR`, private to one
    stream, or 0; with it the next range starts without a search through the typemap. Returns `nbytes`.
    """
    return _range(blocks, nblocks, size, extent, source, first, nbytes, target, cursor, False)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def unpack_range(blocks, nblocks, size, extent, source, first, nbytes, target, cursor):  # type: ignore[no-untyped-def]
    """Unpack `nbytes` at `source`, which are the stream from its byte `first` on, to the elements at `target`.

    `size` and `cursor` as in :func:`pack_range`. Returns `nbytes`.
    """
    return _range(blocks, nblocks, size, extent, target, first, nbytes, source, cursor, True)

"""Packing on the GPU: the bytes of a derived datatype to and from one contiguous stream.

A typemap is what :mod:`numba_kernels.pack` takes: blocks of (byte offset, byte count) of one element, and the extent from element
to element. It is planned once, on the host, into one of two forms::

    lattice   equal blocks at up to three regular distances: columns, faces of 3-D arrays, most of what programs make
              +--+  .  +--+  .  +--+         n0 blocks, s0 bytes apart        place of unit u of the stream, by arithmetic:
              +--+  .  +--+  .  +--+         n1 rows of them, s1 apart        row = u // units, block = row % n0, ...
              +--+  .  +--+  .  +--+         any number of planes, s2 apart

    table     anything else: rows of (place in the element, place in its stream), found by halving

Thread t moves units t, t + threads, ... of the stream, so neighbours in a warp write (or read) neighbouring units of the stream,
and those of the memory as close together as the datatype has them: every 32-byte sector that a lattice touches is touched by one
warp, but at its ends. A unit is the widest of 16, 8, 4, 2 and 1 bytes that all places are multiples of. Two loads are under way at
a time.

Bytes moved: those of the stream once, those of the touched sectors once; a table adds 16 bytes for each step of the search, which
neighbours share.

============  =======================  =============================
what          who writes it            who reads it
============  =======================  =============================
stream        one thread a unit        nobody in the same launch
table         the host, before         all threads
============  =======================  =============================

There are no flags: the order of launches in a stream is enough. The NumPy twin is :func:`places`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from numba_kernels.cuda import intrinsics
from numba_kernels.cuda.intrinsics import VECTOR, load_i64
from numba_kernels.cuda.kernel import Kernel, helper
from numba_kernels.rows import NamedTuple

Words = NDArray[np.int64]

_LEVELS = 3
_ROW = 16
"""Bytes of a row of a table: place in the element, place in its stream."""

_ACCESS = {
    1: (intrinsics.load_u8, intrinsics.store_u8),
    2: (intrinsics.load_u16, intrinsics.store_u16),
    4: (intrinsics.load_u32, intrinsics.store_u32),
    8: (intrinsics.load_u64, intrinsics.store_u64),
    VECTOR: (intrinsics.load_vector, intrinsics.store_vector),
}
WIDTHS = tuple(_ACCESS)


class Level(NamedTuple):
    """`times` the same, `stride` bytes apart."""

    times: int
    stride: int


class Launch(NamedTuple):
    """A kernel, its arguments, and how many units its threads share."""

    kernel: Kernel
    arguments: tuple[int, ...]
    units: int


class Typemap:
    """A datatype and a number of elements of it, planned for the GPU.

    Parameters
    ----------
    blocks : int64, shape (n, 2)
        Byte offset and byte count of each block of one element, in the order of the stream, not empty.
    extent
        Bytes from element to element.
    count
        Elements.

    Attributes
    ----------
    size
        Bytes of one element in the stream.
    nbytes
        Bytes of the stream.
    table : int64, shape (n, 2), or None
        What must be in memory that the GPU reads before :meth:`launch`; None for a lattice.
    """

    def __init__(self, blocks: Words, extent: int, count: int) -> None:
        self.size = int(blocks[:, 1].sum())
        self.nbytes = self.size * count
        self.extent = extent
        self._blocks = blocks
        self._lattice = _lattice(blocks, extent, count)
        self.table: Words | None = None
        if self._lattice is None:
            self.table = np.stack([blocks[:, 0], np.cumsum(blocks[:, 1]) - blocks[:, 1]], axis=1)

    def launch(self, memory: int, stream: int, *, unpacking: bool, first: int = 0, nbytes: int = -1, table: int = 0) -> Launch:
        """What moves the stream's bytes, or a part of them.

        Parameters
        ----------
        memory
            Address that the offsets of the blocks count from.
        stream
            Address of byte `first` of the stream.
        unpacking
            From the stream to memory, instead of to the stream.
        first, nbytes
            The part of the stream; -1: all from `first` on.
        table
            Address of a copy of :attr:`table`, if there is one.
        """
        nbytes = self.nbytes - first if nbytes < 0 else nbytes
        if self._lattice is not None:
            return _launch_lattice(self._lattice, memory, stream, unpacking, first, nbytes)
        width = _width(memory, stream, first, nbytes, self.extent, self.size, *np.gcd.reduce(self._blocks, axis=0).tolist())
        arguments = (memory, stream, table, len(self._blocks), self.size, self.extent, first, nbytes // width)
        return Launch(_TABLE[unpacking, width], arguments, nbytes // width)


def places(blocks: Words, extent: int, count: int) -> Words:
    """The NumPy twin: where each byte of the stream lies, relative to the address of the elements."""
    one = np.concatenate([np.arange(0), *(np.arange(offset, offset + nbytes) for offset, nbytes in blocks.tolist())])
    found: Words = (np.arange(count)[:, None] * extent + one).reshape(-1)
    return found


# Planning ---------------------------------------------------------------------------------------------------------


class _Lattice(NamedTuple):
    """Blocks of `nbytes` from byte `first` on, on three levels from the inside out; the outermost repeats as often as needed."""

    first: int
    nbytes: int
    levels: tuple[Level, ...]


def _lattice(blocks: Words, extent: int, count: int) -> _Lattice | None:
    """The lattice that a typemap is; None if it is none, or has too many levels."""
    if len(blocks) == 0 or count == 0:
        return _Lattice(0, 1, (Level(1, 0),) * _LEVELS)
    levels = _regular(blocks[:, 0]) if (blocks[:, 1] == blocks[0, 1]).all() else None
    if levels is None:
        return None
    nbytes = int(blocks[0, 1])
    if count > 1:
        if not levels and extent == nbytes:
            nbytes *= count
        elif levels and extent == levels[-1].times * levels[-1].stride:
            levels[-1] = Level(levels[-1].times * count, levels[-1].stride)
        else:
            levels.append(Level(count, extent))
    if len(levels) > _LEVELS:
        return None
    return _Lattice(int(blocks[0, 0]), nbytes, (*levels, *(Level(1, 0),) * (_LEVELS - len(levels))))


def _regular(offsets: Words) -> list[Level] | None:
    """Levels, from the inside out, on which offsets lie; None if there are more than three, or they do not."""
    levels: list[Level] = []
    while len(offsets) > 1:
        step = int(offsets[1] - offsets[0])
        breaks = np.flatnonzero(np.diff(offsets) != step)
        run = int(breaks[0]) + 1 if len(breaks) else len(offsets)
        if len(offsets) % run or len(levels) == _LEVELS:
            return None
        rows = offsets.reshape(-1, run)
        if (rows - rows[:, :1] != np.arange(run) * step).any():
            return None
        levels.append(Level(run, step))
        offsets = rows[:, 0]
    return levels


def _width(*numbers: int) -> int:
    """The widest access that all addresses, offsets and sizes are multiples of."""
    return math.gcd(VECTOR, *numbers)


def _launch_lattice(lattice: _Lattice, memory: int, stream: int, unpacking: bool, first: int, nbytes: int) -> Launch:
    (n0, s0), (n1, s1), (_, s2) = lattice.levels
    width = _width(memory + lattice.first, stream, first, nbytes, lattice.nbytes, s0, s1, s2)
    units = nbytes // width
    arguments = (memory + lattice.first, stream, lattice.nbytes // width, n0, s0, n1, s1, s2, first // width, units)
    return Launch(_LATTICE[unpacking, width], arguments, units)


# Bodies -----------------------------------------------------------------------------------------------------------


@intrinsic
def _quotient(typingctx: Any, number: Any, divisor: Any) -> Any:
    """Quotient of two numbers that are not negative: no test of signs, and 32 bits where they are enough."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.udiv(*args)

    return types.int64(types.int64, types.int64), codegen


def _lattice_body(width: int, unpacking: bool) -> Callable[..., None]:
    load, store = _ACCESS[width]

    @helper
    def place(memory, unit, units, n0, s0, n1, s1, s2):  # type: ignore[no-untyped-def]
        """Address of a unit of the stream."""
        row = _quotient(unit, units)
        line = _quotient(row, n0)
        plane = _quotient(line, n1)
        return memory + (unit - row * units) * width + (row - line * n0) * s0 + (line - plane * n1) * s1 + plane * s2

    def body(thread, threads, memory, stream, units, n0, s0, n1, s1, s2, first, total):  # type: ignore[no-untyped-def]
        i = thread
        while i + threads < total:
            here, there = place(memory, first + i, units, n0, s0, n1, s1, s2), stream + i * width
            next_here, next_there = place(memory, first + i + threads, units, n0, s0, n1, s1, s2), stream + (i + threads) * width
            if unpacking:
                value, next_value = load(there), load(next_there)
                store(here, value)
                store(next_here, next_value)
            else:
                value, next_value = load(here), load(next_here)
                store(there, value)
                store(next_there, next_value)
            i += 2 * threads
        if i < total:
            here, there = place(memory, first + i, units, n0, s0, n1, s1, s2), stream + i * width
            if unpacking:
                store(here, load(there))
            else:
                store(there, load(here))

    return body


def _table_body(width: int, unpacking: bool) -> Callable[..., None]:
    load, store = _ACCESS[width]

    def body(thread, threads, memory, stream, table, rows, size, extent, first, total):  # type: ignore[no-untyped-def]
        i = thread
        while i < total:
            at = first + i * width
            element = _quotient(at, size)
            inside = at - element * size
            low, high = 0, rows
            while high - low > 1:
                middle = (low + high) >> 1
                if load_i64(table + middle * _ROW + 8) <= inside:
                    low = middle
                else:
                    high = middle
            row = table + low * _ROW
            here, there = memory + element * extent + load_i64(row) + inside - load_i64(row + 8), stream + i * width
            if unpacking:
                store(here, load(there))
            else:
                store(there, load(here))
            i += threads

    return body


def _kernels(form: str, body: Callable[[int, bool], Callable[..., None]], parameters: int) -> dict[tuple[bool, int], Kernel]:
    return {
        (unpacking, width): Kernel(
            f"{'unpack' if unpacking else 'pack'}_{form}_{width}", body(width, unpacking), parameters=parameters
        )
        for unpacking, width in product((False, True), WIDTHS)
    }


_LATTICE = _kernels("lattice", _lattice_body, parameters=10)
_TABLE = _kernels("table", _table_body, parameters=8)

KERNELS = (*_LATTICE.values(), *_TABLE.values())

"""Many block copies in one launch, each of a block to one or several places.

::

    table:  row 0 | nbytes, source, count, target 0, target 1, ... |      source  ->  target 0
            row 1 | ...                                            |              ->  target 1 ...

    lane l of the 512 of a group:  units l, l + 512, l + 1024, ... of the row

A block is read once, however many targets it has. Units are of 16 bytes if all addresses of a row agree modulo 16, else of the largest
power of two by which they agree; the bytes before the first and after the last whole unit go singly. Blocks do not overlap.

There are no flags: the launch comes after what wrote the sources in stream order, and the words that follow it in the stream say
that it is through. The NumPy twin is ``target[:] = source``.

T = alpha + m (1 + targets) / bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kernels.cuda.intrinsics import (
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    load_vector,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    store_vector,
)
from numba_kernels.cuda.kernel import Kernel, helper
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.rows import cut, place
from numba_kernels.layout import WORD, words

TARGETS = 16
"""Most targets of a row."""
ROW = words("CopyRow", f"nbytes source count targets*{TARGETS}")

_UNROLLED = 4


def _copier(load: Callable[..., Any], store: Callable[..., Any], unit: int) -> Any:
    """What copies a block in units of `unit` bytes; see :func:`copy_block`."""

    @helper
    def copy_units(lane, lanes, nbytes, source, count, targets, shift):  # type: ignore[no-untyped-def]
        first = load_i64(targets) + shift
        head = min(nbytes, (-source) & (unit - 1))
        whole = (nbytes - head) // unit
        tail = head + whole * unit
        i = lane
        while i < head + nbytes - tail:
            at = i if i < head else tail + i - head
            byte = load_u8(source + at)
            for k in range(count):
                store_u8(load_i64(targets + WORD * k) + shift + at, byte)
            i += lanes
        i, step = lane, unit * lanes
        while i + (_UNROLLED - 1) * lanes < whole:
            at = head + i * unit
            a, b = load(source + at), load(source + at + step)
            c, d = load(source + at + 2 * step), load(source + at + 3 * step)
            for k in range(count):
                target = (first if k == 0 else load_i64(targets + WORD * k) + shift) + at
                store(target, a)
                store(target + step, b)
                store(target + 2 * step, c)
                store(target + 3 * step, d)
            i += _UNROLLED * lanes
        while i < whole:
            at = head + i * unit
            a = load(source + at)
            for k in range(count):
                store((first if k == 0 else load_i64(targets + WORD * k) + shift) + at, a)
            i += lanes

    return copy_units


_copy_vectors = _copier(load_vector, store_vector, 16)
_copy_u64 = _copier(load_u64, store_u64, 8)
_copy_u32 = _copier(load_u32, store_u32, 4)
_copy_u16 = _copier(load_u16, store_u16, 2)
_copy_u8 = _copier(load_u8, store_u8, 1)


@helper
def copy_block(lane, lanes, nbytes, source, count, targets, shift):  # type: ignore[no-untyped-def]
    """Let a group copy `nbytes` bytes from `source` to `count` places: `shift` behind the addresses that are the words at `targets`."""
    differ = 0
    for k in range(count):
        differ |= (load_i64(targets + WORD * k) + shift) ^ source
    if differ & 15 == 0:
        _copy_vectors(lane, lanes, nbytes, source, count, targets, shift)
    elif differ & 7 == 0:
        _copy_u64(lane, lanes, nbytes, source, count, targets, shift)
    elif differ & 3 == 0:
        _copy_u32(lane, lanes, nbytes, source, count, targets, shift)
    elif differ & 1 == 0:
        _copy_u16(lane, lanes, nbytes, source, count, targets, shift)
    else:
        _copy_u8(lane, lanes, nbytes, source, count, targets, shift)


def _copy_rows(thread, threads, table, rows):  # type: ignore[no-untyped-def]
    row, further, lane, lanes = place(thread, threads, rows)
    while row < rows:
        at = table + row * ROW.total
        nbytes, source, count = load_i64(at + ROW.nbytes), load_i64(at + ROW.source), load_i64(at + ROW.count)
        copy_block(lane, lanes, nbytes, source, count, at + ROW.targets, 0)
        row += further


COPY = Kernel("copy_rows", _copy_rows, parameters=2, launch_bounds=GROUP)
"""Arguments: address of the table, number of its rows."""

KERNELS = (COPY,)


def pack_rows(copies: Iterable[tuple[int, int, Sequence[int]]], piece: int) -> npt.NDArray[np.int64]:
    """The table for copies of (bytes, source, targets), in rows of at most `piece` bytes."""
    rows = []
    for nbytes, source, targets in copies:
        for at, length in cut(nbytes, piece):
            for first in range(0, len(targets), TARGETS):
                chosen = [target + at for target in targets[first : first + TARGETS]]
                rows.append([length, source + at, len(chosen), *chosen, *[0] * (TARGETS - len(chosen))])
    return np.array(rows, dtype=np.int64).reshape(len(rows), ROW.total // WORD)

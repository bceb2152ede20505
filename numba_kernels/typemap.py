"""Typemaps: the blocks of bytes that one element of a datatype covers, listed from those of the datatypes that it is made of.

A typemap is rows of (byte offset, byte count), as :mod:`numba_kernels.pack` reads them. It is written group by group, a group being elements
that follow each other; a block that begins where the one before it ends is joined to that, one of no bytes is left out::

    inner element     groups of 2 and 1, extent 24                     written
    AAAA....BBBB....  AAAA....BBBB....AAAA....BBBB....  AAAA....BBBB   (0, 4) (8, 4) (24, 4) ...

Functions take how many rows there are already, and return how many there are then; the caller has made room for a row a block.
Elements that are one run of bytes are one row a group, however many they are.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words

EXTREMES = words("Extremes", "elements low high")
"""Of elements that a program has listed: how many there are, and the lowest and highest byte offset of an origin."""
MOST = 1 << 62
"""No larger number is told: a datatype that reaches so far is refused, before products leave their word."""
IRREGULAR = -(1 << 63)
"""Instead of a distance between blocks: there are several."""

_ROW = 2 * WORD


@kernel("int64(int64, int64, int64, int64)")
def _append(rows, count, offset, nbytes):  # type: ignore[no-untyped-def]
    """Write a block behind others."""
    if nbytes <= 0:
        return count
    if count > 0:
        last = rows + (count - 1) * _ROW
        if load64(last) + load64(last + WORD) == offset:
            store64(last + WORD, load64(last + WORD) + nbytes)
            return count
    store64(rows + count * _ROW, offset)
    store64(rows + count * _ROW + WORD, nbytes)
    return count + 1


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _append_group(rows, count, origin, length, extent, inner, ninner):  # type: ignore[no-untyped-def]
    """Write the blocks of elements that are one extent apart, the origin of the first one at a byte offset."""
    if ninner == 1 and load64(inner + WORD) == extent:
        return _append(rows, count, origin + load64(inner), length * extent)
    for _ in range(length):
        for block in range(ninner):
            row = inner + block * _ROW
            count = _append(rows, count, origin + load64(row), load64(row + WORD))
        origin += extent
    return count


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def list_blocks(rows, count, lengths, offsets, groups, extent, inner, ninner):  # type: ignore[no-untyped-def]
    """Write groups of so many elements at so many bytes (int64[groups] each), in which elements of `ninner` blocks are an extent apart."""
    for group in range(groups):
        at = group * WORD
        count = _append_group(rows, count, load64(offsets + at), load64(lengths + at), extent, inner, ninner)
    return count


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def list_strided(rows, count, start, step, groups, length, extent, inner, ninner):  # type: ignore[no-untyped-def]
    """Write groups of `length` elements each, which begin `step` bytes apart."""
    for group in range(groups):
        count = _append_group(rows, count, start + group * step, length, extent, inner, ninner)
    return count


@kernel("void(int64, int64, int64, int64, int64)", is_entry=True)
def measure(lengths, offsets, groups, extent, result):  # type: ignore[no-untyped-def]
    """Find :data:`EXTREMES` of groups of elements, an extent apart in each; groups of none count for nothing."""
    elements, low, high = 0, MOST, -MOST
    for group in range(groups):
        length, first = load64(lengths + group * WORD), load64(offsets + group * WORD)
        if length > 0:
            last = first + (length - 1) * extent
            low, high = min(low, first, last), max(high, first, last)
            elements = min(elements + length, MOST)
    store64(result + EXTREMES.elements, elements)
    store64(result + EXTREMES.low, low)
    store64(result + EXTREMES.high, high)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def scale(source, count, factor, target):  # type: ignore[no-untyped-def]
    """Write the multiples of numbers (int64[count]); return the largest of their magnitudes before, at most :data:`MOST`."""
    largest = 0
    for index in range(count):
        number = load64(source + index * WORD)
        store64(target + index * WORD, number * factor)
        magnitude = min(max(number, -MOST), MOST)
        largest = max(largest, magnitude, -magnitude)
    return largest


@kernel("int64(int64, int64)", is_entry=True)
def regular_step(rows, count):  # type: ignore[no-untyped-def]
    """Bytes between the begins of two blocks, of which there are some: 0 of a single one; IRREGULAR unless all are alike."""
    step = load64(rows + _ROW) - load64(rows) if count > 1 else 0
    for block in range(1, count):
        row = rows + block * _ROW
        if load64(row + WORD) != load64(rows + WORD) or load64(row) - load64(row - _ROW) != step:
            return IRREGULAR
    return step

"""Structures of 64-bit words, one definition for Python and for compiled code."""

from __future__ import annotations

from array import array
from typing import Any

from numba_kernels.rows import row_type

WORD = 8
LINE = 64
_ZERO = array("q", [0])


def words(name: str, fields: str, *, start: int = 0) -> Any:
    """Return a named tuple of byte offsets, one 64-bit word a field, and ``total``, the bytes of all.

    A field ``f*8`` takes eight words; ``|`` moves on to the next cache line, so that words with different writers
    do not share one. Compiled code reads a field as ``load64(address + NAME.field)``.

    Examples
    --------
    >>> words("Pair", "first | second*2").second
    64
    """
    offsets: dict[str, int] = {}
    at = start
    for field in fields.split():
        if field == "|":
            at = (at + LINE - 1) // LINE * LINE
            continue
        label, _, count = field.partition("*")
        offsets[label] = at
        at += WORD * int(count or 1)
    offsets["total"] = at
    return row_type(name, offsets)._make(offsets.values())


def zeroed(nbytes: int) -> tuple[array[int], int]:
    """Zeroed words, and their address: made and let go of in a fifth of the time of an array of NumPy's, which need not be there."""
    found: array[int] = _ZERO * (nbytes // WORD)
    return found, found.buffer_info()[0]

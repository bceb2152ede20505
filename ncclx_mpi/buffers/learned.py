"""Arrays of other libraries that lie in the host's memory: compiled code learns their classes (:mod:`numba_kernels.pyclasses`)."""

from __future__ import annotations

from typing import Any

from ncclx_mpi.buffers.kinds import CPU
from ncclx_mpi.buffers.source import Source, has_buffer, open_source
from ncclx_mpi.gpu_memory.streams import library_of
from numba_kernels import pyclasses
from numba_kernels.late_numpy import is_any_array
from numba_kernels.pyobject import NONE, TYPE_NUMBERS, are_arrays_read, itemsize_of_number

_NUMBERS: dict[str | None, int] = {
    None: TYPE_NUMBERS["B"],
    **{code: TYPE_NUMBERS[code] for code in "?bBhHiIlLqQefdg"},
    **{f"Z{code}": TYPE_NUMBERS[code.upper()] for code in "fdg"},
}
"""Type numbers by the formats that name an element; what has no format is bytes."""
_WORD = 1 << 63
"""Addresses and lengths from here on fit no word, whatever an object says."""


def decide(obj: Any, found: Source) -> None:
    """Say how compiled code reads objects of this one's class, now that one has been opened.

    A class of which one is on a GPU is left to the slow path, which asks once for each kind of array.
    """
    pyclasses.introduce_opener(_open)
    pyclasses.learn(type(obj), _way_of(obj, found))


def _way_of(obj: Any, found: Source) -> int:
    kind = type(obj)
    if found.lent is not None:
        return pyclasses.REFUSED
    if library_of(kind) == "jax":  # which does not say that it is read-only
        return pyclasses.ASKED
    if library_of(kind) == "torch" and are_arrays_read():
        return pyclasses.BY_NUMPY
    if is_any_array(obj) and are_arrays_read():
        return pyclasses.LIKE_ARRAY
    if has_buffer(obj):
        return pyclasses.VIEWED
    return pyclasses.TENSOR if found.device == CPU else pyclasses.ASKED


def _open(obj: Any) -> tuple[int, int, int, int, int, Any] | None:
    """Address, bytes, type number, bytes of an element, whether it may be written, and owner of an object's memory, or None."""
    found = open_source(obj, writable=False, with_format=True)
    if found.lent is not None:
        pyclasses.learn(type(obj), pyclasses.REFUSED)
        return None
    if not (0 <= found.address < _WORD and 0 <= found.nbytes < _WORD):
        return None
    code = found.format if found.format is None else found.format.lstrip("@=<")
    number = _NUMBERS.get(code, NONE)
    if number != NONE and itemsize_of_number(number) != found.itemsize:
        number = NONE
    writable = not found.readonly and library_of(type(obj)) != "jax"
    return found.address, found.nbytes, number, found.itemsize, int(writable), found.owner

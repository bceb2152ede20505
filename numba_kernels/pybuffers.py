"""Memory that objects of a class written in Python export through the buffer protocol, told by compiled code.

Python has a method for that from 3.12 on, which takes a microsecond; before, a class has none. Here the function is what a class of an
extension module would have: it finds address, length and access in slots of the object (:func:`numba_kernels.pyslots.slot_offset`).
"""

from __future__ import annotations

from numba_kernels import symbols, types
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words, zeroed
from numba_kernels.pyslots import as_integer, slot_offset

WRITABLE, READ_ONLY, REFUSED = range(3)
"""How memory may be used. REFUSED: not by the CPU."""

_KIND = words("Kind", "address nbytes access error reason")
"""Where in an object its words are, and what is raised where they are refused: a class, and an object that says why."""
_VIEW_OBJECT = WORD
"""Offset in a ``Py_buffer`` of the object that it is of, which is none where it was refused."""

_kind, _kind_at = zeroed(_KIND.total)
_kept: list[object] = []
symbols.add("ncclx_mpi_exported_kind", _kind_at)
_where = make_symbol("ncclx_mpi_exported_kind")
_fill = types.external("PyBuffer_FillInfo", types.int32(types.intp, types.intp, types.intp, types.intp, types.int32, types.int32))
_set_error = types.external("PyErr_SetObject", types.void(types.intp, types.intp))


def introduce(kind: type, address: str, nbytes: str, access: str, reason: str) -> None:
    """Say in which slots of its objects the one class keeps integers that tell of its memory, and why it is not given if it is REFUSED."""
    _kept.append(reason)
    _kind[:] = type(_kind)("q", [*(slot_offset(kind, name) for name in (address, nbytes, access)), id(BufferError), id(reason)])


@kernel("int64(int64, int64)")
def _number(obj, offset):  # type: ignore[no-untyped-def]
    """The integer in a slot; 0 if there is none."""
    found = load64(obj + offset)
    return as_integer(found) if found != 0 else 0


@kernel(types.int32(types.intp, types.intp, types.int32), is_entry=True, nogil=False)
def get_buffer(obj, view, flags):  # type: ignore[no-untyped-def]
    """Fill a ``Py_buffer`` as ``bf_getbuffer`` does: 0, or -1 with BufferError set."""
    kind = _where()
    access = _number(obj, load64(kind + _KIND.access))
    if access == REFUSED:
        store64(view + _VIEW_OBJECT, 0)
        _set_error(load64(kind + _KIND.error), load64(kind + _KIND.reason))
        return -1
    address, nbytes = _number(obj, load64(kind + _KIND.address)), _number(obj, load64(kind + _KIND.nbytes))
    return _fill(view, obj, address, nbytes, access, flags)

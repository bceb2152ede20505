"""Python objects with ``__slots__``, made, filled and emptied by compiled code that holds the GIL.

A slot is a pointer at a fixed offset in the object, and holds a reference unless it is 0. Where a slot lies is found by looking
(:func:`slot_offset`), so nothing depends on how an interpreter orders them; :func:`numba_kernels.pyobject.mismatch` says whether
objects may be looked into at all.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba_kernels import types
from numba_kernels.atomics import load32, load64, store64
from numba_kernels.deferred import emitted
from numba_kernels.jit import kernel
from numba_kernels.pyobject import object_argument, object_of

_WORD = 8

object_result = types.emitted_type("pyslots", "object_result")
"""What a kernel returns to Python: the address of an object, with a reference to it; 0 becomes None, or raises the error that is set."""
result = emitted("pyslots", "result")
"""An address as an :data:`object_result`."""

increase = types.external("Py_IncRef", types.void(types.intp))
decrease = types.external("Py_DecRef", types.void(types.intp))
"""Own one reference more, or one less; nothing at 0. The last one gone, any Python code may run."""
new_object = types.external("PyType_GenericAlloc", types.intp(types.intp, types.intp))
"""``new_object(type, 0)``: a new object with all slots empty, or 0 with MemoryError set. May collect garbage."""
new_bytes = types.external("PyBytes_FromStringAndSize", types.intp(types.intp, types.intp))
"""``new_bytes(0, n)``: a new bytes object of `n` bytes, to be filled before anybody sees it (at :data:`BYTES`), or 0 with MemoryError."""
BYTES = bytes.__basicsize__ - 1
"""Bytes from the beginning of a bytes object to its data."""
new_tuple = types.external("PyTuple_New", types.intp(types.intp))
"""A new tuple of so many items, none of them set yet, or 0 with MemoryError set.

Set them before anything else may collect garbage or give the GIL away: ``gc.get_objects()`` finds the tuple from the beginning."""
set_item = types.external("PyTuple_SetItem", types.int32(types.intp, types.intp, types.intp))
"""``set_item(tuple, index, object)``: set an item of a new tuple, which takes over a reference to the object."""
_new_list = types.external("PyList_New", types.intp(types.intp))
set_list_item = types.external("PyList_SetItem", types.int32(types.intp, types.intp, types.intp))
"""``set_list_item(list, index, object)``: set an item of a list, which takes over a reference to the object."""
_hide = types.external("PyObject_GC_UnTrack", types.void(types.intp))
show = types.external("PyObject_GC_Track", types.void(types.intp))
"""Let ``gc.get_objects()`` find an object that was hidden from it."""
clear_error = types.external("PyErr_Clear", types.void())
new_integer = types.external("PyLong_FromLongLong", types.intp(types.int64))
"""A new int, or 0 with MemoryError set."""
set_no_memory = types.external("PyErr_NoMemory", types.intp())
"""Set MemoryError; returns 0."""
as_integer = types.external("PyLong_AsLongLong", types.int64(types.intp))
"""The value of an int that has at most 64 bits, as everything has that was made here."""
as_any_integer = types.external("PyLong_AsLongLongAndOverflow", types.int64(types.intp, types.intp))
"""``as_any_integer(object, address)``: the value of any int; the 32 bits at the address become 0 if it has at most 64 bits.

No exception is made, as :data:`as_integer` does: that could collect garbage, and so run any Python code."""


def slot_offset(kind: type, name: str) -> int:
    """Bytes from the beginning of an object of `kind` to its slot `name`.

    Raises
    ------
    ValueError
        Not found: this interpreter keeps slots in another way.
    """
    sample: Any = object.__new__(kind)
    value = object()
    setattr(sample, name, value)
    fields = (ctypes.c_int64 * (kind.__basicsize__ // _WORD)).from_address(id(sample))
    offset = list(fields).index(id(value)) * _WORD
    delattr(sample, name)
    return offset


@kernel("int64(int64)")
def new_hidden_list(length):  # type: ignore[no-untyped-def]
    """A new list of so many items, none of them set yet, or 0 with MemoryError set. Call :data:`show` when all are set.

    Until then any thread that walks ``gc.get_objects()``, or a finalizer that does, would crash on the items that are not set.
    """
    made = _new_list(length)
    if made != 0:
        _hide(made)
    return made


@kernel("int64(int64, int64, int64)")
def keeper_of(first, second, third):  # type: ignore[no-untyped-def]
    """A new reference to what keeps up to three objects alive, of which but the first may be 0, or one that came before; 0: no memory."""
    second = 0 if second == first else second
    third = 0 if third in (first, second) else third
    if second == 0 and third == 0:
        increase(first)
        return first
    made = new_tuple(3 if second != 0 and third != 0 else 2)
    if made == 0:
        clear_error()
        return 0
    increase(first)
    set_item(made, 0, first)
    if second != 0:
        increase(second)
        set_item(made, 1, second)
    if third != 0:
        increase(third)
        set_item(made, 1 if second == 0 else 2, third)
    return made


@kernel("int64(int64)")
def references(obj):  # type: ignore[no-untyped-def]
    """The number of references to an object."""
    return load32(obj)


@kernel(types.void(object_argument, types.int64, types.int64), is_entry=True, nogil=False)
def empty_slots(argument, offsets, count):  # type: ignore[no-untyped-def]
    """Empty the slots of an object at some offsets (int64[count]). Any Python code may run: what a slot held may go with it."""
    for index in range(count):
        slot = object_of(argument) + load64(offsets + _WORD * index)
        held = load64(slot)
        store64(slot, 0)
        decrease(held)

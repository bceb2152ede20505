"""Tensors of the host's memory straight from Python objects into compiled code, by DLPack, versions 0 and 1 of the protocol.

Only plain ones are read, which are contiguous in C's order and of one of NumPy's types of numbers, on the CPU. All functions need the GIL,
and any Python code may run in them.
"""

from __future__ import annotations

import ctypes
from array import array as words
from typing import Any

from numba_kernels import symbols, types
from numba_kernels.atomics import load32, load64, store64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.pyobject import FIELDS, NONE, OB_TYPE, TUPLE_ITEMS, TYPE_NUMBERS, item_sizes, itemsize_of_number, tuple_type
from numba_kernels.pyslots import as_integer, clear_error, decrease, increase

ADDRESS, NBYTES, ELEMENT, ITEMSIZE, IS_WRITABLE = (WORD * position for position in range(len(FIELDS)))
"""Where the fields are that :data:`numba_kernels.pyobject.read_array` writes, too."""
_CPU = 1
_FLAGS, _OF_VERSION = 24, 32
"""DLManagedTensorVersioned: its flags, and its DLTensor. Without a version there are no flags, and the DLTensor comes first."""
_NDIM, _KIND, _SHAPE, _STRIDES, _OFFSET = 16, 20, 24, 32, 40
"""DLTensor, which begins with an address: dimensions, type (8 bits of code, 8 of bits, 16 of lanes), bytes before the first element."""
_READ_ONLY = 1
_MOST = 1 << 48
"""Entries of a tensor that is read here, so that its bytes fit a word."""


def _table() -> list[int]:
    """Types of one lane, each with NumPy's type number of it."""
    table = []
    for code, letters in ((0, "bhil"), (1, "BHIL"), (2, "efdg"), (5, "FD"), (6, "?")):
        for number in map(TYPE_NUMBERS.__getitem__, letters):
            table += [code | 8 * itemsize_of_number(number) << 8 | 1 << 16, number]
    return table


_KINDS = words("q", _table())
_ENTRIES = len(_KINDS) // 2
_TEXTS = tuple(map(ctypes.create_string_buffer, (b"dltensor", b"dltensor_versioned")))
_OBJECTS: tuple[Any, ...] = ("__dlpack__", "__dlpack_device__", (1, 0), False, ("max_version", "copy"), Exception, TypeError)

symbols.add("ncclx_mpi_tensor_kinds", _KINDS.buffer_info()[0])
for _name, _text in zip(("unversioned", "versioned"), _TEXTS, strict=True):
    symbols.add(f"ncclx_mpi_tensor_{_name}", ctypes.addressof(_text))
for _name, _object in zip(("method", "device", "version", "no_copy", "names", "exception", "type_error"), _OBJECTS, strict=True):
    symbols.add(f"ncclx_mpi_tensor_{_name}", id(_object))

_kinds = make_symbol("ncclx_mpi_tensor_kinds")
_unversioned = make_symbol("ncclx_mpi_tensor_unversioned")
_versioned = make_symbol("ncclx_mpi_tensor_versioned")
_method = make_symbol("ncclx_mpi_tensor_method")
_device = make_symbol("ncclx_mpi_tensor_device")
_version = make_symbol("ncclx_mpi_tensor_version")
_no_copy = make_symbol("ncclx_mpi_tensor_no_copy")
_names = make_symbol("ncclx_mpi_tensor_names")
_exception = make_symbol("ncclx_mpi_tensor_exception")
_type_error = make_symbol("ncclx_mpi_tensor_type_error")

call_method = types.external("PyObject_VectorcallMethod", types.intp(types.intp, types.intp, types.intp, types.intp))
_is_capsule = types.external("PyCapsule_IsValid", types.int32(types.intp, types.intp))
_pointer_of = types.external("PyCapsule_GetPointer", types.intp(types.intp, types.intp))
_error = types.external("PyErr_Occurred", types.intp())
_is_kind_of = types.external("PyErr_GivenExceptionMatches", types.int32(types.intp, types.intp))
_this_thread = types.external("PyThread_get_thread_ident", types.intp())
_raise_soon = types.external("PyThreadState_SetAsyncExc", types.int32(types.intp, types.intp))


@kernel("int64()")
def put_off():  # type: ignore[no-untyped-def]
    """Let the slow path find out why there is an error, and raise there what is none, such as an interrupt. 1 if it was a TypeError."""
    kind = _error()
    increase(kind)
    clear_error()
    if _is_kind_of(kind, _exception()) == 0:
        _raise_soon(_this_thread(), kind)
    is_type_error = _is_kind_of(kind, _type_error())
    decrease(kind)
    return is_type_error


@kernel("int64(int64, int64)")
def is_on_cpu(obj, work):  # type: ignore[no-untyped-def]
    """Whether a tensor says that it is in the CPU's memory. `work`: a word to work in."""
    store64(work, obj)
    answer = call_method(_device(), work, 1, 0)
    if answer == 0:
        put_off()
        return 0
    device = -1
    if load64(answer + OB_TYPE) == tuple_type():
        device = as_integer(load64(answer + TUPLE_ITEMS))
        if device == -1 and _error() != 0:
            put_off()
    decrease(answer)
    return 1 if device == _CPU else 0


@kernel("int64(int64, int64, int64)")
def ask_for_capsule(obj, is_of_old, work):  # type: ignore[no-untyped-def]
    """A new reference to a capsule of a tensor, 0 if there is none, or -1 if the tensor may be one `is_of_old`, which knows version 0 only.

    `work`: three words to work in.
    """
    store64(work, obj)
    store64(work + WORD, _version())
    store64(work + 2 * WORD, _no_copy())
    capsule = call_method(_method(), work, 1, 0 if is_of_old else _names())
    if capsule != 0:
        return capsule
    return -1 if put_off() != 0 and not is_of_old else 0


@kernel("int64(int64)")
def _element_of(kind):  # type: ignore[no-untyped-def]
    """NumPy's type number of a type, or NONE."""
    for entry in range(_ENTRIES):
        if load64(_kinds() + 2 * WORD * entry) == kind:
            return load64(_kinds() + 2 * WORD * entry + WORD)
    return NONE


@kernel("int64(int64)")
def _entries(tensor):  # type: ignore[no-untyped-def]
    """The number of elements, -1 if they do not lie one after another in C's order, or are more than memory has."""
    ndim, shape, strides = load32(tensor + _NDIM), load64(tensor + _SHAPE), load64(tensor + _STRIDES)
    if ndim < 0 or (ndim > 0 and shape == 0):
        return -1
    entries = 1
    for index in range(ndim):
        dimension = ndim - 1 - index
        length = load64(shape + WORD * dimension)
        if length < 0 or (strides != 0 and length != 1 and load64(strides + WORD * dimension) != entries):
            return -1
        if length != 0 and entries > _MOST // length:
            return -1
        entries *= length
    return entries


@kernel("int64(int64, int64)")
def read_capsule(capsule, fields):  # type: ignore[no-untyped-def]
    """Write the five fields of the tensor in a capsule to `fields` (int64[5]): 1, or 0 if it is no plain one."""
    flags = 0
    if _is_capsule(capsule, _versioned()) != 0:
        managed = _pointer_of(capsule, _versioned())
        if load32(managed) < 1:
            return 0
        flags, tensor = load64(managed + _FLAGS), managed + _OF_VERSION
    elif _is_capsule(capsule, _unversioned()) != 0:
        tensor = _pointer_of(capsule, _unversioned())
    else:
        return 0
    element, entries = _element_of(load32(tensor + _KIND)), _entries(tensor)
    if element == NONE or entries < 0:
        return 0
    itemsize = load64(item_sizes() + WORD * element)
    store64(fields + ADDRESS, load64(tensor) + load64(tensor + _OFFSET))
    store64(fields + NBYTES, entries * itemsize)
    store64(fields + ELEMENT, element)
    store64(fields + ITEMSIZE, itemsize)
    store64(fields + IS_WRITABLE, 0 if flags & _READ_ONLY else 1)
    return 1

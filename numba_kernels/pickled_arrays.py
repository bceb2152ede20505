"""Small arrays in the pickles of plain values (:mod:`numba_kernels.pickling`), as calls of ``numpy.ndarray`` with shape, type and buffer.

::

    | GLOBAL numpy ndarray | MARK | MARK | INT length | INT length | ... | TUPLE | TEXT code | BYTEARRAY8 bytes | data | TUPLE | REDUCE |

What is written is an ``ndarray`` in C order, writable, of a type of numbers without metadata. Every unpickler makes an array of it, one
that may be written; the one here makes an empty array and copies the data into it. Nothing is written if the program has told
:mod:`copyreg` how arrays are to be pickled.

Python's pickle of an array of 10 numbers takes 4.4 us and its unpickling 2.8 (NumPy 2.4): calls of Python functions, and the type as
an object of its own. This takes some 0.3 us together.
"""

from __future__ import annotations

import copyreg
import pickle
from array import array
from typing import Any

from numba_kernels import symbols, types
from numba_kernels.atomics import load8, load32, load64, store8, store32, store64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel
from numba_kernels.late_numpy import at_import, np
from numba_kernels.layout import WORD, zeroed
from numba_kernels.memory import compare, copy
from numba_kernels.pyobject import (
    C_CONTIGUOUS,
    DATA,
    DESCRIPTOR,
    DIMENSIONS,
    FLAGS,
    NDIM,
    NONE,
    TYPE_NUMBER,
    TYPE_NUMBERS,
    WRITEABLE,
    item_sizes,
    ndarray_type,
    read_array,
)
from numba_kernels.pysequence import VECTOR
from numba_kernels.pyslots import decrease, increase, new_integer, new_tuple, set_item

FIRST = pickle.GLOBAL[0]
"""Opcode with which an array begins."""
_INT = pickle.BININT[0]

_HEAD = pickle.GLOBAL + b"numpy\nndarray\n" + pickle.MARK + pickle.MARK
_TYPE = pickle.TUPLE + pickle.SHORT_BINUNICODE + b"\1"
_BUFFER = pickle.BYTEARRAY8
_TAIL = pickle.TUPLE + pickle.REDUCE
_TYPE_AT, _BUFFER_AT = len(_HEAD), len(_HEAD) + len(_TYPE)
_TAIL_AT = _BUFFER_AT + len(_BUFFER)
_parts = array("B", _HEAD + _TYPE + _BUFFER + _TAIL)

_LENGTH = 5
"""Bytes of the length of one dimension."""
_FIXED = len(_parts) + 1 + 8
"""Bytes beside the lengths and the data: also the type's code and the number of bytes."""
_MOST_DIMENSIONS, _MOST_BYTES = 64, 1 << 20

_CODES, _NUMBERS = 128, 24
_PLAIN = "?bBhHiIlLqQefdgFDG"
_table, _table_at = zeroed((_CODES + _NUMBERS + 1) * WORD)
"""Address of the element type by its code, the code by NumPy's type number, and what makes empty arrays; all 0 before NumPy is there."""
_EMPTY = _CODES + _NUMBERS
_kept: list[Any] = [copyreg.dispatch_table]
"""Kept alive: compiled code knows their addresses."""
symbols.add("ncclx_mpi_array_parts", _parts.buffer_info()[0])
symbols.add("ncclx_mpi_array_types", _table_at)
symbols.add("ncclx_mpi_reducers", id(copyreg.dispatch_table))


def _learn() -> None:
    _kept.extend((np.empty, *map(np.dtype, _PLAIN)))
    _table[_EMPTY] = id(np.empty)
    for code in map(ord, _PLAIN):
        _table[code] = id(np.dtype(chr(code)))
        _table[_CODES + TYPE_NUMBERS[chr(code)]] = code


def forget() -> None:
    """Leave arrays to Python's pickle."""
    for index in range(len(_table)):
        _table[index] = 0


at_import(_learn)
_address_of_parts = make_symbol("ncclx_mpi_array_parts")
_address_of_table = make_symbol("ncclx_mpi_array_types")
_reducers = make_symbol("ncclx_mpi_reducers")

_find = types.external("PyDict_GetItem", types.intp(types.intp, types.intp))
_call = types.external("PyObject_CallObject", types.intp(types.intp, types.intp))


# Writing ----------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64)")
def _put(at, offset, nbytes):  # type: ignore[no-untyped-def]
    """Write a constant part of a pickle; where it ends."""
    copy(at, _address_of_parts() + offset, nbytes)
    return at + nbytes


@kernel("int64(int64, int64)")
def _code_of(item, fields):  # type: ignore[no-untyped-def]
    """Code of the type of an array that can be written, with its fields (:data:`VECTOR`) in `fields`; 0 if it cannot."""
    read_array(item, fields)
    number, needed = load64(fields + VECTOR.element), C_CONTIGUOUS | WRITEABLE
    if number == NONE or load32(item + FLAGS) & needed != needed:
        return 0
    code = load64(_address_of_table() + 8 * (_CODES + number))
    is_usual = load64(item + DESCRIPTOR) == load64(_address_of_table() + 8 * code)
    return code if is_usual and _find(_reducers(), ndarray_type()) == 0 else 0


@kernel("int64(int64, int64, int64, int64)")
def write_array(item, at, end, fields):  # type: ignore[no-untyped-def]
    """Write an array at `at`; where that ends, 0 if it is none of ours or finds no room before `end`. Five words at `fields` are used."""
    code = _code_of(item, fields)
    nbytes, ndim, lengths = load64(fields + VECTOR.nbytes), load32(item + NDIM), load64(item + DIMENSIONS)
    if code == 0 or at + _FIXED + _LENGTH * ndim + nbytes > end:
        return 0
    at = _put(at, 0, _TYPE_AT)
    for index in range(ndim):
        length = load64(lengths + 8 * index)
        if length >= 1 << 31:
            return 0
        store8(at, _INT)
        store32(at + 1, length)
        at += _LENGTH
    at = _put(at, _TYPE_AT, _BUFFER_AT - _TYPE_AT)
    store8(at, code)
    at = _put(at + 1, _BUFFER_AT, _TAIL_AT - _BUFFER_AT)
    copy(at, fields + VECTOR.nbytes, 8)
    copy(at + 8, load64(fields + VECTOR.address), nbytes)
    return _put(at + 8 + nbytes, _TAIL_AT, len(_TAIL))


# Reading ----------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64)")
def _is(at, offset, nbytes):  # type: ignore[no-untyped-def]
    """Whether a constant part of a pickle is there."""
    return 1 if compare(at, _address_of_parts() + offset, nbytes) == 0 else 0


@kernel("int64(int64, int64, int64)")
def _bytes_of(lengths, ndim, descriptor):  # type: ignore[no-untyped-def]
    """Bytes of an array of that shape and type; -1 if that is no small one."""
    nbytes = load64(item_sizes() + 8 * load32(descriptor + TYPE_NUMBER))
    for index in range(ndim):
        nbytes *= load32(lengths + _LENGTH * index + 1)
        if nbytes < 0 or nbytes > _MOST_BYTES:
            return -1
    return nbytes


@kernel("int64(int64, int64)")
def _new_shape(lengths, ndim):  # type: ignore[no-untyped-def]
    """A new tuple of lengths; 0 with an error set. It is full before garbage may be collected: making an int collects none."""
    shape = new_tuple(ndim)
    for index in range(ndim if shape != 0 else 0):
        length = new_integer(load32(lengths + _LENGTH * index + 1))
        if length == 0:
            decrease(shape)
            return 0
        set_item(shape, index, length)
    return shape


@kernel("int64(int64, int64, int64)")
def _new_array(lengths, ndim, descriptor):  # type: ignore[no-untyped-def]
    """A new array with nothing in it; 0 with an error set."""
    shape = _new_shape(lengths, ndim)
    operands = new_tuple(2) if shape != 0 else 0
    if operands == 0:
        decrease(shape)
        return 0
    increase(descriptor)
    set_item(operands, 0, shape)
    set_item(operands, 1, descriptor)
    made = _call(load64(_address_of_table() + 8 * _EMPTY), operands)
    decrease(operands)
    return made


@kernel("int64(int64, int64, int64)")
def read_pickled(at, end, behind):  # type: ignore[no-untyped-def]
    """The array that was written at `at`, as a new object, and where it ends in the word at `behind`; 0 if none was, before `end`."""
    ndim, lengths = 0, at + _TYPE_AT
    if at + _FIXED > end or _is(at, 0, _TYPE_AT) == 0:
        return 0
    at = lengths
    while ndim <= _MOST_DIMENSIONS and at + _LENGTH <= end and load8(at) == _INT:
        ndim += 1
        at += _LENGTH
    if at + _FIXED - _TYPE_AT > end or _is(at, _TYPE_AT, _BUFFER_AT - _TYPE_AT) == 0:
        return 0
    at += _BUFFER_AT - _TYPE_AT
    code = load8(at)
    descriptor = load64(_address_of_table() + 8 * code) if code > 0 else 0
    if descriptor == 0 or _is(at + 1, _BUFFER_AT, _TAIL_AT - _BUFFER_AT) == 0:
        return 0
    copy(behind, at + 1 + _TAIL_AT - _BUFFER_AT, 8)
    at += 1 + _TAIL_AT - _BUFFER_AT + 8
    nbytes = load64(behind)
    if (
        nbytes < 0
        or nbytes != _bytes_of(lengths, ndim, descriptor)
        or at + nbytes + len(_TAIL) > end
        or _is(at + nbytes, _TAIL_AT, len(_TAIL)) == 0
    ):
        return 0
    made = _new_array(lengths, ndim, descriptor)
    if made != 0:
        copy(load64(made + DATA), at, nbytes)
        store64(behind, at + nbytes + len(_TAIL))
    return made

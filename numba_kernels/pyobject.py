"""Buffers straight from Python objects into compiled code: a Numba type whose unboxing reads the array object itself.

``array.ctypes.data`` costs 1,000 ns; reading the fields of the ``PyArrayObject`` while Numba's wrapper unboxes the argument
costs about 10. What is read is checked there: exact type ``ndarray``, contiguous, aligned, native byte order; or one of the types of Python
itself that have memory (:data:`EXPORTERS`); or a list or tuple of one of these and a registered element type, a count, or both. Everything
else arrives as ``element == NONE`` and takes the caller's slow path, which resolves it properly or says what is wrong with it. Nothing
unchecked reaches compiled code.

The layouts of CPython's and NumPy's objects are part of their stable or frozen C interfaces on builds with the GIL;
:func:`mismatch` compares what is read with what Python and NumPy say; where they differ (free-threaded builds) callers must not come here.

Unboxed value: ``address``, ``nbytes``, ``element`` (NumPy type number of the element, NONE if not plain), ``itemsize``, ``writable``,
``array`` (address of the array object itself, which lives until the call ends; of anything else that of an object that keeps its memory where
it is, such as a memoryview), ``counted`` (whether a count was given, so that ``nbytes`` are those of so many elements), ``room`` (bytes that
are there, from ``address`` on).
"""

from __future__ import annotations

import ctypes
import sys
from array import array as words
from mmap import mmap
from typing import Any

from numba_kernels import symbols, types
from numba_kernels.atomics import load64
from numba_kernels.calls import make_symbol
from numba_kernels.deferred import emitted
from numba_kernels.jit import entry, kernel
from numba_kernels.late_numpy import at_import, is_imported, look, np, npt
from numba_kernels.layout import WORD, zeroed

NONE = -1

# Offsets in bytes: PyObject, PyVarObject, PyListObject, PyTupleObject, PyArrayObject, PyArray_Descr
OB_TYPE, OB_SIZE, LIST_ITEMS, TUPLE_ITEMS = 8, 16, 24, 24
DATA, NDIM, DIMENSIONS, DESCRIPTOR, FLAGS = 16, 24, 32, 56, 64
BYTEORDER, TYPE_NUMBER = 26, 28
SCALAR_VALUE = 16
"""Of a NumPy scalar: its value."""
FLOAT_VALUE = 16
"""PyFloatObject: its value."""
TEXT_STATE, WIDE_TEXT, ASCII_TEXT = 32, str.__basicsize__ - 8, sys.getsizeof("") - 1
"""PyUnicodeObject: the bits that say what it holds, and where its characters begin, those of ASCII and all others."""
TEXT_UTF8 = ASCII_TEXT + 8
"""Of text that is not ASCII: the address of its UTF-8 if that has been asked for, else 0."""
TEXT_COMPACT, TEXT_ASCII, TEXT_KIND_SHIFT, TEXT_KIND_MASK = 0x20, 0x40, 2, 7
"""Whether the characters are in the object; whether all are ASCII; bytes of a character: 1, 2 or 4."""

VIEW_FLAGS, VIEW_DATA, VIEW_NBYTES, VIEW_ITEMSIZE, VIEW_READONLY, VIEW_FORMAT = 40, 56, 72, 80, 88, 96
"""PyMemoryViewObject: what is known of it, and of its Py_buffer address, length, item size, whether it is read only, format."""
WORDS_DATA, WORDS_DESCRIPTOR = 24, 40
"""arrayobject of ``array.array``: the address of its items, and that of what describes them, which begins with the type code."""
VIEW_CONTIGUOUS = 0x2 | 0x4
"""The flags of a memoryview whose memory is contiguous, in either order."""

C_CONTIGUOUS, WRITEABLE = 0x1, 0x400

LAST_PLAIN, HALF = 16, 23  # type numbers 0..16 are bool to complex long double; 23 is float16
TYPE_NUMBERS = {code: number for number, code in enumerate("?bBhHiIlLqQfdgFDGOSUVMme")}
"""NumPy's type codes, which are numbered in this order for ever."""
_ITEMSIZES = words("q", [1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 4, 8, 16, 8, 16, 32, 0, 0, 0, 1, 0, 0, 2])
"""Bytes of an element by NumPy type number. Void stands for bytes."""

EXPORTERS = {"bytes": bytes, "bytearray": bytearray, "array": words, "memoryview": memoryview, "mmap": mmap}
"""Python's own types that have memory, by the names of their symbols."""
FORMATS = 128
"""Characters that may be the format of a buffer: those of ASCII."""
_formats = words("q", [TYPE_NUMBERS[chr(code)] if chr(code) in "?bBhHiIlLqQfdg" else NONE for code in range(FORMATS)])

BUCKETS = 512
_registered, _registered_at = zeroed(2 * BUCKETS * WORD)
"""Open-addressing table: address of a Python object that names an element type, NumPy type number. Read by compiled code."""
_array_type, _array_type_at = zeroed(WORD)
"""The address of the class of arrays once there is one: nothing is an array before."""
_scalar_types, _scalar_types_at = zeroed(2 * WORD)
"""The addresses of the classes of NumPy's integers of 64 and of 32 bits, which counts and ranks that come out of arrays are."""
_in_place, _in_place_at = zeroed(WORD)
"""The address of what stands for a buffer that is another one of the call."""
_kept: list[Any] = []

open_learned_at, _open_learned_at = zeroed(WORD)
"""The address of :func:`numba_kernels.pyclasses.open_learned` once a class has been learned."""

symbols.add("ncclx_mpi_ndarray_type", _array_type_at)
symbols.add("ncclx_mpi_open_learned", _open_learned_at)
symbols.add("ncclx_mpi_scalar_types", _scalar_types_at)
symbols.add("ncclx_mpi_in_place", _in_place_at)
symbols.add("ncclx_mpi_list_type", id(list))
symbols.add("ncclx_mpi_tuple_type", id(tuple))
symbols.add("ncclx_mpi_int_type", id(int))
symbols.add("ncclx_mpi_float_type", id(float))
for _name, _type in EXPORTERS.items():
    symbols.add(f"ncclx_mpi_{_name}_type", id(_type))
symbols.add("ncclx_mpi_none", id(None))
symbols.add("ncclx_mpi_true", id(True))
symbols.add("ncclx_mpi_element_table", _registered_at)
symbols.add("ncclx_mpi_itemsizes", _ITEMSIZES.buffer_info()[0])
symbols.add("ncclx_mpi_format_elements", _formats.buffer_info()[0])


FIELDS = ("address", "nbytes", "element", "itemsize", "writable")
NO_INDEX = -(1 << 63)

array_argument = types.emitted_type("pyobject", "array_argument")
"""An argument that may be a plain array, or anything else."""
address_of = emitted("pyobject", "address_of")
nbytes_of = emitted("pyobject", "nbytes_of")
element_of = emitted("pyobject", "element_of")
itemsize_of = emitted("pyobject", "itemsize_of")
writable_of = emitted("pyobject", "writable_of")
array_of = emitted("pyobject", "array_of")
room_of = emitted("pyobject", "room_of")
is_counted = emitted("pyobject", "is_counted")
index_argument = types.emitted_type("pyobject", "index_argument")
"""A rank, a root or a tag: an int of Python or NumPy, or a float without what comes behind the point, as in mpi4py; or NO_INDEX for the slow
path."""
index_of = emitted("pyobject", "index_of")
"""The value of an :data:`index_argument`; NO_INDEX is neither a rank nor a tag, nor one of MPI's special values."""
object_argument = types.emitted_type("pyobject", "object_argument")
"""Any object, as its address: for :mod:`numba_kernels.pysequence`, which looks into lists and tuples. Borrowed for the call."""
object_of = emitted("pyobject", "object_of")
"""The address of the object of an :data:`object_argument`."""
read_array = emitted("pyobject", "read_array")
"""``read_array(obj, target)``: the five fields of the array at address `obj` to `target` (int64[5]); ``element`` NONE: it is no plain one."""
read_any_array = emitted("pyobject", "read_any_array")
"""``read_any_array(obj, target)``: the same of an object that is known to be laid out as an array."""
read_exporter = emitted("pyobject", "read_exporter")
"""``read_exporter(obj, target)``: the same of a bytes, bytearray, array, memoryview or mmap, or an object of a class that has been learned.
Returns a new reference to what keeps the memory where it is, such as a memoryview, or 0. The caller holds `obj`: any code may run."""
read_buffer = emitted("pyobject", "read_buffer")
"""``read_buffer(obj, target)``: the same of an object of any class that speaks the buffer protocol; the address of no plain one is 0."""
element_named = emitted("pyobject", "element_named")
"""NumPy type number registered for the object at an address, NONE if there is none."""
store_fields = emitted("pyobject", "store_fields")
"""``store_fields(argument, target)``: the fields of an :data:`array_argument` but the last."""

list_type = make_symbol("ncclx_mpi_list_type")
tuple_type = make_symbol("ncclx_mpi_tuple_type")
int_type = make_symbol("ncclx_mpi_int_type")
_address_of_array_type = make_symbol("ncclx_mpi_ndarray_type")
bytes_type = make_symbol("ncclx_mpi_bytes_type")
words_type = make_symbol("ncclx_mpi_array_type")
none_object = make_symbol("ncclx_mpi_none")
true_object = make_symbol("ncclx_mpi_true")
_address_of_in_place = make_symbol("ncclx_mpi_in_place")
scalar_types = make_symbol("ncclx_mpi_scalar_types")
"""Address of the addresses of the classes of NumPy's integers of 64 and of 32 bits, 0 while there are none."""
format_elements = make_symbol("ncclx_mpi_format_elements")
"""Address of the NumPy type numbers of elements by the character that is their format, NONE for others."""
item_sizes = make_symbol("ncclx_mpi_itemsizes")
"""Address of the bytes of an element by NumPy type number."""


def register_element(key: Any, code: str) -> None:
    """Let ``[array, key]`` take the fast route as an array of the type with this code of NumPy's; `key` is kept alive."""
    slot = (id(key) >> 4) % BUCKETS
    while _registered[2 * slot] not in (0, id(key)):
        slot = (slot + 1) % BUCKETS
    if len(_kept) >= BUCKETS // 2:
        return
    _kept.append(key)
    _registered[2 * slot + 1] = TYPE_NUMBERS[code]
    _registered[2 * slot] = id(key)


def are_arrays_read() -> bool:
    """Whether compiled code knows NumPy's arrays, which it does if they are laid out as it assumes."""
    look()
    return _array_type[0] != 0


def itemsize_of_number(number: int) -> int:
    """Bytes of an element of a NumPy type number."""
    return _ITEMSIZES[number]


def introduce_in_place(sentinel: Any) -> None:
    """Let compiled code know the object, which is never gone, that a program passes in the place of a buffer."""
    _in_place[0] = id(sentinel)


def _learn() -> None:
    _array_type[0] = id(np.ndarray)
    _scalar_types[0], _scalar_types[1] = id(np.int64), id(np.int32)


at_import(_learn)


@kernel("int64()")
def ndarray_type() -> Any:
    """The address of the class of arrays, 0 while there is none."""
    return load64(_address_of_array_type())


@kernel(types.int64(array_argument))
def is_in_place(argument):  # type: ignore[no-untyped-def]
    """Whether an argument, which is no plain array then, says that the memory is another one's of the call."""
    return 1 if array_of(argument) == load64(_address_of_in_place()) else 0


@kernel(types.int64(array_argument, types.int64), is_entry=True, nogil=False)
def read_argument(argument, target):  # type: ignore[no-untyped-def]
    """Write the five unboxed fields to `target` (int64[5]); returns the element type number, NONE for the slow path."""
    store_fields(argument, target)
    return element_of(argument)


def mismatch() -> str:
    """Return what this interpreter, or NumPy if it is there, does not keep as compiled code assumes; nothing if that is so of none."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "the GIL"
    if not _are_references_as_assumed():
        return "numbers of references"
    items = [object(), object(), object()]
    samples: tuple[Any, ...] = (items, tuple(items), b"bytes", 7, 1.5, None, {})
    for sample in samples:
        if not _is_object_as_assumed(sample):
            return type(sample).__name__
    if ctypes.c_double.from_address(id(samples[4]) + FLOAT_VALUE).value != samples[4]:
        return "float"
    for text, size in (("ab", 1), ("\xe9" * 3, 1), ("\u2713" * 2, 2), ("\U0001f600" * 2, 4)):
        if not _is_text_as_assumed(text, size):
            return f"str of {size} bytes a character"
    if not _are_views_as_assumed():
        return "memoryview"
    if not all(_are_words_as_assumed(words(code, range(3))) for code in "ilq"):
        return "array"
    return "" if not is_imported() or _are_arrays_as_assumed() else "ndarray"


def verify_arrays() -> None:
    """Have compiled code take nothing for an array if a NumPy that came later does not keep them as it assumes."""
    if not _are_arrays_as_assumed():
        _array_type[0] = _scalar_types[0] = _scalar_types[1] = 0


_LEAST_ADDRESS, _WORD_BYTES = 1 << 16, 8


def _are_views_as_assumed() -> bool:
    """Whether a memoryview keeps what is known of its memory where it is assumed."""
    source = words("d", [1.0, 2.0, 3.0])
    address, entries = source.buffer_info()
    for view, is_contiguous in (
        (memoryview(source), True),
        (memoryview(source).toreadonly()[:2], True),
        (memoryview(source)[::2], False),
    ):
        flags, readonly = (ctypes.c_int32.from_address(id(view) + offset).value for offset in (VIEW_FLAGS, VIEW_READONLY))
        found = [
            *(_word(view, place) for place in (VIEW_DATA, VIEW_NBYTES, VIEW_ITEMSIZE)),
            bool(readonly),
            bool(flags & VIEW_CONTIGUOUS),
        ]
        if found != [address, view.nbytes, view.itemsize, view.readonly, is_contiguous]:
            return False
        text = _word(view, VIEW_FORMAT)
        if text < _LEAST_ADDRESS or ctypes.string_at(text) != b"d":
            return False
    return entries * source.itemsize == 24


def _are_words_as_assumed(sample: words[int]) -> bool:
    """Whether an ``array.array`` keeps its items, their number and their type code where they are assumed."""
    address, length = sample.buffer_info()
    if [_word(sample, OB_SIZE), _word(sample, WORDS_DATA)] != [length, address]:
        return False
    descriptor = _word(sample, WORDS_DESCRIPTOR)
    return descriptor >= _LEAST_ADDRESS and ctypes.string_at(descriptor, 1) == sample.typecode.encode()


def _is_object_as_assumed(sample: Any) -> bool:
    """Whether an object has its type, and its length and its items if it is a sequence, where they are assumed."""
    if _word(sample, OB_TYPE) != id(type(sample)):
        return False
    if not isinstance(sample, list | tuple | bytes):
        return True
    if _word(sample, OB_SIZE) != len(sample):
        return False
    if isinstance(sample, bytes):
        return True
    place = _word(sample, LIST_ITEMS) if isinstance(sample, list) else id(sample) + TUPLE_ITEMS
    if place < _LEAST_ADDRESS or place % _WORD_BYTES:  # a number of something: to follow it would end the process
        return False
    return [ctypes.c_int64.from_address(place + _WORD_BYTES * k).value for k in range(len(sample))] == [id(item) for item in sample]


def _are_references_as_assumed() -> bool:
    """Whether an object begins with the number of references to it; this one is in no container, where other threads could find it."""
    sample = object()
    before = _word(sample, 0)
    another = sample
    return _word(another, 0) == before + 1


def _word(sample: Any, offset: int) -> int:
    return ctypes.c_int64.from_address(id(sample) + offset).value


def _are_arrays_as_assumed() -> bool:
    """Whether compiled code reads of arrays what NumPy says, and takes none that is not plain."""
    if any(np.dtype(code).num != number for code, number in TYPE_NUMBERS.items()) or not _is_object_as_assumed(np.zeros(1)):
        return False
    if (
        _word(np.int64(-5), SCALAR_VALUE) != -5
        or ctypes.c_int32.from_address(id(scalar := np.int32(-7)) + SCALAR_VALUE).value != scalar
    ):
        return False
    fields = np.zeros(len(FIELDS), dtype=np.int64)
    read = entry(read_argument)
    array: npt.NDArray[Any] = np.arange(6, dtype=np.float32).reshape(2, 3)
    if _word(array, DATA) != array.ctypes.data or _word(array, DESCRIPTOR) != id(array.dtype):
        return False
    frozen = np.arange(3, dtype=np.int64)
    frozen.flags.writeable = False
    expected = (
        (array, [array.ctypes.data, 24, array.dtype.num, 4], True),
        (frozen, [frozen.ctypes.data, 24, frozen.dtype.num, 8], False),
    )
    for sample, values, writable in expected:
        read(sample, fields.ctypes.data)
        if fields[:4].tolist() != values or bool(fields[4]) is not writable:
            return False
    refused = (array[:, ::2], array.astype(">f4"), "text", None, [array], [array, 7], np.array(["text"]))
    return all(read(sample, fields.ctypes.data) == NONE for sample in refused)


def _is_text_as_assumed(text: str, size: int) -> bool:
    """Whether a text whose characters have `size` bytes each lies in memory as assumed."""
    state, is_ascii = ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value, text.isascii()
    place = id(text) + (ASCII_TEXT if is_ascii else WIDE_TEXT)
    return (
        bool(state & TEXT_COMPACT)
        and bool(state & TEXT_ASCII) is is_ascii
        and state >> TEXT_KIND_SHIFT & TEXT_KIND_MASK == size
        and _word(text, OB_SIZE) == len(text)
        and all(int.from_bytes(ctypes.string_at(place + size * k, size), sys.byteorder) == ord(each) for k, each in enumerate(text))
    )

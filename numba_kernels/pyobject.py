"""Buffers straight from Python objects into compiled code: a Numba type whose unboxing reads the array object itself.

``array.ctypes.data`` costs 1,000 ns; reading the fields of the ``PyArrayObject`` while Numba's wrapper unboxes the argument
costs about 10. What is read is checked there: exact type ``ndarray`` (or a list or tuple of one and a registered
element type), contiguous, aligned, native byte order. Everything else arrives as ``element == NONE`` and takes the caller's
slow path, which resolves it properly or says what is wrong with it. Nothing unchecked reaches compiled code.

The layouts of CPython's and NumPy's objects are part of their stable or frozen C interfaces on builds with the GIL;
:func:`mismatch` compares what is read with what Python and NumPy say; where they differ (free-threaded builds) callers must not come here.

Unboxed value: ``address``, ``nbytes``, ``element`` (NumPy type number of the element, NONE if not plain), ``itemsize``, ``writable``,
``array`` (address of the array object itself, which lives until the call ends).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.core.pythonapi import NativeValue
from numba.extending import intrinsic, typeof_impl, unbox

from numba_kernels.jit import entry, kernel

NONE = -1
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

# Offsets in bytes: PyObject, PyVarObject, PyListObject, PyTupleObject, PyArrayObject, PyArray_Descr
OB_TYPE, OB_SIZE, LIST_ITEMS, TUPLE_ITEMS = 8, 16, 24, 24
DATA, NDIM, DIMENSIONS, DESCRIPTOR, FLAGS = 16, 24, 32, 56, 64
_BYTEORDER, TYPE_NUMBER = 26, 28
TEXT_STATE, WIDE_TEXT, ASCII_TEXT = 32, str.__basicsize__ - 8, sys.getsizeof("") - 1
"""PyUnicodeObject: the bits that say what it holds, and where its characters begin, those of ASCII and all others."""
TEXT_UTF8 = ASCII_TEXT + 8
"""Of text that is not ASCII: the address of its UTF-8 if that has been asked for, else 0."""
TEXT_COMPACT, TEXT_ASCII, TEXT_KIND_SHIFT, TEXT_KIND_MASK = 0x20, 0x40, 2, 7
"""Whether the characters are in the object; whether all are ASCII; bytes of a character: 1, 2 or 4."""

C_CONTIGUOUS, _F_CONTIGUOUS, _ALIGNED, WRITEABLE = 0x1, 0x2, 0x100, 0x400

_LAST_PLAIN, _HALF = 16, 23  # type numbers 0..16 are bool to complex long double; 23 is float16
_ITEMSIZES = np.array([np.dtype(code).itemsize for code in "?bBhHiIlLqQfdgFDG"] + [0] * 3 + [1, 0, 0, 2], dtype=np.int64)
"""Bytes of an element by NumPy type number; the letters are NumPy's type codes in that order. Number 20, void, stands for bytes."""

_BUCKETS = 512
_registered = np.zeros((_BUCKETS, 2), dtype=np.int64)
"""Open-addressing table: address of a Python object that names an element type, NumPy type number. Read by compiled code."""
_kept: list[Any] = []

llvm.add_symbol("ncclx_mpi_ndarray_type", id(np.ndarray))
llvm.add_symbol("ncclx_mpi_list_type", id(list))
llvm.add_symbol("ncclx_mpi_tuple_type", id(tuple))
llvm.add_symbol("ncclx_mpi_int_type", id(int))
llvm.add_symbol("ncclx_mpi_bytes_type", id(bytes))
llvm.add_symbol("ncclx_mpi_none", id(None))
llvm.add_symbol("ncclx_mpi_element_table", _registered.ctypes.data)
llvm.add_symbol("ncclx_mpi_itemsizes", _ITEMSIZES.ctypes.data)


class ArrayArgument(types.Type):  # type: ignore[misc]
    """Numba type of an argument that may be a plain array, or anything else."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_array_argument")


array_argument = ArrayArgument()
_FIELDS = ("address", "nbytes", "element", "itemsize", "writable")


@register_default(ArrayArgument)
class _ArrayArgumentModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [(name, types.int64) for name in (*_FIELDS, "array")])


@typeof_impl.register(ArrayArgument)
def _typeof(value: Any, context: Any) -> ArrayArgument:
    return array_argument


def register_element(key: Any, dtype: npt.DTypeLike | None) -> None:
    """Let ``[array, key]`` take the fast route as an array of `dtype`; `key` is kept alive."""
    if dtype is None:
        return
    number = np.dtype(dtype).num
    slot = (id(key) >> 4) % _BUCKETS
    while _registered[slot, 0]:
        slot = (slot + 1) % _BUCKETS
    if len(_kept) >= _BUCKETS // 2:
        return
    _kept.append(key)
    _registered[slot, 1] = number
    _registered[slot, 0] = id(key)


@unbox(ArrayArgument)
def _unbox_array_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    reader = _Reader(c)
    out = {name: cgutils.alloca_once_value(c.builder, ir.Constant(I64, 0)) for name in _FIELDS}
    c.builder.store(ir.Constant(I64, NONE), out["element"])
    target = cgutils.alloca_once_value(c.builder, obj)
    asked = cgutils.alloca_once_value(c.builder, ir.Constant(I64, NONE))
    held = cgutils.alloca_once_value(c.builder, ir.Constant(obj.type, None))
    reader.open_pair(c.pyapi, obj, target, asked, held)
    array = c.builder.load(target)
    with c.builder.if_then(reader.has_type(array, "ncclx_mpi_ndarray_type"), likely=True):
        reader.read_array(array, c.builder.load(asked), out)
    struct = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    for name in _FIELDS:
        setattr(struct, name, c.builder.load(out[name]))
    struct.array = c.builder.ptrtoint(array, I64)

    def let_go() -> None:
        taken = c.builder.load(held)
        with c.builder.if_then(cgutils.is_not_null(c.builder, taken), likely=False):
            c.pyapi.decref(taken)

    return NativeValue(struct._getvalue(), cleanup=let_go)


class IndexArgument(types.Type):  # type: ignore[misc]
    """A rank, a root or a tag: a Python int, or NO_INDEX for the slow path. Numba's own integers would take ``1.5`` and ``"1"`` too."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_index_argument")


index_argument = IndexArgument()
NO_INDEX = -(1 << 63)


@unbox(IndexArgument)
def _unbox_index_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    reader, none = _Reader(c), ir.Constant(I64, NO_INDEX)
    out = cgutils.alloca_once_value(c.builder, none)
    with c.builder.if_then(reader.has_type(obj, "ncclx_mpi_int_type"), likely=True):
        kind = ir.FunctionType(I64, [obj.type, I32.as_pointer()])
        convert = cgutils.get_or_insert_function(c.builder.module, kind, "PyLong_AsLongLongAndOverflow")  # raises nothing
        overflow = cgutils.alloca_once_value(c.builder, ir.Constant(I32, 0))
        value = c.builder.call(convert, [obj, overflow])
        fits = c.builder.icmp_signed("==", c.builder.load(overflow), ir.Constant(I32, 0))
        c.builder.store(c.builder.select(fits, value, none), out)
    return NativeValue(c.builder.load(out))


@intrinsic
def index_of(typingctx: Any, argument: Any) -> Any:
    """The value of an :class:`IndexArgument`; NO_INDEX is neither a rank nor a tag, nor one of MPI's special values."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return types.int64(index_argument), codegen


class ObjectArgument(types.Type):  # type: ignore[misc]
    """Any object, as its address: for :mod:`numba_kernels.pysequence`, which looks into lists and tuples. Borrowed for the call."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_object_argument")


object_argument = ObjectArgument()


@register_default(IndexArgument)
@register_default(ObjectArgument)
class _WordModel(models.PrimitiveModel):  # type: ignore[misc]
    """Both are one word."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, I64)


@unbox(ObjectArgument)
def _unbox_object_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    return NativeValue(c.builder.ptrtoint(obj, I64))


@intrinsic
def object_of(typingctx: Any, argument: Any) -> Any:
    """The address of the object of an :class:`ObjectArgument`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return types.int64(object_argument), codegen


class _Emitter(NamedTuple):
    """What :class:`_Reader` needs, outside of an unboxing."""

    builder: Any


@intrinsic
def read_array(typingctx: Any, obj: Any, target: Any) -> Any:
    """Write the five fields of the array at address `obj` to `target` (int64[5]); ``element`` is NONE if it is no plain ndarray."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        reader = _Reader(_Emitter(builder))
        out = {name: cgutils.alloca_once_value(builder, ir.Constant(I64, 0)) for name in _FIELDS}
        builder.store(ir.Constant(I64, NONE), out["element"])
        with builder.if_then(reader.has_type(args[0], "ncclx_mpi_ndarray_type"), likely=True):
            reader.read_array(args[0], ir.Constant(I64, NONE), out)
        for position, name in enumerate(_FIELDS):
            place = builder.add(args[1], ir.Constant(I64, 8 * position))
            builder.store(builder.load(out[name]), builder.inttoptr(place, I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def element_named(typingctx: Any, obj: Any) -> Any:
    """NumPy type number registered for the object at address `obj`, NONE if there is none."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _Reader(_Emitter(builder)).lookup(args[0])

    return types.int64(types.int64), codegen


def make_symbol(name: str) -> Any:
    """Return an intrinsic that gives the address which ``llvm.add_symbol`` was told for `name`."""

    @intrinsic
    def symbol(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _Reader(_Emitter(builder)).symbol(name)

        return types.int64(), codegen

    return symbol


list_type = make_symbol("ncclx_mpi_list_type")
tuple_type = make_symbol("ncclx_mpi_tuple_type")
int_type = make_symbol("ncclx_mpi_int_type")
ndarray_type = make_symbol("ncclx_mpi_ndarray_type")
bytes_type = make_symbol("ncclx_mpi_bytes_type")
none_object = make_symbol("ncclx_mpi_none")
item_sizes = make_symbol("ncclx_mpi_itemsizes")
"""Address of the bytes of an element by NumPy type number."""


class _Reader:
    """Emits the reads of object fields."""

    def __init__(self, c: Any) -> None:
        self.builder = c.builder
        self.module = c.builder.module

    def symbol(self, name: str) -> Any:
        """Address of a registered symbol."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(self.module, I8, name)
            found.linkage = "external"
        return self.builder.ptrtoint(found, I64)

    def load(self, pointer: Any, offset: int, kind: Any = I64) -> Any:
        """The field at `offset` bytes from a pointer or address."""
        address = pointer if pointer.type == I64 else self.builder.ptrtoint(pointer, I64)
        place = self.builder.add(address, ir.Constant(I64, offset))
        return self.builder.load(self.builder.inttoptr(place, kind.as_pointer()))

    def has_type(self, obj: Any, name: str) -> Any:
        return self.builder.icmp_unsigned("==", self.load(obj, OB_TYPE), self.symbol(name))

    def open_pair(self, pyapi: Any, obj: Any, target: Any, asked: Any, held: Any) -> None:
        """``[array, type]`` or ``(array, type)`` with a registered type: go on with the array, remember the type.

        The array is held during the call: a list can be changed meanwhile.
        """
        builder = self.builder
        is_list, is_tuple = self.has_type(obj, "ncclx_mpi_list_type"), self.has_type(obj, "ncclx_mpi_tuple_type")
        with builder.if_then(builder.or_(is_list, is_tuple), likely=False):
            two = builder.icmp_signed("==", self.load(obj, OB_SIZE), ir.Constant(I64, 2))
            with builder.if_then(two):
                inline = builder.add(builder.ptrtoint(obj, I64), ir.Constant(I64, TUPLE_ITEMS))
                items = builder.select(is_list, self.load(obj, LIST_ITEMS), inline)
                found = self.lookup(self.load(items, 8))
                with builder.if_then(builder.icmp_signed(">=", found, ir.Constant(I64, 0))):
                    array = builder.inttoptr(self.load(items, 0), target.type.pointee)
                    pyapi.incref(array)
                    builder.store(found, asked)
                    builder.store(array, target)
                    builder.store(array, held)

    def lookup(self, key: Any) -> Any:
        """The type number registered for the object at address `key`, NONE if there is none."""
        builder, table = self.builder, self.symbol("ncclx_mpi_element_table")
        mask = ir.Constant(I64, _BUCKETS - 1)
        at = cgutils.alloca_once_value(builder, builder.and_(builder.lshr(key, ir.Constant(I64, 4)), mask))
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, NONE))
        loop, test, end = (builder.append_basic_block(f"lookup.{part}") for part in ("loop", "test", "end"))
        builder.branch(loop)
        builder.position_at_end(loop)
        row = builder.add(table, builder.mul(builder.load(at), ir.Constant(I64, 16)))
        seen = self.load(row, 0)
        builder.cbranch(builder.icmp_unsigned("==", seen, ir.Constant(I64, 0)), end, test)
        builder.position_at_end(test)
        hit = builder.icmp_unsigned("==", seen, key)
        builder.store(builder.select(hit, self.load(row, 8), ir.Constant(I64, NONE)), found)
        builder.store(builder.and_(builder.add(builder.load(at), ir.Constant(I64, 1)), mask), at)
        builder.cbranch(hit, end, loop)
        builder.position_at_end(end)
        return builder.load(found)

    def read_array(self, array: Any, asked: Any, out: dict[str, Any]) -> None:
        """Fill the fields from an ndarray, if it is a plain one."""
        builder = self.builder
        flags = self.load(array, FLAGS, I32)
        descriptor = self.load(array, DESCRIPTOR)
        number = builder.sext(self.load(descriptor, TYPE_NUMBER, I32), I64)
        with builder.if_then(self._plain(flags, descriptor, number), likely=True):
            sizes = self.symbol("ncclx_mpi_itemsizes")
            size = self.load(builder.add(sizes, builder.mul(number, ir.Constant(I64, 8))), 0)
            nbytes = builder.mul(self._count(array), size)
            builder.store(self.load(array, DATA), out["address"])
            builder.store(nbytes, out["nbytes"])
            builder.store(builder.zext(builder.and_(flags, ir.Constant(I32, WRITEABLE)), I64), out["writable"])
            named = builder.icmp_signed(">=", asked, ir.Constant(I64, 0))
            kind = builder.select(named, asked, number)
            item = self.load(builder.add(sizes, builder.mul(kind, ir.Constant(I64, 8))), 0)
            whole = builder.icmp_signed("==", builder.srem(nbytes, item), ir.Constant(I64, 0))
            builder.store(item, out["itemsize"])
            builder.store(builder.select(whole, kind, ir.Constant(I64, NONE)), out["element"])

    def _plain(self, flags: Any, descriptor: Any, number: Any) -> Any:
        """Contiguous, aligned, native byte order, of a number type."""
        builder = self.builder

        def has(mask: int) -> Any:
            return builder.icmp_unsigned("!=", builder.and_(flags, ir.Constant(I32, mask)), ir.Constant(I32, 0))

        order = self.load(descriptor, _BYTEORDER, I8)
        native = builder.or_(
            builder.icmp_unsigned("==", order, ir.Constant(I8, ord("="))),
            builder.icmp_unsigned("==", order, ir.Constant(I8, ord("|"))),
        )
        numeric = builder.or_(
            builder.icmp_unsigned("<=", number, ir.Constant(I64, _LAST_PLAIN)),
            builder.icmp_unsigned("==", number, ir.Constant(I64, _HALF)),
        )
        contiguous = has(C_CONTIGUOUS | _F_CONTIGUOUS)
        return builder.and_(builder.and_(contiguous, has(_ALIGNED)), builder.and_(native, numeric))

    def _count(self, array: Any) -> Any:
        """Product of the dimensions."""
        builder = self.builder
        ndim = builder.sext(self.load(array, NDIM, I32), I64)
        dimensions = self.load(array, DIMENSIONS)
        total = cgutils.alloca_once_value(builder, ir.Constant(I64, 1))
        with cgutils.for_range(builder, ndim) as loop:
            length = self.load(builder.add(dimensions, builder.mul(loop.index, ir.Constant(I64, 8))), 0)
            builder.store(builder.mul(builder.load(total), length), total)
        return builder.load(total)


def _make_getter(field: str) -> Any:
    @intrinsic
    def getter(typingctx: Any, argument: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return getattr(cgutils.create_struct_proxy(array_argument)(context, builder, value=args[0]), field)

        return types.int64(array_argument), codegen

    return getter


address_of = _make_getter("address")
nbytes_of = _make_getter("nbytes")
element_of = _make_getter("element")
itemsize_of = _make_getter("itemsize")
writable_of = _make_getter("writable")
array_of = _make_getter("array")


@kernel(types.int64(array_argument, types.int64), is_entry=True, nogil=False)
def read_argument(argument, target):  # type: ignore[no-untyped-def]
    """Write the five unboxed fields to `target` (int64[5]); returns the element type number, NONE for the slow path."""
    _store_fields(argument, target)
    return element_of(argument)


@intrinsic
def _store_fields(typingctx: Any, argument: Any, target: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(array_argument)(context, builder, value=args[0])
        for position, name in enumerate(_FIELDS):
            place = builder.add(args[1], ir.Constant(I64, 8 * position))
            builder.store(getattr(struct, name), builder.inttoptr(place, I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(array_argument, types.int64), codegen


def mismatch() -> str:
    """Return what this interpreter or this NumPy does not keep as compiled code assumes, nothing if that is so of none."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "the GIL"
    if not _are_references_as_assumed():
        return "numbers of references"
    items = [object(), object(), object()]
    samples: tuple[Any, ...] = (items, tuple(items), b"bytes", 7, 1.5, None, {}, np.zeros(1))
    for sample in samples:
        if not _is_object_as_assumed(sample):
            return type(sample).__name__
    for text, size in (("ab", 1), ("\xe9" * 3, 1), ("\u2713" * 2, 2), ("\U0001f600" * 2, 4)):
        if not _is_text_as_assumed(text, size):
            return f"str of {size} bytes a character"
    return "" if _are_arrays_as_assumed() else "ndarray"


_LEAST_ADDRESS, _WORD_BYTES = 1 << 16, 8


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
    """Whether an object begins with the number of references to it."""
    sample: list[Any] = []
    before, more = _word(sample, 0), [sample, sample]
    return _word(sample, 0) == before + len(more)


def _word(sample: Any, offset: int) -> int:
    return ctypes.c_int64.from_address(id(sample) + offset).value


def _are_arrays_as_assumed() -> bool:
    """Whether compiled code reads of arrays what NumPy says, and takes none that is not plain."""
    fields = np.zeros(len(_FIELDS), dtype=np.int64)
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
    refused = (array[:, ::2], array.astype(">f4"), b"bytes", None, [array], np.array(["text"]))
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

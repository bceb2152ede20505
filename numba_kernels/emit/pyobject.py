"""Numba types whose unboxing reads Python objects: what :mod:`numba_kernels.pyobject` declares."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.core.pythonapi import NativeValue
from numba.extending import intrinsic, typeof_impl, unbox

from numba_kernels.emit.calls import address_of_symbol
from numba_kernels.pyobject import (
    BUCKETS,
    BYTEORDER,
    C_CONTIGUOUS,
    DATA,
    DESCRIPTOR,
    DIMENSIONS,
    FIELDS,
    FLAGS,
    HALF,
    LAST_PLAIN,
    LIST_ITEMS,
    NDIM,
    NO_INDEX,
    NONE,
    OB_SIZE,
    OB_TYPE,
    TUPLE_ITEMS,
    TYPE_NUMBER,
    WRITEABLE,
)
from numba_kernels.rows import NamedTuple

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F_CONTIGUOUS, _ALIGNED = 0x2, 0x100


class ArrayArgument(types.Type):  # type: ignore[misc]
    """Numba type of an argument that may be a plain array, or anything else."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_array_argument")


array_argument = ArrayArgument()


@register_default(ArrayArgument)
class _ArrayArgumentModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [(name, types.int64) for name in (*FIELDS, "array")])


@typeof_impl.register(ArrayArgument)
def _typeof(value: Any, context: Any) -> ArrayArgument:
    return array_argument


@unbox(ArrayArgument)
def _unbox_array_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    reader = _Reader(c)
    out = {name: cgutils.alloca_once_value(c.builder, ir.Constant(I64, 0)) for name in FIELDS}
    c.builder.store(ir.Constant(I64, NONE), out["element"])
    target = cgutils.alloca_once_value(c.builder, obj)
    asked = cgutils.alloca_once_value(c.builder, ir.Constant(I64, NONE))
    held = cgutils.alloca_once_value(c.builder, ir.Constant(obj.type, None))
    reader.open_pair(c.pyapi, obj, target, asked, held)
    array = c.builder.load(target)
    with c.builder.if_then(reader.is_array(array), likely=True):
        reader.read_array(array, c.builder.load(asked), out)
    struct = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    for name in FIELDS:
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
        out = {name: cgutils.alloca_once_value(builder, ir.Constant(I64, 0)) for name in FIELDS}
        builder.store(ir.Constant(I64, NONE), out["element"])
        with builder.if_then(reader.is_array(args[0]), likely=True):
            reader.read_array(args[0], ir.Constant(I64, NONE), out)
        for position, name in enumerate(FIELDS):
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


class _Reader:
    """Emits the reads of object fields."""

    def __init__(self, c: Any) -> None:
        self.builder = c.builder

    def symbol(self, name: str) -> Any:
        """Address of a registered symbol."""
        return address_of_symbol(self.builder, name)

    def load(self, pointer: Any, offset: int, kind: Any = I64) -> Any:
        """The field at `offset` bytes from a pointer or address."""
        address = pointer if pointer.type == I64 else self.builder.ptrtoint(pointer, I64)
        place = self.builder.add(address, ir.Constant(I64, offset))
        return self.builder.load(self.builder.inttoptr(place, kind.as_pointer()))

    def has_type(self, obj: Any, name: str) -> Any:
        return self.builder.icmp_unsigned("==", self.load(obj, OB_TYPE), self.symbol(name))

    def is_array(self, obj: Any) -> Any:
        """Whether an object has the class whose address is in a word: there is none before NumPy is imported."""
        return self.builder.icmp_unsigned("==", self.load(obj, OB_TYPE), self.load(self.symbol("ncclx_mpi_ndarray_type"), 0))

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
        mask = ir.Constant(I64, BUCKETS - 1)
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

        order = self.load(descriptor, BYTEORDER, I8)
        native = builder.or_(
            builder.icmp_unsigned("==", order, ir.Constant(I8, ord("="))),
            builder.icmp_unsigned("==", order, ir.Constant(I8, ord("|"))),
        )
        numeric = builder.or_(
            builder.icmp_unsigned("<=", number, ir.Constant(I64, LAST_PLAIN)),
            builder.icmp_unsigned("==", number, ir.Constant(I64, HALF)),
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


@intrinsic
def store_fields(typingctx: Any, argument: Any, target: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(array_argument)(context, builder, value=args[0])
        for position, name in enumerate(FIELDS):
            place = builder.add(args[1], ir.Constant(I64, 8 * position))
            builder.store(getattr(struct, name), builder.inttoptr(place, I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(array_argument, types.int64), codegen

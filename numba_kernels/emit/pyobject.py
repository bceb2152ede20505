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
    EXPORTERS,
    FIELDS,
    FLAGS,
    FLOAT_VALUE,
    FORMATS,
    HALF,
    LAST_PLAIN,
    LIST_ITEMS,
    NDIM,
    NO_INDEX,
    NONE,
    OB_SIZE,
    OB_TYPE,
    SCALAR_VALUE,
    TUPLE_ITEMS,
    TYPE_NUMBER,
    TYPE_NUMBERS,
    VIEW_CONTIGUOUS,
    VIEW_DATA,
    VIEW_FLAGS,
    VIEW_FORMAT,
    VIEW_NBYTES,
    VIEW_READONLY,
    WRITEABLE,
)
from numba_kernels.rows import NamedTuple

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_F64, _MOST_OF_FLOATS = ir.DoubleType(), float(1 << 53)
_F_CONTIGUOUS, _ALIGNED = 0x2, 0x100


class ArrayArgument(types.Type):  # type: ignore[misc]
    """Numba type of an argument that may be a plain array, or anything else."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_array_argument")


array_argument = ArrayArgument()


@register_default(ArrayArgument)
class _ArrayArgumentModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [(name, types.int64) for name in (*FIELDS, "array", "room", "counted")])


@typeof_impl.register(ArrayArgument)
def _typeof(value: Any, context: Any) -> ArrayArgument:
    return array_argument


@unbox(ArrayArgument)
def _unbox_array_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    reader = _Reader(c)
    form, out = reader.no_form(), reader.new_fields()
    target = cgutils.alloca_once_value(c.builder, obj)
    held = cgutils.alloca_once_value(c.builder, ir.Constant(obj.type, None))
    reader.open_specification(obj, target, form)
    array = c.builder.load(target)
    with c.builder.if_else(reader.is_array(array), likely=True) as (then, otherwise):
        with then:
            with c.builder.if_then(c.builder.icmp_unsigned("!=", array, obj), likely=False):  # a list can be changed meanwhile
                c.pyapi.incref(array)
                c.builder.store(array, held)
            reader.read_array(array, form, out)
        with otherwise:
            c.pyapi.incref(array)
            reader.read_exporter(array, held, form, out)
            c.pyapi.decref(array)
            view = c.builder.load(held)
            c.builder.store(c.builder.select(cgutils.is_null(c.builder, view), array, view), target)
    struct = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    for name, place in out.items():
        setattr(struct, name, c.builder.load(place))
    struct.array = c.builder.ptrtoint(c.builder.load(target), I64)
    struct.counted = c.builder.zext(reader.is_given(c.builder.load(form.count)), I64)

    def let_go() -> None:
        taken = c.builder.load(held)
        with c.builder.if_then(cgutils.is_not_null(c.builder, taken), likely=False):
            c.pyapi.decref(taken)

    return NativeValue(struct._getvalue(), cleanup=let_go)


class IndexArgument(types.Type):  # type: ignore[misc]
    """A rank, a root or a tag: an int of Python or NumPy, a float, or NO_INDEX for the slow path."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_index_argument")


index_argument = IndexArgument()


@unbox(IndexArgument)
def _unbox_index_argument(kind: Any, obj: Any, c: Any) -> NativeValue:
    out = cgutils.alloca_once_value(c.builder, ir.Constant(I64, NO_INDEX))
    reader = _Reader(c)
    reader.read_integer(obj, out, NO_INDEX)
    reader.read_float(obj, out)
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


class _Form(NamedTuple):
    """Words that say what a specification gives beside the array: a type number, a count of elements, and how many come before them.

    Type and count are NONE where it does not give them.
    """

    asked: Any
    count: Any
    first: Any


class _Emitter(NamedTuple):
    """What :class:`_Reader` needs, outside of an unboxing."""

    builder: Any


@intrinsic
def read_array(typingctx: Any, obj: Any, target: Any) -> Any:
    """Write the five fields of the array at address `obj` to `target` (int64[5]); ``element`` is NONE if it is no plain ndarray."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        reader = _Reader(_Emitter(builder))
        form, out = reader.no_form(), reader.new_fields()
        with builder.if_then(reader.is_array(args[0]), likely=True):
            reader.read_array(args[0], form, out)
        reader.write_fields(out, args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def read_any_array(typingctx: Any, obj: Any, target: Any) -> Any:
    """As :func:`read_array`, of an object that is laid out as an array, whatever its class."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        reader = _Reader(_Emitter(builder))
        form, out = reader.no_form(), reader.new_fields()
        reader.read_array(args[0], form, out)
        reader.write_fields(out, args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def read_exporter(typingctx: Any, obj: Any, target: Any) -> Any:
    """As :func:`read_array`, of anything else that has memory; returns a new reference to what keeps it in its place, or 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _emit_read(builder, args, _Reader.read_exporter)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def read_buffer(typingctx: Any, obj: Any, target: Any) -> Any:
    """As :func:`read_exporter`, of an object of any class that speaks the buffer protocol."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _emit_read(builder, args, _Reader.read_buffer)

    return types.int64(types.int64, types.int64), codegen


def _emit_read(builder: Any, args: Any, read: Any) -> Any:
    reader, pointer = _Reader(_Emitter(builder)), I8.as_pointer()
    form, out = reader.no_form(), reader.new_fields()
    held = cgutils.alloca_once_value(builder, ir.Constant(pointer, None))
    read(reader, builder.inttoptr(args[0], pointer), held, form, out)
    reader.write_fields(out, args[1])
    return builder.ptrtoint(builder.load(held), I64)


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

    def no_form(self) -> _Form:
        """Places for what a specification may give, as if it gave nothing."""
        return _Form(*(cgutils.alloca_once_value(self.builder, ir.Constant(I64, number)) for number in (NONE, NONE, 0)))

    def new_fields(self) -> dict[str, Any]:
        """Places for what is read, as of no buffer."""
        out = {name: cgutils.alloca_once_value(self.builder, ir.Constant(I64, 0)) for name in (*FIELDS, "room")}
        self.builder.store(ir.Constant(I64, NONE), out["element"])
        return out

    def write_fields(self, out: dict[str, Any], target: Any) -> None:
        """Write the five fields to an address."""
        for position, name in enumerate(FIELDS):
            place = self.builder.add(target, ir.Constant(I64, 8 * position))
            self.builder.store(self.builder.load(out[name]), self.builder.inttoptr(place, I64.as_pointer()))

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

    def is_given(self, number: Any) -> Any:
        """Whether a type or a count is there: neither is less than 0."""
        return self.builder.icmp_signed(">=", number, ir.Constant(I64, 0))

    def is_exporter(self, obj: Any) -> Any:
        """Whether an object is one of Python's own whose memory a view of it keeps in its place."""
        found = ir.Constant(ir.IntType(1), 0)
        for name in EXPORTERS:
            found = self.builder.or_(found, self.has_type(obj, f"ncclx_mpi_{name}_type"))
        return found

    def read_exporter(self, obj: Any, held: Any, form: _Form, out: dict[str, Any]) -> None:
        """Fill the fields from what has memory and is no array, by something new in `held` that keeps it in its place.

        That is a memoryview of one of Python's own objects; of others whatever :func:`numba_kernels.pyclasses.open_learned` returns.
        """
        with self.builder.if_else(self.is_exporter(obj)) as (own, other):
            with own:
                self.read_buffer(obj, held, form, out)
            with other:
                self._read_learned(obj, held, form, out)

    def read_buffer(self, obj: Any, held: Any, form: _Form, out: dict[str, Any]) -> None:
        """Fill the fields from what speaks the buffer protocol, by a new memoryview of it in `held`."""
        view = self.view_of(obj)
        with self.builder.if_then(cgutils.is_not_null(self.builder, view), likely=True):
            self.builder.store(view, held)
            self.read_view(view, form, out)

    def _read_learned(self, obj: Any, held: Any, form: _Form, out: dict[str, Any]) -> None:
        """Fill the fields from an object of a class that has been learned, if one has been."""
        builder = self.builder
        function = self.load(self.symbol("ncclx_mpi_open_learned"), 0)
        with builder.if_then(builder.icmp_unsigned("!=", function, ir.Constant(I64, 0)), likely=False):
            fields = cgutils.alloca_once(builder, I64, size=len(FIELDS))
            place = builder.ptrtoint(fields, I64)
            pointer = builder.inttoptr(function, ir.FunctionType(I64, [I64, I64]).as_pointer())
            keeper = builder.call(pointer, [builder.ptrtoint(obj, I64), place])
            with builder.if_then(builder.icmp_unsigned("!=", keeper, ir.Constant(I64, 0))):
                builder.store(builder.inttoptr(keeper, obj.type), held)
                found = {name: self.load(place, 8 * position) for position, name in enumerate(FIELDS)}
                self._fill(out, found["address"], found["nbytes"], found["writable"], found["element"], form)

    def view_of(self, obj: Any) -> Any:
        """A new memoryview of an object; null, and no exception, if there is none.

        The caller holds the object meanwhile: it may be an item of a list, which anything may change that is run to collect garbage.
        """
        builder, module = self.builder, self.builder.module
        make = cgutils.get_or_insert_function(module, ir.FunctionType(obj.type, [obj.type]), "PyMemoryView_FromObject")
        clear = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), []), "PyErr_Clear")
        view = builder.call(make, [obj])
        with builder.if_then(cgutils.is_null(builder, view), likely=False):
            builder.call(clear, [])
        return view

    def read_integer(self, obj: Any, place: Any, otherwise: int) -> None:
        """Store the value of an int of Python or NumPy, `otherwise` if it does not fit a word, and nothing for anything else."""
        builder = self.builder
        with builder.if_else(self.has_type(obj, "ncclx_mpi_int_type"), likely=True) as (then, other):
            with then:
                kind = ir.FunctionType(I64, [obj.type, I32.as_pointer()])
                convert = cgutils.get_or_insert_function(builder.module, kind, "PyLong_AsLongLongAndOverflow")  # raises nothing
                overflow = cgutils.alloca_once_value(builder, ir.Constant(I32, 0))
                value = builder.call(convert, [obj, overflow])
                fits = builder.icmp_signed("==", builder.load(overflow), ir.Constant(I32, 0))
                builder.store(builder.select(fits, value, ir.Constant(I64, otherwise)), place)
            with other:
                kinds, its_kind = self.symbol("ncclx_mpi_scalar_types"), self.load(obj, OB_TYPE)
                with builder.if_then(builder.icmp_unsigned("==", its_kind, self.load(kinds, 0))):
                    builder.store(self.load(obj, SCALAR_VALUE), place)
                with builder.if_then(builder.icmp_unsigned("==", its_kind, self.load(kinds, 8))):
                    builder.store(builder.sext(self.load(obj, SCALAR_VALUE, I32), I64), place)

    def read_float(self, obj: Any, place: Any) -> None:
        """Store the value of a float without what comes behind the point, as C does; nothing for anything else, or one that is no number."""
        builder, most = self.builder, ir.Constant(_F64, _MOST_OF_FLOATS)
        with builder.if_then(self.has_type(obj, "ncclx_mpi_float_type"), likely=False):
            value = self.load(obj, FLOAT_VALUE, _F64)
            size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [_F64]), [value])
            with builder.if_then(builder.fcmp_ordered("<", size, most)):
                builder.store(builder.fptosi(value, I64), place)

    def open_specification(self, obj: Any, target: Any, form: _Form) -> None:
        """A list or tuple of an array and what is to be taken of it: go on with the array, remember the rest.

        ::

            [array, type]   [array, count]   [array, count, type]   [array, (count, first), type]   [array, count, first, type]

        with a registered type; None is as good as nothing. Of any other the target stays as it is, which is no array.
        """
        builder = self.builder
        is_list, is_tuple = self.has_type(obj, "ncclx_mpi_list_type"), self.has_type(obj, "ncclx_mpi_tuple_type")
        with builder.if_then(builder.or_(is_list, is_tuple), likely=False):
            given = self.load(obj, OB_SIZE)
            inline = builder.add(builder.ptrtoint(obj, I64), ir.Constant(I64, TUPLE_ITEMS))
            items = builder.select(is_list, self.load(obj, LIST_ITEMS), inline)
            two, four = (builder.icmp_signed("==", given, ir.Constant(I64, number)) for number in (2, 4))
            between = builder.icmp_unsigned("<=", builder.sub(given, ir.Constant(I64, 2)), ir.Constant(I64, 2))
            with builder.if_then(between):
                last = self.load(builder.add(items, builder.mul(given, ir.Constant(I64, 8))), -8)
                named = self.lookup(last)
                is_named = builder.or_(self.is_given(named), self.is_none(last))
                builder.store(named, form.asked)
                with builder.if_else(builder.and_(two, is_named), likely=True) as (then, otherwise):
                    with then:
                        builder.store(builder.inttoptr(self.load(items, 0), target.type.pointee), target)
                    with otherwise, builder.if_then(builder.or_(two, is_named)):
                        usable = self._read_count(items, four, target.type.pointee, form)
                        with builder.if_then(usable):
                            builder.store(builder.inttoptr(self.load(items, 0), target.type.pointee), target)

    def is_none(self, address: Any) -> Any:
        return self.builder.icmp_unsigned("==", address, self.symbol("ncclx_mpi_none"))

    def _read_count(self, items: Any, is_apart: Any, pointer: Any, form: _Form) -> Any:
        """Remember an int, a tuple of two, or two items `is_apart`; returns whether both are usable: neither negative nor anything else."""
        builder = self.builder
        obj = builder.inttoptr(self.load(items, 8), pointer)
        is_tuple = self.has_type(obj, "ncclx_mpi_tuple_type")
        is_pair = builder.and_(is_tuple, builder.not_(is_apart))
        pair = cgutils.alloca_once_value(builder, builder.add(items, ir.Constant(I64, 8)))
        usable = cgutils.alloca_once_value(builder, builder.not_(is_tuple))
        with builder.if_then(is_pair, likely=False):
            builder.store(builder.add(builder.ptrtoint(obj, I64), ir.Constant(I64, TUPLE_ITEMS)), pair)
            builder.store(builder.icmp_signed("==", self.load(obj, OB_SIZE), ir.Constant(I64, 2)), usable)
        with builder.if_then(builder.load(usable)):
            with builder.if_then(builder.or_(is_pair, is_apart), likely=False):
                self._read_number(self.load(builder.load(pair), 8), pointer, form.first, usable, 0)
            with builder.if_then(builder.load(usable)):
                self._read_number(self.load(builder.load(pair), 0), pointer, form.count, usable, NONE)
        return builder.load(usable)

    def _read_number(self, address: Any, pointer: Any, place: Any, usable: Any, otherwise: int) -> None:
        """Remember the integer of an object, `otherwise` for None, and whether it was `usable`."""
        builder = self.builder
        builder.store(ir.Constant(I64, NONE), place)
        self.read_integer(builder.inttoptr(address, pointer), place, NONE)
        is_none = self.is_none(address)
        builder.store(builder.or_(self.is_given(builder.load(place)), is_none), usable)
        with builder.if_then(is_none, likely=False):
            builder.store(ir.Constant(I64, otherwise), place)

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

    def read_array(self, array: Any, form: _Form, out: dict[str, Any]) -> None:
        """Fill the fields from an ndarray, if it is a plain one."""
        builder = self.builder
        flags = self.load(array, FLAGS, I32)
        descriptor = self.load(array, DESCRIPTOR)
        number = builder.sext(self.load(descriptor, TYPE_NUMBER, I32), I64)
        with builder.if_then(self._plain(flags, descriptor, number), likely=True):
            room = builder.mul(self._count(array), self._size_of(number))
            writable = builder.zext(builder.and_(flags, ir.Constant(I32, WRITEABLE)), I64)
            self._fill(out, self.load(array, DATA), room, writable, number, form)

    def read_view(self, view: Any, form: _Form, out: dict[str, Any]) -> None:
        """Fill the fields from a memoryview, if its memory is contiguous, and its format, where that matters, one character."""
        builder = self.builder
        contiguous = builder.and_(self.load(view, VIEW_FLAGS, I32), ir.Constant(I32, VIEW_CONTIGUOUS))
        address, text = self.load(view, VIEW_DATA), self.load(view, VIEW_FORMAT)
        unsigned_bytes = ir.Constant(I64, TYPE_NUMBERS["B"])
        number = cgutils.alloca_once_value(builder, unsigned_bytes)
        with builder.if_then(builder.icmp_unsigned("!=", text, ir.Constant(I64, 0)), likely=True):
            code = builder.zext(self.load(text, 0, I8), I64)
            row = builder.mul(builder.and_(code, ir.Constant(I64, FORMATS - 1)), ir.Constant(I64, 8))
            builder.store(self.load(builder.add(self.symbol("ncclx_mpi_format_elements"), row), 0), number)
            is_longer = builder.icmp_unsigned(">=", code, ir.Constant(I64, FORMATS))
            with builder.if_then(builder.icmp_unsigned("!=", code, ir.Constant(I64, 0)), likely=True):
                follows = builder.icmp_unsigned("!=", self.load(text, 1, I8), ir.Constant(I8, 0))
                with builder.if_then(builder.or_(is_longer, follows), likely=False):
                    builder.store(ir.Constant(I64, NONE), number)
        is_there = builder.icmp_unsigned("!=", address, ir.Constant(I64, 0))
        usable = builder.and_(builder.icmp_unsigned("!=", contiguous, ir.Constant(I32, 0)), is_there)
        with builder.if_then(usable, likely=True):
            readonly = builder.icmp_unsigned("!=", self.load(view, VIEW_READONLY, I32), ir.Constant(I32, 0))
            writable = builder.zext(builder.not_(readonly), I64)
            self._fill(out, address, self.load(view, VIEW_NBYTES), writable, builder.load(number), form)

    def _fill(self, out: dict[str, Any], address: Any, room: Any, writable: Any, number: Any, form: _Form) -> None:
        """Fill the fields for memory of `room` bytes that holds elements of a type number, or what the form says instead."""
        builder = self.builder
        asked, count, first = (builder.load(place) for place in form)
        kind = builder.select(self.is_given(asked), asked, number)
        item = self._size_of(builder.select(self.is_given(kind), kind, ir.Constant(I64, 0)))
        entries, is_counted = builder.sdiv(room, item), self.is_given(count)
        whole = builder.icmp_signed("==", builder.mul(entries, item), room)
        inside = builder.icmp_signed("<=", count, builder.sub(entries, first))
        fits = builder.and_(builder.icmp_signed("<=", first, entries), builder.select(is_counted, inside, whole))
        before = builder.mul(first, item)
        values = {
            "address": builder.add(address, before),
            "nbytes": builder.select(is_counted, builder.mul(count, item), builder.sub(room, before)),
            "element": builder.select(fits, kind, ir.Constant(I64, NONE)),
            "itemsize": item,
            "writable": writable,
            "room": builder.sub(room, before),
        }
        for name, value in values.items():
            builder.store(value, out[name])

    def _size_of(self, number: Any) -> Any:
        """Bytes of an element of a type number."""
        builder = self.builder
        return self.load(builder.add(self.symbol("ncclx_mpi_itemsizes"), builder.mul(number, ir.Constant(I64, 8))), 0)

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
room_of = _make_getter("room")
is_counted = _make_getter("counted")


@intrinsic
def store_fields(typingctx: Any, argument: Any, target: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(array_argument)(context, builder, value=args[0])
        for position, name in enumerate(FIELDS):
            place = builder.add(args[1], ir.Constant(I64, 8 * position))
            builder.store(getattr(struct, name), builder.inttoptr(place, I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(array_argument, types.int64), codegen

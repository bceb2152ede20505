"""MPI.Datatype: a handle to a layout, and the predefined datatypes."""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from ncclx_mpi import constants as mpi
from ncclx_mpi import late
from ncclx_mpi.api import attributes
from ncclx_mpi.api.accessors import Attributed, Named
from ncclx_mpi.api.handle import PUBLIC, Handle, instance, integer
from ncclx_mpi.arguments import host_view, spec
from ncclx_mpi.buffers import named, packing, shapes, source
from ncclx_mpi.buffers.layout import Integers, Layout, Recipe, find, usable
from ncclx_mpi.errors import ERR_ARG, ERR_COMM, ERR_COUNT, ERR_TYPE, fail
from numba_kernels.late_numpy import is_any_array
from numba_kernels.pyobject import register_element

if TYPE_CHECKING:
    from ncclx_mpi.api import fast
else:
    fast = late.module("ncclx_mpi.api.fast")  # which knows what a datatype is

_COMBINERS = {value: name.removeprefix("COMBINER_") for name, value in vars(mpi).items() if name.startswith("COMBINER_")}
_names: dict[int, str] = {}
"""Constant name of each predefined handle object, by its identity."""


class Datatype(Named, Attributed, Handle):
    """Describes what the elements of a buffer are and where they lie."""

    __module__ = PUBLIC
    __slots__ = ()
    _state: Layout | None
    _NULL = None
    _NULL_NAME = "MPI_DATATYPE_NULL"
    _KIND = "datatype"

    def __new__(cls, datatype: Datatype | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(datatype, "datatype")

    def _need(self, what: str) -> Layout:
        """The layout, or ERR_TYPE for a null handle."""
        layout = self._state
        return layout if layout is not None else usable(None, f"Datatype.{what}")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle predefined types by name, all others by how they were made."""
        if id(self) in _names:
            return _names[id(self)]
        if self._state is None or self._state.is_named:
            return type(self), (_constant(self._state),)
        return _datatype_create, (*_datatype_decode(self, True), True)

    # handles

    @property
    def handle(self) -> int:
        """The handle as an integer."""
        return 0 if self._state is None else self._state.handle

    @classmethod
    def fromhandle(cls, handle: int) -> Datatype:
        """Make the handle that :attr:`handle` gave."""
        number = integer(handle, "handle")
        layout = find(number)
        if layout is None and number:
            fail(ERR_TYPE, f"{number:#x} is not the handle of a live datatype")
        if layout is None or layout.is_named:
            return _constant(layout)
        return cls._refer(layout)

    def Free(self) -> None:
        """Release the handle; what was made from it, and pending messages, keep what they need."""
        layout = self._need("Free")
        if layout.is_predefined:
            fail(ERR_TYPE, f"Datatype.Free: {layout.name or 'a predefined datatype'} cannot be freed")
        if layout.attributes:
            attributes.delete_all(self._KIND, self, layout.attributes)
        self._become_null()

    def free(self) -> None:
        """Release the handle unless it is null; a predefined constant stays as it is."""
        if self._state is None or id(self) in _names:
            return
        if self.is_predefined:
            self._become_null()
            return
        self.Free()

    def Commit(self) -> Self:
        """Allow the type in communication, and return it."""
        self._need("Commit").committed = True
        return self

    # sizes

    def Get_size(self) -> int:
        """Bytes of data in one element."""
        return self._need("Get_size").size

    def Get_extent(self) -> tuple[int, int]:
        """Lower bound and extent: where an element begins, and how far the next one is."""
        layout = self._need("Get_extent")
        return layout.lb, layout.extent

    def Get_true_extent(self) -> tuple[int, int]:
        """Lower bound and extent of the bytes that are really there, explicit bounds left out."""
        layout = self._need("Get_true_extent")
        return layout.true_lb, layout.true_ub - layout.true_lb

    @property
    def size(self) -> int:
        """Bytes of data in one element."""
        return self._need("size").size

    @property
    def extent(self) -> int:
        """Bytes from one element to the next."""
        return self._need("extent").extent

    @property
    def lb(self) -> int:
        """Lower bound."""
        return self._need("lb").lb

    @property
    def ub(self) -> int:
        """Upper bound."""
        return self._need("ub").ub

    @property
    def true_extent(self) -> int:
        """Bytes from the first to the last byte that is really there."""
        layout = self._need("true_extent")
        return layout.true_ub - layout.true_lb

    @property
    def true_lb(self) -> int:
        """Offset of the first byte that is really there."""
        return self._need("true_lb").true_lb

    @property
    def true_ub(self) -> int:
        """Offset after the last byte that is really there."""
        return self._need("true_ub").true_ub

    # constructors

    def Dup(self) -> Self:
        """Make another datatype of the same meaning, with copies of the attributes."""
        layout = self._need("Dup")
        made = self._refer(shapes.dup(layout))
        if layout.attributes and made._state is not None:
            made._state.attributes = attributes.copy_all(self, layout.attributes)
        return made

    Create_dup = Dup

    def Create_contiguous(self, count: int) -> Self:
        """Make a type of `count` elements, one after the other."""
        return self._refer(shapes.contiguous(self._need("Create_contiguous"), integer(count, "count")))

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Self:
        """Make a type of equal blocks, `stride` elements apart."""
        return self._vector("Create_vector", count, blocklength, stride, in_bytes=False)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Self:
        """Make a type of equal blocks, `stride` bytes apart."""
        return self._vector("Create_hvector", count, blocklength, stride, in_bytes=True)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        """Make a type of blocks at displacements measured in elements."""
        return self._indexed("Create_indexed", blocklengths, displacements, in_bytes=False)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        """Make a type of blocks at displacements measured in bytes."""
        return self._indexed("Create_hindexed", blocklengths, displacements, in_bytes=True)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        """Make a type of equal blocks at displacements measured in elements."""
        return self._indexed_block("Create_indexed_block", blocklength, displacements, in_bytes=False)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        """Make a type of equal blocks at displacements measured in bytes."""
        return self._indexed_block("Create_hindexed_block", blocklength, displacements, in_bytes=True)

    def _vector(self, what: str, count: int, blocklength: int, stride: int, *, in_bytes: bool) -> Self:
        old, numbers = self._need(what), (integer(count, "count"), integer(blocklength, "blocklength"), integer(stride, "stride"))
        return self._refer(shapes.vector(old, *numbers, in_bytes=in_bytes))

    def _indexed(self, what: str, blocklengths: Sequence[int], displacements: Sequence[int], *, in_bytes: bool) -> Self:
        old, (lengths, offsets) = self._need(what), _numbers(blocklengths, displacements)
        return self._refer(shapes.indexed(old, lengths, offsets, in_bytes=in_bytes))

    def _indexed_block(self, what: str, blocklength: int, displacements: Sequence[int], *, in_bytes: bool) -> Self:
        old, length = self._need(what), integer(blocklength, "blocklength")
        return self._refer(shapes.indexed_block(old, length, _numbers(displacements)[0], in_bytes=in_bytes))

    @classmethod
    def Create_struct(cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]) -> Self:
        """Make a type of blocks of different types at displacements measured in bytes."""
        lengths, offsets = _numbers(blocklengths, displacements)
        types = spec.of_length(datatypes, len(lengths))
        return cls._refer(shapes.struct(lengths, offsets, [_layout_of(each, "Create_struct") for each in types]))

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = mpi.ORDER_C
    ) -> Self:
        """Make a type of a box out of a larger array."""
        old = self._need("Create_subarray")
        dims = [each.tolist() for each in _numbers(sizes, subsizes, starts)]
        return self._refer(shapes.subarray(old, dims[0], dims[1], dims[2], integer(order, "order")))

    def Create_darray(
        self,
        size: int,
        rank: int,
        gsizes: Sequence[int],
        distribs: Sequence[int],
        dargs: Sequence[int],
        psizes: Sequence[int],
        order: int = mpi.ORDER_C,
    ) -> Self:
        """Make a type of one rank's part of an array distributed over a grid of ranks."""
        old = self._need("Create_darray")
        dims = [each.tolist() for each in _numbers(gsizes, distribs, dargs, psizes)]
        return self._refer(shapes.darray(old, integer(size, "size"), integer(rank, "rank"), dims, integer(order, "order")))

    def Create_resized(self, lb: int, extent: int) -> Self:
        """Make a type of the same bytes with other bounds."""
        return self._refer(shapes.resized(self._need("Create_resized"), integer(lb, "lb"), integer(extent, "extent")))

    Resized = Create_resized

    @classmethod
    def Get_value_index(cls, value: Datatype, index: Datatype) -> Self:
        """Return the predefined pair of a value and its location, null where there is none."""
        found = named.value_index(_layout_of(value, "Get_value_index"), _layout_of(index, "Get_value_index"))
        return cls._refer(found)

    @classmethod
    def Create_f90_integer(cls, r: int) -> Self:
        """Return the Fortran integer type with `r` decimal digits."""
        return cls._refer(named.f90_integer(integer(r, "r")))

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Self:
        """Return the Fortran real type with `p` decimal digits and decimal exponents up to `r`."""
        return cls._refer(named.f90_float(integer(p, "p"), integer(r, "r"), is_complex=False))

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Self:
        """Return the Fortran complex type with `p` decimal digits and decimal exponents up to `r`."""
        return cls._refer(named.f90_float(integer(p, "p"), integer(r, "r"), is_complex=True))

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Self:
        """Return the Fortran type of a class (``TYPECLASS_REAL`` and others) with `size` bytes."""
        return cls._refer(named.LAYOUTS[named.match_size(integer(typeclass, "typeclass"), integer(size, "size"))])

    # origin

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Numbers of integers, addresses, counts and datatypes it was made from, and the combiner."""
        recipe = self._need("Get_envelope").recipe
        if recipe is None:
            return 0, 0, 0, 0, mpi.COMBINER_NAMED
        return len(recipe.integers), 0, len(_items(recipe)), len(recipe.layouts), recipe.combiner

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        """Integers, addresses, counts and datatypes it was made from."""
        recipe = self._need("Get_contents").recipe
        if recipe is None:
            fail(ERR_TYPE, "Datatype.Get_contents: a predefined datatype has no contents")
        return list(recipe.integers), [], _items(recipe), [Datatype._refer(each) for each in recipe.layouts]

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        """Base type, name of the constructor, and its arguments."""
        return _datatype_decode(self)

    @property
    def envelope(self) -> tuple[int, int, int, int, int]:
        """What :meth:`Get_envelope` returns."""
        return self.Get_envelope()

    @property
    def contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        """What :meth:`Get_contents` returns."""
        return self.Get_contents()

    @property
    def combiner(self) -> int:
        """How it was made, one of the ``COMBINER_`` constants."""
        recipe = self._need("combiner").recipe
        return recipe.combiner if recipe is not None else mpi.COMBINER_NAMED

    @property
    def is_named(self) -> bool:
        """Whether it has a constant in MPI."""
        return self._need("is_named").is_named

    @property
    def is_predefined(self) -> bool:
        """Whether it exists without being made, or is null."""
        return self._state is None or self._state.is_predefined

    # packing

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Append the elements in `inbuf` to `outbuf` at byte `position`; return the position after them."""
        layout = self._need("Pack")
        _check_comm(comm, "Datatype.Pack")
        end: int = fast.move_elements(self, inbuf, outbuf, position, 0)
        if end >= 0:
            return end
        fast.meet(layout)
        with host_view.reading(inbuf) as given, host_view.writing(outbuf) as packed:
            return packing.append(layout, given, packed, integer(position, "position"))

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Fill `outbuf` with elements from byte `position` of `inbuf`; return the position after them."""
        layout = self._need("Unpack")
        _check_comm(comm, "Datatype.Unpack")
        end: int = fast.move_elements(self, outbuf, inbuf, position, 1)
        if end >= 0:
            return end
        fast.meet(layout)
        with host_view.reading(inbuf) as packed, host_view.writing(outbuf) as wanted:
            return packing.extract(layout, packed, integer(position, "position"), wanted)

    def Pack_size(self, count: int, comm: Any) -> int:
        """Bytes that `count` elements take when packed."""
        layout = self._need("Pack_size")
        _check_comm(comm, "Datatype.Pack_size")
        return _count(count, "Datatype.Pack_size") * layout.size

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Like :meth:`Pack`, in the big-endian representation ``external32``."""
        layout = self._need("Pack_external")
        _check_datarep(datarep)
        with host_view.reading(inbuf) as given, host_view.writing(outbuf) as packed:
            return packing.append(layout, given, packed, integer(position, "position"), is_external=True)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Like :meth:`Unpack`, from the big-endian representation ``external32``."""
        layout = self._need("Unpack_external")
        _check_datarep(datarep)
        with host_view.reading(inbuf) as packed, host_view.writing(outbuf) as wanted:
            return packing.extract(layout, packed, integer(position, "position"), wanted, is_external=True)

    def Pack_external_size(self, datarep: str, count: int) -> int:
        """Bytes that `count` elements take in the representation ``external32``."""
        layout = self._need("Pack_external_size")
        _check_datarep(datarep)
        return _count(count, "Datatype.Pack_external_size") * layout.size

    # attributes

    def _table(self, what: str) -> attributes.Table:
        layout = self._need(what)
        if layout.attributes is None:
            layout.attributes = {}
        return layout.attributes

    # codes

    def tocode(self) -> str:
        """Character code or type string of a predefined type."""
        if self._state is None or self._state.code is None:
            raise ValueError("cannot map to character code or type string")
        return self._state.code

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Predefined type of a character code or type string."""
        if code not in _typedict:
            raise ValueError(f"cannot map code {code!r} to MPI datatype")
        return _typedict[code]

    @property
    def typestr(self) -> str:
        """Type string, as NumPy writes it."""
        if self._state is None:
            return ""
        return self._state.typestr or f"V{max(self._state.extent, 0)}"

    @property
    def typechar(self) -> str:
        """Character code, as NumPy writes it."""
        if self._state is None:
            return ""
        return self._state.typechar or "V"


def _numbers(*sequences: Sequence[int] | Iterable[int]) -> list[Integers]:
    """Arrays of equal lengths."""
    found: list[Integers] = []
    for sequence in sequences:
        if not hasattr(sequence, "__len__"):
            raise TypeError(f"object of type '{type(sequence).__name__}' has no len()")
        found.append(_integers(sequence.tolist() if is_any_array(sequence) else sequence))
        if len(found[-1]) != len(found[0]):
            raise ValueError(f"expecting {len(found[0])} items, got {len(found[-1])}")
    return found


def _integers(sequence: Iterable[int]) -> Integers:
    if isinstance(sequence, list | tuple):
        with contextlib.suppress(TypeError, OverflowError):  # says below which item it is
            return array("q", sequence)
    return array("q", [integer(item, "item") for item in sequence])


def _items(recipe: Recipe) -> list[int]:
    """Counts of a recipe, those of arrays too."""
    return [count for each in recipe.counts for count in ((each,) if isinstance(each, int) else each)]


def _count(count: Any, what: str) -> int:
    number = integer(count, "count")
    if number < 0:
        fail(ERR_COUNT, f"{what}: the count is {number}")
    return number


def _layout_of(datatype: Any, what: str) -> Layout:
    return instance(datatype, Datatype)._need(what)


def _check_comm(comm: Any, what: str) -> None:
    if not hasattr(comm, "Get_size"):
        raise TypeError(f"{what}: expected a communicator, got {type(comm).__name__}")
    if not comm:
        fail(ERR_COMM, f"{what}: the communicator is null or was freed")


def _check_datarep(datarep: str) -> None:
    if not isinstance(datarep, str | bytes):
        raise TypeError(f"expected str or bytes, {type(datarep).__name__} found")
    if datarep not in ("external32", b"external32"):
        fail(ERR_ARG, f"data representation {datarep!r} is unknown; there is external32 only")


def _constant(layout: Layout | None) -> Datatype:
    """The constant of a predefined layout, or DATATYPE_NULL."""
    return DATATYPE_NULL if layout is None else _constants[id(layout)]


def _datatype_decode(datatype: Datatype, mark: bool = False) -> tuple[Datatype, str, dict[str, Any]]:
    """Base type, name of the constructor, and its arguments."""
    recipe = datatype._need("decode").recipe
    if recipe is None:
        return datatype, "NAMED", {}
    params = {name: each if isinstance(each, int) else list(each) for name, each in recipe.params.items()}
    types = [_constant(each) if each.recipe is None else Datatype._refer(each) for each in recipe.layouts]
    if recipe.combiner == mpi.COMBINER_STRUCT:
        params["datatypes"] = types
    base = types[0] if len(types) == 1 else DATATYPE_NULL
    return base, _COMBINERS[recipe.combiner], params


def _datatype_create(datatype: Datatype, combiner: str, params: dict[str, Any], free: bool = False) -> Datatype:
    """Make and commit a datatype from what :func:`_datatype_decode` returned."""
    made: Datatype = getattr(datatype, f"Create_{combiner.lower()}")(**params)
    return made.Commit()


def kind_of(datatype: Datatype) -> str | None:
    """Name of the element type for reductions, None where they are not defined."""
    return usable(datatype._state, "reduction").kind


def _typecode(datatype: Datatype) -> str | None:
    """Character code or type string of a predefined type, None for others."""
    return None if datatype._state is None else datatype._state.code


def _typealign(datatype: Datatype) -> int | None:
    """Alignment of a predefined type, None for others."""
    layout = datatype._state
    if layout is None or not (layout.is_named or layout.typechar):
        return None
    return layout.align


def Get_address(location: Any) -> int:
    """Address of a buffer in memory, for displacements relative to BOTTOM."""
    return source.address(location)


def Aint_add(base: int, disp: int) -> int:
    """Address that is `disp` bytes after `base`."""
    return source.wrapped(integer(base, "base"), integer(disp, "disp"))


def Aint_diff(addr1: int, addr2: int) -> int:
    """Bytes from `addr2` to `addr1`."""
    return source.wrapped(integer(addr1, "addr1"), -integer(addr2, "addr2"))


def _define(name: str, layout: Layout | None) -> Datatype:
    constant = Datatype._refer(layout)
    _names[id(constant)] = name
    if layout is not None:
        _constants[id(layout)] = constant
    return constant


_constants: dict[int, Datatype] = {}
DATATYPE_NULL = _define("DATATYPE_NULL", None)
PREDEFINED: dict[str, Datatype] = {name: _define(name, layout) for name, layout in named.LAYOUTS.items()}
PREDEFINED.update({alias: PREDEFINED[name] for alias, name in named.ALIASES.items()})
PREDEFINED.update({name: _define(name, None) for name in named.NULL_NAMES})
BYTE = PREDEFINED["BYTE"]

_KINDS = ["bool", "byte", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "f80", "c64", "c128", "c160"]
_NUMPY = dict(zip(_KINDS, "?VbhilBHILefdgFDG", strict=True))
for _name, _layout in named.LAYOUTS.items():
    if _layout.kind in _NUMPY:
        register_element(PREDEFINED[_name], _NUMPY[_layout.kind])  # compiled code reads [array, type] like a bare array
for _code, _name in named.CODES.items():
    _state = PREDEFINED[_name]._state
    if len(_code) == 1 and _state is not None and _state.kind in _NUMPY:
        for _key in (sys.intern(_code), chr(ord(_code))):  # a text of one character is one of these objects, which may be two
            register_element(_key, _NUMPY[_state.kind])

_typedict = {code: PREDEFINED[name] for code, name in named.CODES.items()}
_typedict_c = {code: PREDEFINED[name] for code, name in named.CODES_C.items()}
spec.register(Datatype, {**_typedict, "BYTE": BYTE, "bfloat16": PREDEFINED["BFLOAT16_T"]})
_typedict_f = {code: PREDEFINED[name] for code, name in named.CODES_F.items()}

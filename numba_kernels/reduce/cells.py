"""Element types as they lie in memory: how the CPU loop loads and stores them, and their NumPy types.

Loads and stores assume no alignment; vector code for aligned and unaligned addresses is equally fast.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types

from numba_kernels.reduce import half

_INDEX = np.dtype(np.intc)
_SCALARS: dict[str, Any] = {
    "bool": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "f80": np.longdouble,
    "c64": np.complex64,
    "c128": np.complex128,
    "c160": np.clongdouble,
} | {f"{sign}{bits}": f"{sign}{bits // 8}" for sign in "iu" for bits in (8, 16, 32, 64)}

Access = Callable[[Any], Any]
"""Takes a load or store instruction, attaches what is known about it, gives it back."""


@functools.cache
def dtype(kind: str) -> np.dtype[Any]:
    """NumPy type of the element type `kind`; pairs are C structs with fields ``value`` and ``index``."""
    value, _, index = kind.partition(",")
    if not index:
        scalar: np.dtype[Any] = np.dtype(_SCALARS[value])
        return scalar
    pair: np.dtype[Any] = np.dtype([("value", _SCALARS[value]), ("index", _INDEX)], align=True)
    return pair


class Field(NamedTuple):
    """One component of a cell: its Numba type, and how it gets out of memory and back."""

    kind: Any
    offset: int
    load: Callable[[Any, Any, Access], Any]
    store: Callable[[Any, Any, Any, Access], None]


class Cell(NamedTuple):
    """One element in memory: a single field, or value and index of a pair."""

    nbytes: int
    fields: tuple[Field, ...]

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Numba types of the fields."""
        return tuple(field.kind for field in self.fields)


def cell(kind: str) -> Cell:
    """How a native kernel reads and writes elements of the type `kind`."""
    layout = dtype(kind)
    if layout.fields is None:
        return Cell(layout.itemsize, (_field(layout, 0),))
    parts = [layout.fields[name] for name in ("value", "index")]
    return Cell(layout.itemsize, tuple(_field(part[0], part[1]) for part in parts))


def _field(scalar: np.dtype[Any], offset: int) -> Field:
    if scalar.kind == "c":
        return _complex_field(scalar.itemsize // 2)
    if scalar == np.float16:
        return half_field(has_half_conversions())
    if scalar.kind == "f":
        kind = types.float32 if scalar.itemsize == 4 else types.float64
        return _plain_field(kind, _floating(scalar.itemsize), offset)
    signed = scalar.kind == "i"
    bits = scalar.itemsize * 8
    return _plain_field(types.Integer.from_bitwidth(bits, signed), ir.IntType(bits), offset)


def _floating(nbytes: int) -> Any:
    return ir.FloatType() if nbytes == 4 else ir.DoubleType()


def _plain_field(kind: Any, storage: Any, offset: int) -> Field:
    def load(builder: Any, address: Any, access: Access) -> Any:
        return access(builder.load(builder.bitcast(address, storage.as_pointer())))

    def store(builder: Any, value: Any, address: Any, access: Access) -> None:
        access(builder.store(value, builder.bitcast(address, storage.as_pointer())))

    return Field(kind, offset, load, store)


def _complex_field(part_bytes: int) -> Field:
    storage = _floating(part_bytes)
    value_type = ir.LiteralStructType([storage, storage])

    def load(builder: Any, address: Any, access: Access) -> Any:
        parts = builder.bitcast(address, storage.as_pointer())
        value = ir.Constant(value_type, ir.Undefined)
        for i in range(2):
            part = access(builder.load(builder.gep(parts, [ir.Constant(ir.IntType(64), i)])))
            value = builder.insert_value(value, part, i)
        return value

    def store(builder: Any, value: Any, address: Any, access: Access) -> None:
        parts = builder.bitcast(address, storage.as_pointer())
        for i in range(2):
            part = builder.gep(parts, [ir.Constant(ir.IntType(64), i)])
            access(builder.store(builder.extract_value(value, i), part))

    return Field(types.complex64 if part_bytes == 4 else types.complex128, 0, load, store)


def half_field(in_hardware: bool) -> Field:
    """A float16 in memory that is a float32 to the operation; converted by instructions, or by integer code."""
    bits = ir.IntType(16)
    widen, narrow = (half.widen_in_hardware, half.narrow_in_hardware) if in_hardware else (half.widen, half.narrow)

    def load(builder: Any, address: Any, access: Access) -> Any:
        return widen(builder, access(builder.load(builder.bitcast(address, bits.as_pointer()))))

    def store(builder: Any, value: Any, address: Any, access: Access) -> None:
        access(builder.store(narrow(builder, value), builder.bitcast(address, bits.as_pointer())))

    return Field(types.float32, 0, load, store)


@functools.cache
def has_half_conversions() -> bool:
    """Whether this CPU converts float16; without, LLVM would call runtime functions that a JIT may not find."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(llvmlite.binding.get_host_cpu_features().get("f16c", False))
    return platform.machine() in ("aarch64", "arm64")

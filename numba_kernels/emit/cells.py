"""Element types: their bits in memory, and what operations compute with.

Loops load and store integers of :attr:`Field.part`; a field makes the value of them and back, so that one definition serves the CPU,
which accesses elements, and the GPU, which accesses 16 bytes at once.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types

from numba_kernels.emit.narrow import narrow, narrow_half, widen, widen_half
from numba_kernels.reduce.dtypes import dtype
from numba_kernels.reduce.narrow import FORMATS, Format
from numba_kernels.rows import NamedTuple


class Field(NamedTuple):
    """One component of a cell.

    Attributes
    ----------
    kind
        Numba type to compute with.
    offset
        Where it begins, in bytes.
    part, parts
        LLVM integer type that it is loaded as, and how many of them.
    decode, encode
        ``decode(builder, integers)`` is the value; ``encode(builder, value)`` are the integers.
    """

    kind: Any
    offset: int
    part: Any
    parts: int
    decode: Callable[[Any, list[Any]], Any]
    encode: Callable[[Any, Any], list[Any]]


class Cell(NamedTuple):
    """One element in memory: a single field, or value and index of a pair."""

    nbytes: int
    fields: tuple[Field, ...]

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Numba types of the fields."""
        return tuple(field.kind for field in self.fields)


def cell(kind: str) -> Cell:
    """How the CPU loop reads and writes elements of the type `kind`."""
    layout = dtype(kind)
    if kind in FORMATS:
        return Cell(layout.itemsize, (narrow_field(FORMATS[kind], kind == "f16" and has_half_conversions()),))
    if layout.fields is None:
        return Cell(layout.itemsize, (field(layout, 0),))
    parts = [layout.fields[name] for name in ("value", "index")]
    return Cell(layout.itemsize, tuple(field(part[0], part[1]) for part in parts))


def field(scalar: np.dtype[Any], offset: int) -> Field:
    """A number as NumPy has it."""
    if scalar.kind == "c":
        return _complex_field(scalar.itemsize // 2)
    part = ir.IntType(scalar.itemsize * 8)
    if scalar.kind == "f":
        storage = _floating(scalar.itemsize)
        kind = types.float32 if scalar.itemsize == 4 else types.float64
        return Field(
            kind,
            offset,
            part,
            1,
            lambda builder, integers: builder.bitcast(integers[0], storage),
            lambda builder, value: [builder.bitcast(value, part)],
        )
    kind = types.Integer.from_bitwidth(scalar.itemsize * 8, scalar.kind == "i")
    return Field(kind, offset, part, 1, lambda builder, integers: integers[0], lambda builder, value: [value])


def _floating(nbytes: int) -> Any:
    return ir.FloatType() if nbytes == 4 else ir.DoubleType()


def _complex_field(part_bytes: int) -> Field:
    part, storage = ir.IntType(part_bytes * 8), _floating(part_bytes)

    def decode(builder: Any, integers: list[Any]) -> Any:
        value = ir.Constant(ir.LiteralStructType([storage, storage]), ir.Undefined)
        for i in range(2):
            value = builder.insert_value(value, builder.bitcast(integers[i], storage), i)
        return value

    def encode(builder: Any, value: Any) -> list[Any]:
        return [builder.bitcast(builder.extract_value(value, i), part) for i in range(2)]

    return Field(types.complex64 if part_bytes == 4 else types.complex128, 0, part, 2, decode, encode)


def narrow_field(form: Format, in_hardware: bool) -> Field:
    """A narrow float in memory that is a float32 to the operation; float16 may be converted by the CPU's instructions."""

    def decode(builder: Any, integers: list[Any]) -> Any:
        return widen_half(builder, integers[0]) if in_hardware else widen(builder, integers[0], form)

    def encode(builder: Any, value: Any) -> list[Any]:
        return [narrow_half(builder, value) if in_hardware else narrow(builder, value, form)]

    return Field(types.float32, 0, ir.IntType(form.bits), 1, decode, encode)


@functools.cache
def has_half_conversions() -> bool:
    """Whether this CPU converts float16; without, LLVM would call runtime functions that a JIT may not find."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(llvmlite.binding.get_host_cpu_features().get("f16c", False))
    return platform.machine() in ("aarch64", "arm64")

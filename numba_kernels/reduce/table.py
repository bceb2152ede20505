"""Which operation exists for which element type."""

from __future__ import annotations

BOOLEAN = ("bool",)
BYTES = ("byte",)
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64", "f80")
COMPLEX = ("c64", "c128", "c160")
PAIRS = ("f32,i32", "f64,i32", "f80,i32", "i64,i32", "i16,i32", "i32,i32")
TYPES = BOOLEAN + BYTES + SIGNED + UNSIGNED + FLOATS + COMPLEX + PAIRS
"""All element types: C bool, bytes of anything (which have bits, but no value), integers, floats (bf16: bfloat16, f80: long double),
complex, and pairs of a value and an int, packed as they travel: without the padding of C structs."""

_ARITHMETIC = ("sum", "prod")
_ORDER = ("min", "max")
LOGICAL = ("land", "lor", "lxor")
_BITWISE = ("band", "bor", "bxor")
_DEFINED = {
    BOOLEAN: LOGICAL + _BITWISE,
    BYTES: _BITWISE,
    SIGNED: _ARITHMETIC + _ORDER + LOGICAL + _BITWISE,
    UNSIGNED: _ARITHMETIC + _ORDER + LOGICAL + _BITWISE,
    FLOATS: _ARITHMETIC + _ORDER + LOGICAL,
    COMPLEX: _ARITHMETIC + LOGICAL,
    PAIRS: ("minloc", "maxloc"),
}


def defined(op: str, kind: str) -> bool:
    """Whether the operation named `op` is defined for the element type named `kind`."""
    return any(kind in kinds and op in ops for kinds, ops in _DEFINED.items())

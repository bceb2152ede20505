"""float16 <-> float32 in LLVM IR: as instructions, and as integer code for CPUs without them.

Both round to nearest even, keep infinities, zeros and subnormals exact, and turn NaN into a quiet NaN. The integer code
has no branches, so that loops around it vectorise.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

I16, I32, F16, F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()

_SIGN = 0x8000
_INFINITY = 0x7C00
_QUIET_NAN = 0x7E00
_INFINITY_32 = 0x7F800000
_SMALLEST_NORMAL = 0x0400
_SMALLEST_NORMAL_32 = 113 << 23  # 2**-14 as a float32
_BIAS = (127 - 15) << 23
_TOO_LARGE_32 = 143 << 23  # 2**16: everything from here on rounds to infinity
_UNIT_AT_SUBNORMALS = 126 << 23  # 0.5: its last bit is worth the last bit of a subnormal float16


def widen_in_hardware(builder: Any, bits: Any) -> Any:
    """float16 bits (i16) to a float32."""
    return builder.fpext(builder.bitcast(bits, F16), F32)


def narrow_in_hardware(builder: Any, value: Any) -> Any:
    """A float32 to float16 bits (i16)."""
    return builder.bitcast(builder.fptrunc(value, F16), I16)


def widen(builder: Any, bits: Any) -> Any:
    """float16 bits (i16) to a float32, in integer code."""
    word = builder.zext(bits, I32)
    magnitude = builder.and_(word, I32(_SIGN - 1))
    shifted = builder.shl(magnitude, I32(13))
    normal = builder.add(shifted, I32(_BIAS))
    # A subnormal becomes the fraction of the smallest normal number, whose leading one is then subtracted.
    smallest = ir.Constant(F32, 2.0**-14)
    fraction = builder.bitcast(builder.add(shifted, I32(_SMALLEST_NORMAL_32)), F32)
    subnormal = builder.bitcast(builder.fsub(fraction, smallest), I32)
    special = builder.or_(shifted, I32(_INFINITY_32))
    finite = builder.select(builder.icmp_unsigned("<", magnitude, I32(_SMALLEST_NORMAL)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, I32(_INFINITY)), special, finite)
    sign = builder.shl(builder.and_(word, I32(_SIGN)), I32(16))
    return builder.bitcast(builder.or_(result, sign), F32)


def narrow(builder: Any, value: Any) -> Any:
    """A float32 to float16 bits (i16), in integer code."""
    word = builder.bitcast(value, I32)
    magnitude = builder.and_(word, I32(0x7FFFFFFF))
    # Adding half a unit less one, plus the last bit that stays, rounds to nearest even. A carry goes into the exponent.
    last = builder.and_(builder.lshr(magnitude, I32(13)), I32(1))
    rounded = builder.add(builder.add(magnitude, I32(0xFFF)), last)
    normal = builder.lshr(builder.sub(rounded, I32(_BIAS)), I32(13))
    # Next to 0.5 the floating-point adder itself rounds at the last bit of a subnormal.
    unit = builder.bitcast(I32(_UNIT_AT_SUBNORMALS), F32)
    aligned = builder.bitcast(builder.fadd(builder.bitcast(magnitude, F32), unit), I32)
    subnormal = builder.sub(aligned, I32(_UNIT_AT_SUBNORMALS))
    is_nan = builder.icmp_unsigned(">", magnitude, I32(_INFINITY_32))
    special = builder.select(is_nan, I32(_QUIET_NAN), I32(_INFINITY))
    finite = builder.select(builder.icmp_unsigned("<", magnitude, I32(_SMALLEST_NORMAL_32)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, I32(_TOO_LARGE_32)), special, finite)
    sign = builder.and_(builder.lshr(word, I32(16)), I32(_SIGN))
    return builder.trunc(builder.or_(result, sign), I16)

"""Floats of 8 and 16 bits <-> float32, in LLVM IR: integer code for any machine, and instructions where there are some.

All round to nearest even, keep zeros and subnormals exact, and turn NaN into a quiet NaN. The integer code has no branches, so
that loops around it vectorise.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numba_kernels.reduce.narrow import BIAS_32, INFINITY_32, MANTISSA_32, Format

I16, I32, F16, F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()


def widen(builder: Any, bits: Any, form: Format) -> Any:
    """Bits of a narrow float to a float32, in integer code."""
    sign_bit = 1 << (form.bits - 1)
    word = builder.zext(bits, I32)
    magnitude = builder.and_(word, I32(sign_bit - 1))
    shifted = builder.shl(magnitude, I32(form.dropped))
    result = shifted
    if form.has_own_subnormals:
        normal = builder.add(shifted, I32((BIAS_32 - form.bias) << MANTISSA_32))
        # A subnormal becomes the fraction of the smallest normal number, whose leading one is then subtracted.
        smallest = builder.bitcast(I32(form.smallest_normal), F32)
        fraction = builder.bitcast(builder.add(shifted, I32(form.smallest_normal)), F32)
        subnormal = builder.bitcast(builder.fsub(fraction, smallest), I32)
        is_normal = builder.icmp_unsigned(">=", magnitude, I32(1 << form.mantissa))
        finite = builder.select(is_normal, normal, subnormal)
        special = builder.or_(shifted, I32(INFINITY_32))
        result = builder.select(builder.icmp_unsigned(">=", magnitude, I32(form.special)), special, finite)
    sign = builder.shl(builder.and_(word, I32(sign_bit)), I32(32 - form.bits))
    return builder.bitcast(builder.or_(result, sign), F32)


def narrow(builder: Any, value: Any, form: Format) -> Any:
    """A float32 to bits of a narrow float, in integer code."""
    word = builder.bitcast(value, I32)
    magnitude = builder.and_(word, I32(0x7FFFFFFF))
    # Adding half a unit less one, plus the last bit that stays, rounds to nearest even. A carry goes into the exponent.
    last = builder.and_(builder.lshr(magnitude, I32(form.dropped)), I32(1))
    rounded = builder.add(builder.add(magnitude, I32((1 << (form.dropped - 1)) - 1)), last)
    result = builder.lshr(builder.sub(rounded, I32((BIAS_32 - form.bias) << MANTISSA_32)), I32(form.dropped))
    if form.has_own_subnormals:
        # Next to this unit the floating-point adder itself rounds at the last bit of a subnormal.
        unit = I32(form.subnormal_unit)
        aligned = builder.fadd(builder.bitcast(magnitude, F32), builder.bitcast(unit, F32))
        subnormal = builder.sub(builder.bitcast(aligned, I32), unit)
        is_normal = builder.icmp_unsigned(">=", magnitude, I32(form.smallest_normal))
        result = builder.select(is_normal, result, subnormal)
    result = builder.select(builder.icmp_unsigned("<", result, I32(form.limit)), result, I32(form.limit))
    is_nan = builder.icmp_unsigned(">", magnitude, I32(INFINITY_32))
    result = builder.select(is_nan, I32(form.nan), result)
    sign = builder.and_(builder.lshr(word, I32(32 - form.bits)), I32(1 << (form.bits - 1)))
    return builder.trunc(builder.or_(result, sign), ir.IntType(form.bits))


def widen_half(builder: Any, bits: Any) -> Any:
    """float16 bits to a float32, by the CPU's instruction."""
    return builder.fpext(builder.bitcast(bits, F16), F32)


def narrow_half(builder: Any, value: Any) -> Any:
    """A float32 to float16 bits, by the CPU's instruction."""
    return builder.bitcast(builder.fptrunc(value, F16), I16)

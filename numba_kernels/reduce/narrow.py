"""Floats of 8 and 16 bits <-> float32, in LLVM IR: integer code for any machine, and instructions where there are some.

All round to nearest even, keep zeros and subnormals exact, and turn NaN into a quiet NaN. The integer code has no branches, so
that loops around it vectorise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

I16, I32, F16, F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()

_MANTISSA_32, _BIAS_32 = 23, 127
_INFINITY_32 = 0x7F800000


class Format(NamedTuple):
    """A float of fewer bits than 32: a sign, an exponent, and below them the mantissa.

    Attributes
    ----------
    bits, mantissa
        Bits in all, and bits after the binary point.
    bias
        What is added to the exponent.
    special
        From this magnitude on it is no finite number when read.
    limit
        Magnitude of results that are too large: infinity, or the largest finite number.
    nan
        A quiet NaN.
    """

    bits: int
    mantissa: int
    bias: int
    special: int
    limit: int
    nan: int

    @property
    def dropped(self) -> int:
        """Bits of a float32's mantissa that it does not have."""
        return _MANTISSA_32 - self.mantissa

    @property
    def smallest_normal(self) -> int:
        """Its smallest normal number as bits of a float32."""
        return (_BIAS_32 - self.bias + 1) << _MANTISSA_32

    @property
    def subnormal_unit(self) -> int:
        """The power of two whose last bit, in float32, is worth the last bit of a subnormal; as bits of a float32."""
        return (_BIAS_32 + _MANTISSA_32 - (self.bias - 1 + self.mantissa)) << _MANTISSA_32

    @property
    def has_own_subnormals(self) -> bool:
        """Whether its subnormals are normal numbers in float32."""
        return self.bias < _BIAS_32


FORMATS = {
    "f16": Format(16, 10, 15, 0x7C00, 0x7C00, 0x7E00),
    "bf16": Format(16, 7, 127, 0x7F80, 0x7F80, 0x7FC0),
    "e4m3": Format(8, 3, 7, 0x7F, 0x7E, 0x7F),
    "e5m2": Format(8, 2, 15, 0x7C, 0x7B, 0x7F),
}
"""IEEE half precision, its neighbour with the exponent of float32, and the two of 8 bits, whose results saturate."""


def widen(builder: Any, bits: Any, form: Format) -> Any:
    """Bits of a narrow float to a float32, in integer code."""
    sign_bit = 1 << (form.bits - 1)
    word = builder.zext(bits, I32)
    magnitude = builder.and_(word, I32(sign_bit - 1))
    shifted = builder.shl(magnitude, I32(form.dropped))
    result = shifted
    if form.has_own_subnormals:
        normal = builder.add(shifted, I32((_BIAS_32 - form.bias) << _MANTISSA_32))
        # A subnormal becomes the fraction of the smallest normal number, whose leading one is then subtracted.
        smallest = builder.bitcast(I32(form.smallest_normal), F32)
        fraction = builder.bitcast(builder.add(shifted, I32(form.smallest_normal)), F32)
        subnormal = builder.bitcast(builder.fsub(fraction, smallest), I32)
        is_normal = builder.icmp_unsigned(">=", magnitude, I32(1 << form.mantissa))
        finite = builder.select(is_normal, normal, subnormal)
        special = builder.or_(shifted, I32(_INFINITY_32))
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
    result = builder.lshr(builder.sub(rounded, I32((_BIAS_32 - form.bias) << _MANTISSA_32)), I32(form.dropped))
    if form.has_own_subnormals:
        # Next to this unit the floating-point adder itself rounds at the last bit of a subnormal.
        unit = I32(form.subnormal_unit)
        aligned = builder.fadd(builder.bitcast(magnitude, F32), builder.bitcast(unit, F32))
        subnormal = builder.sub(builder.bitcast(aligned, I32), unit)
        is_normal = builder.icmp_unsigned(">=", magnitude, I32(form.smallest_normal))
        result = builder.select(is_normal, result, subnormal)
    result = builder.select(builder.icmp_unsigned("<", result, I32(form.limit)), result, I32(form.limit))
    is_nan = builder.icmp_unsigned(">", magnitude, I32(_INFINITY_32))
    result = builder.select(is_nan, I32(form.nan), result)
    sign = builder.and_(builder.lshr(word, I32(32 - form.bits)), I32(1 << (form.bits - 1)))
    return builder.trunc(builder.or_(result, sign), ir.IntType(form.bits))


def widen_half(builder: Any, bits: Any) -> Any:
    """float16 bits to a float32, by the CPU's instruction."""
    return builder.fpext(builder.bitcast(bits, F16), F32)


def narrow_half(builder: Any, value: Any) -> Any:
    """A float32 to float16 bits, by the CPU's instruction."""
    return builder.bitcast(builder.fptrunc(value, F16), I16)


def numpy_widen(bits: NDArray[Any], form: Format) -> NDArray[Any]:
    """Twin of :func:`widen`, from the definition of the numbers: unsigned integers to float32."""
    magnitude = bits.astype(np.int64) & ((1 << (form.bits - 1)) - 1)
    exponent, fraction = magnitude >> form.mantissa, magnitude & ((1 << form.mantissa) - 1)
    one = np.where(exponent > 0, 1 << form.mantissa, 0)
    value = np.ldexp(fraction + one + 0.0, np.maximum(exponent, 1) - form.bias - form.mantissa)
    value[magnitude > form.special] = np.nan
    value[magnitude == form.special] = np.nan if form.special == form.nan else np.inf
    signed: NDArray[Any] = np.copysign(value, np.where(bits >> (form.bits - 1), -1.0, 1.0)).astype(np.float32)
    return signed


def numpy_narrow(value: NDArray[Any], form: Format) -> NDArray[Any]:
    """Twin of :func:`narrow`: numbers of any type, taken as float32, to unsigned integers."""
    value = value.astype(np.float32)
    finite = np.where(np.isfinite(value), np.abs(value), 0).astype(np.float64)
    exponent = np.where(finite > 0, np.maximum(np.frexp(finite)[1] - 1, 1 - form.bias), 1 - form.bias)
    steps = np.rint(np.ldexp(finite, form.mantissa - exponent)).astype(np.int64)
    # The leading one of a normal number counts as one more exponent, and so does the carry of rounding.
    magnitude = np.minimum(((exponent + form.bias - 1) << form.mantissa) + steps, form.limit)
    magnitude[np.isinf(value)] = form.limit
    magnitude[np.isnan(value)] = form.nan
    bits: NDArray[Any] = magnitude | np.signbit(value).astype(np.int64) << (form.bits - 1)
    return bits.astype(f"u{form.bits // 8}")

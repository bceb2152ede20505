"""Floats of 8 and 16 bits: their formats, and their conversion in NumPy. In LLVM IR: :mod:`numba_kernels.emit.narrow`."""

from __future__ import annotations

from typing import Any

from numba_kernels.late_numpy import np, npt
from numba_kernels.rows import NamedTuple

MANTISSA_32, BIAS_32 = 23, 127
INFINITY_32 = 0x7F800000


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
        return MANTISSA_32 - self.mantissa

    @property
    def smallest_normal(self) -> int:
        """Its smallest normal number as bits of a float32."""
        return (BIAS_32 - self.bias + 1) << MANTISSA_32

    @property
    def subnormal_unit(self) -> int:
        """The power of two whose last bit, in float32, is worth the last bit of a subnormal; as bits of a float32."""
        return (BIAS_32 + MANTISSA_32 - (self.bias - 1 + self.mantissa)) << MANTISSA_32

    @property
    def has_own_subnormals(self) -> bool:
        """Whether its subnormals are normal numbers in float32."""
        return self.bias < BIAS_32


FORMATS = {
    "f16": Format(16, 10, 15, 0x7C00, 0x7C00, 0x7E00),
    "bf16": Format(16, 7, 127, 0x7F80, 0x7F80, 0x7FC0),
    "e4m3": Format(8, 3, 7, 0x7F, 0x7E, 0x7F),
    "e5m2": Format(8, 2, 15, 0x7C, 0x7B, 0x7F),
}
"""IEEE half precision, its neighbour with the exponent of float32, and the two of 8 bits, whose results saturate."""


def numpy_widen(bits: npt.NDArray[Any], form: Format) -> npt.NDArray[Any]:
    """Twin of :func:`widen`, from the definition of the numbers: unsigned integers to float32."""
    magnitude = bits.astype(np.int64) & ((1 << (form.bits - 1)) - 1)
    exponent, fraction = magnitude >> form.mantissa, magnitude & ((1 << form.mantissa) - 1)
    one = np.where(exponent > 0, 1 << form.mantissa, 0)
    value = np.ldexp(fraction + one + 0.0, np.maximum(exponent, 1) - form.bias - form.mantissa)
    value[magnitude > form.special] = np.nan
    value[magnitude == form.special] = np.nan if form.special == form.nan else np.inf
    signed: npt.NDArray[Any] = np.copysign(value, np.where(bits >> (form.bits - 1), -1.0, 1.0)).astype(np.float32)
    return signed


def numpy_narrow(value: npt.NDArray[Any], form: Format) -> npt.NDArray[Any]:
    """Twin of :func:`narrow`: numbers of any type, taken as float32, to unsigned integers."""
    value = value.astype(np.float32)
    finite = np.where(np.isfinite(value), np.abs(value), 0).astype(np.float64)
    exponent = np.where(finite > 0, np.maximum(np.frexp(finite)[1] - 1, 1 - form.bias), 1 - form.bias)
    steps = np.rint(np.ldexp(finite, form.mantissa - exponent)).astype(np.int64)
    # The leading one of a normal number counts as one more exponent, and so does the carry of rounding.
    magnitude = np.minimum(((exponent + form.bias - 1) << form.mantissa) + steps, form.limit)
    magnitude[np.isinf(value)] = form.limit
    magnitude[np.isnan(value)] = form.nan
    bits: npt.NDArray[Any] = magnitude | np.signbit(value).astype(np.int64) << (form.bits - 1)
    return bits.astype(f"u{form.bits // 8}")

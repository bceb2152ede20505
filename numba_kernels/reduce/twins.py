"""The reductions in NumPy: the reference that tests compare with, and the way for types without native kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from numba_kernels.late_numpy import np, npt
from numba_kernels.reduce.narrow import FORMATS, numpy_narrow, numpy_widen
from numba_kernels.reduce.table import defined

Array: TypeAlias = "npt.NDArray[Any]"
Twin: TypeAlias = "Callable[[Array, Array, Array], None]"


def _multiplied(low: Array, high: Array) -> Array:
    if low.dtype.kind != "c":
        return np.multiply(low, high)
    # NumPy's own complex product may fuse multiply and add, depending on the CPU.
    product = np.empty_like(low)
    product.real = low.real * high.real - low.imag * high.imag
    product.imag = low.real * high.imag + low.imag * high.real
    return product


def _least_located(low: Array, high: Array) -> Array:
    return _located(low, high, low["value"] < high["value"])


def _greatest_located(low: Array, high: Array) -> Array:
    return _located(low, high, low["value"] > high["value"])


def _located(low: Array, high: Array, low_is_better: Array) -> Array:
    chosen = np.where(low_is_better, low, high)
    ties = low["value"] == high["value"]
    chosen["index"][ties] = np.minimum(low["index"], high["index"])[ties]
    return chosen


_TWINS: dict[str, str | Callable[[Array, Array], Array]] = {
    "sum": "add",
    "prod": _multiplied,
    "min": lambda low, high: np.where(high < low, high, low),
    "max": lambda low, high: np.where(high > low, high, low),
    "land": "logical_and",
    "lor": "logical_or",
    "lxor": "logical_xor",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
    "minloc": _least_located,
    "maxloc": _greatest_located,
}
"""Functions of NumPy by name."""


def numpy_twin(op: str, kind: str) -> Twin:
    """Return ``twin(out, low, high)``, which stores OP of two arrays of :func:`~numba_kernels.reduce.dtype` in `out`.

    `out` may be `low` or `high` itself.

    Raises
    ------
    ValueError
        The operation is not defined for this type.
    """
    if not defined(op, kind):
        raise ValueError(f"operation {op!r} is not defined for elements of type {kind!r}")
    found = _TWINS[op]
    operate = getattr(np, found) if isinstance(found, str) else found

    def twin(out: Array, low: Array, high: Array) -> None:
        with np.errstate(all="ignore"):
            if kind == "bf16":
                form = FORMATS[kind]
                out[...] = numpy_narrow(operate(numpy_widen(low, form), numpy_widen(high, form)), form)
            else:
                out[...] = operate(low, high)

    return twin

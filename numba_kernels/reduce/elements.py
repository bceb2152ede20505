"""The operations on one element, written once for every loop that uses them.

Plain functions of scalars, without loops, exceptions or memory: compiled into the CPU loop by
:mod:`numba_kernels.emit.loop`. Pairs come in and go out as (value, index). ``low`` is the operand of the lower rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(low: Any, high: Any) -> Any:
    """Sum; integers wrap."""
    return low + high


def multiply(low: Any, high: Any) -> Any:
    """Product; integers wrap."""
    return low * high


def least(low: Any, high: Any) -> Any:
    """The smaller one; `low` unless `high` is strictly smaller."""
    return high if high < low else low


def greatest(low: Any, high: Any) -> Any:
    """The larger one; `low` unless `high` is strictly larger."""
    return high if high > low else low


def logical_and(low: Any, high: Any) -> Any:
    """Both are nonzero."""
    return (low != 0) & (high != 0)


def logical_or(low: Any, high: Any) -> Any:
    """One is nonzero."""
    return (low != 0) | (high != 0)


def logical_xor(low: Any, high: Any) -> Any:
    """Exactly one is nonzero."""
    return (low != 0) ^ (high != 0)


def bitwise_and(low: Any, high: Any) -> Any:
    """Bits that both have."""
    return low & high


def bitwise_or(low: Any, high: Any) -> Any:
    """Bits that one has."""
    return low | high


def bitwise_xor(low: Any, high: Any) -> Any:
    """Bits that exactly one has."""
    return low ^ high


def least_located(low: Any, low_index: Any, high: Any, high_index: Any) -> Any:
    """The smaller value and its index; of equal values the lower index."""
    index = min(low_index, high_index) if low == high else (low_index if low < high else high_index)
    return (low if low < high else high), index


def greatest_located(low: Any, low_index: Any, high: Any, high_index: Any) -> Any:
    """The larger value and its index; of equal values the lower index."""
    index = min(low_index, high_index) if low == high else (low_index if low > high else high_index)
    return (low if low > high else high), index


OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": add,
    "prod": multiply,
    "min": least,
    "max": greatest,
    "land": logical_and,
    "lor": logical_or,
    "lxor": logical_xor,
    "band": bitwise_and,
    "bor": bitwise_or,
    "bxor": bitwise_xor,
    "minloc": least_located,
    "maxloc": greatest_located,
}
"""Operation name -> what it does to one element."""

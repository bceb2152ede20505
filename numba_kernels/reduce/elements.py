"""The operations on one element, written once for every loop that uses them.

Plain functions of scalars, without loops, exceptions or memory: compiled into the CPU loop by
:mod:`numba_kernels.reduce.loop`. Pairs come in and go out as (value, index). ``low`` is the operand of the lower rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(low: Any, high: Any) -> Any:
    return low + high


def multiply(low: Any, high: Any) -> Any:
    return low * high


def least(low: Any, high: Any) -> Any:
    return high if high < low else low


def greatest(low: Any, high: Any) -> Any:
    return high if high > low else low


def logical_and(low: Any, high: Any) -> Any:
    return (low != 0) & (high != 0)


def logical_or(low: Any, high: Any) -> Any:
    return (low != 0) | (high != 0)


def logical_xor(low: Any, high: Any) -> Any:
    return (low != 0) ^ (high != 0)


def bitwise_and(low: Any, high: Any) -> Any:
    return low & high


def bitwise_or(low: Any, high: Any) -> Any:
    return low | high


def bitwise_xor(low: Any, high: Any) -> Any:
    return low ^ high


def least_located(low: Any, low_index: Any, high: Any, high_index: Any) -> Any:
    index = min(low_index, high_index) if low == high else (low_index if low < high else high_index)
    return (low if low < high else high), index


def greatest_located(low: Any, low_index: Any, high: Any, high_index: Any) -> Any:
    index = min(low_index, high_index) if low == high else (low_index if low > high else high_index)
    return (low if low > high else high), index


def incoming(low: Any, high: Any) -> Any:
    return low


def resident(low: Any, high: Any) -> Any:
    return high


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
    "replace": incoming,
    "no_op": resident,
}
"""Operation name -> what it does to one element."""

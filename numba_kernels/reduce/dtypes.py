"""Element types as NumPy has them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

_INDEX = np.dtype(np.intc)
_SCALARS: dict[str, Any] = {
    "bool": np.bool_,
    "byte": np.uint8,
    "f16": np.float16,
    "bf16": np.uint16,
    "e4m3": np.uint8,
    "e5m2": np.uint8,
    "f32": np.float32,
    "f64": np.float64,
    "f80": np.longdouble,
    "c64": np.complex64,
    "c128": np.complex128,
    "c160": np.clongdouble,
} | {f"{sign}{bits}": f"{sign}{bits // 8}" for sign in "iu" for bits in (8, 16, 32, 64)}


@functools.cache
def dtype(kind: str) -> np.dtype[Any]:
    """NumPy type of the element type `kind`; pairs have fields ``value`` and ``index``, packed: without the padding of C structs.

    What NumPy does not have (bf16 and the floats of 8 bits) is its bits as an unsigned integer.
    """
    value, _, index = kind.partition(",")
    if not index:
        scalar: np.dtype[Any] = np.dtype(_SCALARS[value])
        return scalar
    pair: np.dtype[Any] = np.dtype([("value", _SCALARS[value]), ("index", _INDEX)])
    return pair

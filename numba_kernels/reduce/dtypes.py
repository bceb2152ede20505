"""Element types as NumPy has them."""

from __future__ import annotations

import functools
from typing import Any

from numba_kernels.late_numpy import np

_SCALARS = {
    "bool": "?",
    "byte": "u1",
    "f16": "f2",
    "bf16": "u2",
    "e4m3": "u1",
    "e5m2": "u1",
    "f32": "f4",
    "f64": "f8",
    "f80": "g",
    "c64": "c8",
    "c128": "c16",
    "c160": "G",
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
    pair: np.dtype[Any] = np.dtype([("value", _SCALARS[value]), ("index", np.intc)])
    return pair

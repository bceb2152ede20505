"""What kernels on GPUs can do and how they are launched: for callers that have not loaded any."""

from __future__ import annotations

from numba_kernels.reduce.table import defined

GROUP = 512
"""Threads that share a row; blocks of a launch have as many."""
TINY_FLOATS = ("e4m3", "e5m2")
"""Floats of 8 bits: 4 bits of exponent and 3 of mantissa without infinity, or 5 and 2."""

_ON_THE_CPU_ONLY = ("f80", "c160", "minloc", "maxloc")
_TINY_OPERATIONS = ("sum", "min", "max")


def is_supported(op: str, typecode: str) -> bool:
    """Whether the GPU does the reduction `op` on elements of this type."""
    if typecode in TINY_FLOATS:
        return op in _TINY_OPERATIONS
    return defined(op, typecode) and op not in _ON_THE_CPU_ONLY and typecode not in _ON_THE_CPU_ONLY

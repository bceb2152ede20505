"""Reductions: ``out[i] = low[i] OP high[i]`` as C functions, one for each operation and element type.

>>> from numba_kernels import reduce
>>> reduce.address("sum", "f32") != 0, reduce.address("sum", "f80")
(True, 0)

``low`` is the operand of the lower rank. ``out`` may be the very address of ``low`` or of ``high``; any alignment is
fine. Where a choice is left open, MPICH's is taken:

- ``min`` and ``max`` take ``high`` if it is strictly better, else ``low``: a NaN or a zero of either sign wins as
  the lower operand and loses as the higher one.
- ``minloc`` and ``maxloc`` take the lower index of equal values, and ``low`` if it is strictly better, else ``high``.
- Integers wrap. float16 and bfloat16 are computed in float32 and rounded to nearest even. Complex products are the plain formula, as
  in NumPy, without the search for infinities in a NaN result that C compilers add (Annex G).
- Logical operations give 0 or 1 of the operand's type; every nonzero operand is true, NaN too.

Files: ``elements`` (operations on one element, for any loop), ``dtypes`` (element types in NumPy), ``narrow`` (floats of 8 and 16
bits), ``native`` (compiling and caching), ``twins`` (the same in NumPy: for tests and for long double); in :mod:`numba_kernels.emit`
``cells`` (element types in memory), ``narrow``, and ``loop`` (the CPU loop).
"""

from numba_kernels.reduce.dtypes import dtype
from numba_kernels.reduce.elements import OPERATIONS
from numba_kernels.reduce.native import COMMON, address, natives, warm
from numba_kernels.reduce.table import TYPES, defined
from numba_kernels.reduce.twins import numpy_twin

__all__ = ["COMMON", "OPERATIONS", "TYPES", "address", "defined", "dtype", "natives", "numpy_twin", "warm"]

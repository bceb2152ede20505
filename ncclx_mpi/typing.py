"""Names for what the methods of MPI accept as buffers, for annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Buffer: TypeAlias = Any
"""Anything with the buffer protocol, DLPack, or the CUDA array interface."""

BufSpec: TypeAlias = Buffer | list[Any] | tuple[Any, ...]
"""``buffer`` or ``[buffer, count, displacement, type]`` in one of the forms that leave something out."""

BufSpecB: TypeAlias = BufSpec
"""Like `BufSpec`, for a buffer of equal blocks, one for each rank."""

BufSpecV: TypeAlias = BufSpec
"""``[buffer, counts, displacements, type]`` in one of the forms that leave something out."""

BufSpecW: TypeAlias = list[Any] | tuple[Any, ...]
"""``[buffer, counts, displacements, types]``, or ``[buffer, types]``."""

TargetSpec: TypeAlias = int | Sequence[Any] | None
"""Where in a window: ``displacement`` or ``[displacement, count, type]``."""

InPlace: TypeAlias = Any
"""``MPI.IN_PLACE`` or None: the operand is in the receive buffer."""

Stream: TypeAlias = Any
"""A stream of CuPy or Torch, an object with ``__cuda_stream__``, or the driver's handle of one."""

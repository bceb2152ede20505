"""What comes between two instructions of the packages, shown by the trace function of Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType
from typing import Any

import ncclx_mpi
import numba_kernels

PACKAGES = tuple(os.path.dirname(package.__file__) + os.sep for package in (ncclx_mpi, numba_kernels))


def before_each(act: Callable[[], object]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that calls `act` before each instruction of the packages. What else runs is not traced, nor is what `act` does."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            act()
        return trace

    return trace

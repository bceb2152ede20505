"""Memory that the kernel copies for nobody, as device memory and the like."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest

_SYS_MEMFD_SECRET = 447


def secret_memory(nbytes: int) -> Any:
    """An array of bytes in secret memory; skips the test where the system has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.syscall(_SYS_MEMFD_SECRET, 0)
    if file < 0:
        pytest.skip("no memfd_secret here")
    os.ftruncate(file, nbytes)
    return np.frombuffer(mmap.mmap(file, nbytes), np.uint8)

"""Arrays between pages that nobody can touch: who reads or writes one byte beyond them ends there and then."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_PROT_NONE = 0


def guarded(nbytes: int, *, is_low: bool = False) -> npt.NDArray[np.uint8]:
    """Make an array of zero bytes that ends where a guard page begins, or with `is_low` begins where one ends."""
    page = mmap.PAGESIZE
    inner = max(-(-nbytes // page), 1) * page
    pages = mmap.mmap(-1, inner + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for guard in (start, start + page + inner):
        _forbid(guard, page)
    first = page if is_low else page + inner - nbytes
    return np.frombuffer(pages, np.uint8)[first : first + nbytes]


def _forbid(address: int, nbytes: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")

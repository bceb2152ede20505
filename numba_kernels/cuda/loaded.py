"""Whether something in this process has loaded the CUDA driver: only then can there be GPU memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

NAME = "libcuda.so.1"


class _Entry(ctypes.Structure):
    """The beginning of what ``dl_iterate_phdr`` tells of a loaded library."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
    )


class _Search:
    """The library as far as this process has loaded it, and how many had been loaded when it was last looked for."""

    found: Any = None
    adds = -1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Entry), ctypes.c_size_t, ctypes.POINTER(ctypes.c_ulonglong))
def _read_adds(entry: Any, _size: int, found: Any) -> int:
    found[0] = entry.contents.adds
    return 1


_iterate = ctypes.CDLL(None).dl_iterate_phdr


def library() -> Any:
    """The CUDA driver's functions, None if nothing has loaded them. Loads nothing.

    A search for a library that is not there costs 40 us, so it is repeated only after others were loaded.
    """
    if _Search.found is None:
        adds = ctypes.c_ulonglong(0)
        _iterate(_read_adds, ctypes.byref(adds))
        if adds.value != _Search.adds:
            with contextlib.suppress(OSError):
                _Search.found = ctypes.CDLL(NAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            _Search.adds = adds.value
    return _Search.found


def load() -> Any:
    """The CUDA driver's functions, loaded if nothing has done so; None where there is no driver."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(NAME)
    return library()

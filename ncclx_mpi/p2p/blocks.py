"""Memory that compiled code works on, and where it is."""

from __future__ import annotations

import ctypes
import mmap

from numba_kernels.layout import LINE, WORD, zeroed


def block(nbytes: int) -> tuple[memoryview[int], int]:
    """Zeroed words on a cache line of their own, and their address."""
    raw, address = zeroed(nbytes + LINE)
    skip = (-address) % LINE // WORD
    return memoryview(raw)[skip : skip + nbytes // WORD], address + skip * WORD


def untouched_block(nbytes: int) -> tuple[memoryview[int], int]:
    """As :func:`block`, without memory behind what is never touched."""
    mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(mapped).cast("q"), ctypes.addressof(ctypes.c_char.from_buffer(mapped))

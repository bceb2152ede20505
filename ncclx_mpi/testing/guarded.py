"""Buffers before or behind a page that nobody may touch: who reads or writes one byte too many crashes at once, in the line that did it.

::

    | guard page |               buffer | guard page |      behind=True    the end is guarded, to the byte
    | guard page | buffer               | guard page |      behind=False   the beginning is

The other side has its guard, too, but up to a page away. Another process that copies over the edge (``process_vm_writev``) gets EFAULT.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(nbytes: int, *, behind: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A buffer of zeros that touches an unreadable page.

    Parameters
    ----------
    nbytes
        Its size. If it is a multiple of an item's size, the buffer is aligned for such items.
    behind
        Whether the page lies directly behind the buffer, not directly before it.

    Returns
    -------
    numpy.ndarray
        Writable bytes, of which ``.view(dtype)`` makes other items. The exporter of its memory has exactly `nbytes`, so a library that
        looks for the memory behind a view finds no more. The pages go when nothing refers to it any more.
    """
    page = mmap.PAGESIZE
    room = -(-nbytes // page) * page
    pages = mmap.mmap(-1, room + 2 * page)
    offset = page + (room - nbytes if behind else 0)
    memory: Any = (ctypes.c_ubyte * nbytes).from_buffer(pages, offset)
    first = ctypes.addressof(memory) - offset
    forbid(first, page)
    forbid(first + page + room, page)
    return np.ndarray((nbytes,), dtype=np.uint8, buffer=memory)


def guarded_copy(data: Any, *, behind: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As :func:`guarded`, with the bytes of `data`, which is any buffer."""
    given = np.frombuffer(data, dtype=np.uint8)
    made = guarded(given.size, behind=behind)
    made[:] = given
    return made


def forbid(address: int, nbytes: int) -> None:
    """Let nobody read or write whole pages."""
    if _libc.mprotect(address, nbytes, _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

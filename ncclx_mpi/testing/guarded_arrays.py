"""Arrays of NumPy, and memory of ours, between unreadable pages, for as long as a test runs: who goes beyond crashes in the line that did it.

::

    | guard page |            array | guard page |      three of four end, to the byte, where a guard page begins
    | guard page | array            | guard page |      the fourth begins where one ends

Each array has pages of its own, which nobody may touch after it is freed, so that use after free crashes, too, until they become another
array of about the same size. They are kept for that, as pages that are new to a process cost several times what a test does with them.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import itertools
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

from ncclx_mpi.buffers import source
from ncclx_mpi.testing.guarded import forbid

_PAGE = mmap.PAGESIZE
_NOTHING, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_NEW = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_ONE_BEHIND = 4
_MOST_KEPT = 8 << 20
"""Bytes of freed arrays of one size that are kept for others."""
_SET_HANDLER = 304
"""Place of ``PyDataMem_SetHandler`` in NumPy's table of functions, which is the same in all versions since 1.22."""

_core: Any = np.core if np.__version__.startswith("1.") else np._core  # type: ignore[attr-defined]
_libc = ctypes.CDLL(None)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Clear = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Move = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler``, version 1."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("allocate", _Allocate),
        ("clear", _Clear),
        ("move", _Move),
        ("free", _Free),
    )


@contextlib.contextmanager
def guarded_arrays() -> Iterator[None]:
    """Give each array that this thread makes pages of its own, between unreadable ones, and what we allocate; what is there stays as it is.

    An array of `n` bytes that ends where the unreadable page begins is aligned as well as `n` allows: for items of its own type always.
    """
    before, new_bytes = _set_handler(_capsule), source.new_bytes
    source.new_bytes = _new_array
    try:
        yield
    finally:
        source.new_bytes = new_bytes
        _set_handler(before)


def _new_array(nbytes: int, clear: bool) -> Any:
    return np.zeros(nbytes, np.uint8) if clear else np.empty(nbytes, np.uint8)


def _set_handler(capsule: Any) -> Any:
    """Let the arrays that this thread makes from now on be allocated by another handler; returns the one before."""
    table = ctypes.pythonapi.PyCapsule_GetPointer
    table.restype, table.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = table(_core._multiarray_umath._ARRAY_API, None)
    function = ctypes.c_void_p.from_address(functions + ctypes.sizeof(ctypes.c_void_p) * _SET_HANDLER).value
    assert function is not None
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(function)(capsule)


_pages: dict[int, tuple[int, int, int]] = {}
"""By the address of each array: its bytes, the first page of its mapping, and the bytes between the unreadable ones."""
_kept: collections.defaultdict[int, collections.deque[int]] = collections.defaultdict(collections.deque)
"""First pages of mappings whose arrays were freed, the oldest first, by the bytes between the unreadable ones."""
_numbers = itertools.count(1)


def _allocate(_: int | None, nbytes: int) -> int | None:
    array = _reuse(nbytes)
    return _map(nbytes) if array is None else array


def _clear(_: int | None, count: int, size: int) -> int | None:
    array = _reuse(count * size)
    if array is None:
        return _map(count * size)  # new pages are zeros
    ctypes.memset(array, 0, count * size)
    return array


def _move(context: int | None, array: int | None, nbytes: int) -> int | None:
    moved = _allocate(context, nbytes)
    if moved is not None and array:
        ctypes.memmove(moved, array, min(nbytes, _pages[array][0]))
        _free(context, array, 0)
    return moved


def _free(_: int | None, array: int | None, __: int) -> None:
    if array:
        _, first, room = _pages.pop(array)
        if (len(_kept[room]) + 1) * room <= _MOST_KEPT:
            forbid(first + _PAGE, room)
            _kept[room].append(first)
        else:
            _libc.munmap(first, room + 2 * _PAGE)


def _map(nbytes: int) -> int | None:
    """An array on pages that are new."""
    room = _room(nbytes)
    first = _libc.mmap(None, room + 2 * _PAGE, _NOTHING, _NEW, -1, 0)
    return None if first in (None, _FAILED) else _place(first, room, nbytes)


def _reuse(nbytes: int) -> int | None:
    """An array where another one was for which the same pages were needed."""
    room = _room(nbytes)
    try:
        return _place(_kept[room].popleft(), room, nbytes)
    except IndexError:
        return None


def _place(first: int, room: int, nbytes: int) -> int | None:
    if _libc.mprotect(first + _PAGE, room, _READ_WRITE) != 0:
        return None
    array = first + _PAGE + (room - nbytes if next(_numbers) % _ONE_BEHIND else 0)
    _pages[array] = nbytes, first, room
    return array


def _room(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


_handler = _Handler(b"guarded", 1, None, _Allocate(_allocate), _Clear(_clear), _Move(_move), _Free(_free))
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"mem_handler"
_capsule = _new_capsule(ctypes.addressof(_handler), _NAME, None)


@atexit.register
def _leave_the_rest() -> None:
    """Arrays that outlive the interpreter are freed when there is no Python to free them: nothing is done then."""
    nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)
    _handler.free = ctypes.cast(nothing, _Free)
    for what_they_ask in (_handler, _NAME):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(what_they_ask))

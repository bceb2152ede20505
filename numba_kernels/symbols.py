"""Addresses that compiled code refers to by name: objects and tables of ours, functions of libc and of the interpreter."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

_ours: dict[str, int] = {}
_listeners: list[Callable[[str, int], None]] = []
_process = ctypes.CDLL(None)
_NEVER_CALLED = (
    "NRT_Free",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)
"""What Numba's wrappers refer to for a function that raises: one that does has no image, so that the end of the process may stand there."""


def add(name: str, address: int) -> None:
    """Let compiled code find `address` by `name`. What is there must stay."""
    _ours[name] = address
    for listener in _listeners:
        listener(name, address)


def tell(listener: Callable[[str, int], None]) -> None:
    """Have `listener` told all names of ours, and those that are added later."""
    for name, address in _ours.items():
        listener(name, address)
    _listeners.append(listener)


def find(name: str) -> int:
    """The address of a name, 0 if this process has none."""
    return _ours.get(name) or _exported("abort" if name in _NEVER_CALLED else name)


@functools.cache
def _exported(name: str) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(_process, name))
    except ValueError:
        return 0

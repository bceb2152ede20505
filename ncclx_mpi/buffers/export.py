"""Lets a class written in Python export memory through the buffer protocol: before 3.12, Python has no method for that.

The protocol's function is entered into the class object, as an extension module would have it there. Where class objects
are not laid out as expected nothing is done, and the class has no buffer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

_WORD = 8
_BUFFER_FUNCTIONS = 20 * _WORD
"""Offset of ``tp_as_buffer`` in a class object."""

_CLASS_BYTES: int = vars(type)["__basicsize__"].__get__(type)

_GET_BUFFER = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_fill = ctypes.pythonapi.PyBuffer_FillInfo
_fill.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_int]
_kept: list[Any] = []


def export(kind: type, memory: Callable[[Any], tuple[int, int]]) -> None:
    """Make instances of `kind`, and of subclasses made from now on, export writable bytes.

    Parameters
    ----------
    kind
        A class without a buffer; from Python 3.12 on its ``__buffer__`` is used instead, and nothing is done here.
    memory
        Gives address and length for an instance. Where it raises there are no bytes: Python cannot be told of errors from here.
    """
    if sys.version_info >= (3, 12):
        return

    def get_buffer(instance: Any, view: int, flags: int) -> int:
        address = nbytes = 0
        with contextlib.suppress(Exception):
            address, nbytes = memory(instance)
        return int(_fill(view, instance, address, nbytes, 0, flags))

    callback = _GET_BUFFER(get_buffer)
    _kept.append(callback)
    enter(kind, ctypes.cast(callback, ctypes.c_void_p).value or 0)


def enter(kind: type, function: int) -> None:
    """Have a C function, the ``bf_getbuffer`` at an address, export what instances of `kind` and of subclasses made from now on do."""
    functions = _functions(kind)
    if functions:
        ctypes.c_size_t.from_address(functions).value = function


class _Known(bytearray):
    """A class whose functions are known."""


def _functions(kind: type) -> int:
    """Address of the functions of a Python class for its buffer, 0 if the class object looks otherwise than expected."""
    for each in (_Known, kind):
        if not id(each) < _word(id(each) + _BUFFER_FUNCTIONS) < id(each) + _CLASS_BYTES:
            return 0
    known, found = (_word(id(each) + _BUFFER_FUNCTIONS) for each in (_Known, kind))
    is_inherited = _word(known) == _word(_word(id(bytearray) + _BUFFER_FUNCTIONS)) != 0
    return found if is_inherited else 0


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value

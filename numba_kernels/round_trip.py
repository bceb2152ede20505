"""Whether compiled pickling fits this interpreter: a value of each kind there and back, by compiled code and by Python's pickle.

Compiled code reads and makes objects where CPython has kept their parts so far. Before a process lets it, :func:`mismatch` has it write
the pickle of one value of each kind; Python must read from that what it was, and so must compiled code. What is no plain value it must
leave alone. All of it takes half a millisecond, once in a process that sends objects.
"""

from __future__ import annotations

import copyreg
import ctypes
import pickle
from typing import Any

from numba_kernels import pickled_arrays, pickling, unpickling
from numba_kernels.jit import entry
from numba_kernels.late_numpy import at_import, is_array, is_imported, np
from numba_kernels.layout import zeroed
from numba_kernels.pickling import LARGEST, ROOM


def mismatch() -> str:
    """Return the first kind of value that does not come back as it was, nothing if all do; after :func:`numba_kernels.pickling.introduce`.

    Arrays are looked at if NumPy is there, and else once it is: they are left to Python's pickle if they do not come back.
    """
    if is_imported():
        return _mismatch([*_plain_values(), *_arrays()], [*_other_values(), *_other_arrays()])
    found = _mismatch(_plain_values(), _other_values())
    if not found:
        at_import(_verify_arrays)
    return found


def _verify_arrays() -> None:
    if _mismatch(_arrays(), _other_arrays()):
        pickled_arrays.forget()


def _mismatch(values: list[Any], others: list[Any]) -> str:
    room = _Room()
    for value in values:
        if not room.is_safe(value):
            return f"{type(value).__name__} {_told(value)[:40]}"
    return next((f"{type(value).__name__}" for value in others if room.write(value) != 0), "")


class _Room:
    """What compiled code works with, and where its pickles are."""

    def __init__(self) -> None:
        self._words, self._address = zeroed(ROOM.total)
        self._write, self._read = entry(pickling.write), entry(unpickling.read)

    def is_safe(self, value: Any) -> bool:
        """Whether Python and compiled code read what compiled code has written, as what it was.

        What it leaves to Python is safe: it does so with parts that somebody else refers to, such as a thread that walks through all objects.
        """
        nbytes = self.write(value)
        if nbytes == 0:
            return True
        written = ctypes.string_at(self._address + ROOM.data, nbytes)
        return [_told(found) for found in _read_by_python(written)] == [_told(value)] and self._comes_back(value, nbytes)

    def write(self, value: Any) -> int:
        """Write a pickle: its bytes, 0 for what is no plain value."""
        return int(self._write(id(value), self._address, self._address + ROOM.data, LARGEST))

    def _comes_back(self, value: Any, nbytes: int) -> bool:
        """Whether compiled code reads the pickle of `value` that is here."""
        place = self._address + ROOM.key
        if not self._read(self._address, self._address + ROOM.data, nbytes, place):
            return False
        made = ctypes.py_object.from_address(place).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))  # the reference in the room
        return _told(made) == _told(value)


def _read_by_python(data: bytes) -> list[Any]:
    """Return what Python reads from `data`: one object, none if that is no pickle.

    What is no pickle leads to whatever exception, and does so again; one that does not come again was a signal handler's.
    """
    try:
        return [pickle.loads(data)]
    except Exception as first:
        try:
            pickle.loads(data)
        except Exception:
            return []
        raise first


def _told(value: Any) -> str:
    """All that tells a value from others, its type included."""
    return repr((value.dtype, value.shape, value.tobytes()) if is_array(value) else value)


def _plain_values() -> list[Any]:
    """Return values of all kinds and sizes, new ones: what is referred to from elsewhere may not be written."""
    numbers = [0, 255, 256, 65_536, -1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63), 1.5, -0.0]
    texts = ["", "text", "t" * 256, "\xe9" * 3, "\u2713" * 2, "\U0001f600", b"", b"bytes", b"b" * 256]
    containers = [[], (), {}, [1, [2.5], None], (1, ("a", b"b")), {"a": {"b": [1.5, (True,)]}, 2: False}]
    return [None, True, False, *numbers, *texts, *containers]


def _arrays() -> list[Any]:
    """Return arrays, unless the program has Python pickle them in a way of its own."""
    if np.ndarray in copyreg.dispatch_table:
        return []
    return [np.arange(6.0).reshape(2, 3), np.arange(3, dtype=np.complex64), np.array(7, np.int8), np.zeros((0, 2), np.bool_)]


def _other_values() -> list[Any]:
    """Return values that look like plain ones, which Python's pickle has to write."""
    shared: list[Any] = []
    return [
        1 << 63,
        1j,
        "\ud800",
        bytearray(2),
        {1},
        frozenset(),
        [shared, shared],
    ]


def _other_arrays() -> list[Any]:
    """Return what is like an array that compiled code writes, and is none."""
    return [np.float64(1), np.arange(4)[::2], np.array(["text"])]

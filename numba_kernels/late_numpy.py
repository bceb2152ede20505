"""NumPy, imported when something of it is first used: it takes longer than all of ours, and programs that send objects do without.

>>> from numba_kernels.late_numpy import np
>>> np.zeros(2).tolist()
[0.0, 0.0]

Who imports names from here looks at none of them while it is imported itself. Annotations are not evaluated, so they may name NumPy's types.

Compiled code knows arrays by the address of their type, which is not there before NumPy is: who has something to do then says so
(:func:`at_import`). A program that imports NumPy itself is noticed where Python meets its first array.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

__all__ = ["at_import", "is_any_array", "is_array", "is_imported", "look", "np", "npt"]

_waiting: list[Callable[[], None]] = []
_lock = threading.RLock()
_is_telling = False
"""Held, or about to be: who needs what others learn waits until they have."""


class _Late:
    """Stands for a module; what was looked up once is an attribute of its own from then on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        __import__(self._name)
        look()
        value = getattr(sys.modules[self._name], attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np, npt = _Late("numpy"), _Late("numpy.typing")


def is_imported() -> bool:
    """Whether this process has all of NumPy already: who is importing it, in this thread or another, has no array yet."""
    module = sys.modules.get("numpy")
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def is_array(obj: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether an object is an array, of this very class; NumPy is not imported to tell."""
    kind = type(obj)
    return kind.__module__ == "numpy" and kind is np.ndarray


def is_any_array(obj: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether an object is an array, of whatever class; NumPy is not imported to tell."""
    return is_imported() and isinstance(obj, np.ndarray)


def at_import(learn: Callable[[], None]) -> None:
    """Have `learn` called once NumPy is there: at once if it is."""
    _waiting.append(learn)
    if is_imported():
        look()


def look() -> None:
    """Notice that the program has imported NumPy, if it has: who waits for that has learned of it when this returns, in whichever thread."""
    global _is_telling
    if (_waiting or _is_telling) and is_imported():
        with _lock:
            before, _is_telling = _is_telling, True
            try:
                while _waiting:
                    _waiting.pop(0)()
            finally:
                _is_telling = before

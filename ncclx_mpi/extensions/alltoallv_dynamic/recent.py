"""Calls seen lately: a loop makes the same call again and again, and to resolve its arguments costs more than the call itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ncclx_mpi.buffers.memory import array_words
from numba_kernels.late_numpy import is_array

Resolved = TypeVar("Resolved")
_MOST = 64


class Recent(Generic[Resolved]):
    """What calls on plain NumPy arrays were resolved to.

    Nothing but address, type, flags and size of the arrays may matter to it, and it must not keep them alive: another array with
    the same of each, in the place of one that is gone, is as good.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Resolved, list[Any]]] = {}

    def find(self, name: Any, arguments: Sequence[Any], resolve: Callable[[], Resolved]) -> Resolved:
        """Return what the call `name` on these arguments was resolved to; remembered where all are arrays or None."""
        key = _key(name, arguments)
        if key is None:
            return resolve()
        known = self._known.get(key)
        if known is not None:
            return known[0]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = resolve()
        # Types are told apart by identity, so they stay.
        self._known[key] = (found, [array.dtype for array in arguments if array is not None])
        return found


def _key(name: Any, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    words: list[Any] = [name]
    for array in arguments:
        if array is None:
            words.append(None)
        elif is_array(array):
            words += array_words(array)
            words.append(array.nbytes)
        else:
            return None
    return tuple(words)

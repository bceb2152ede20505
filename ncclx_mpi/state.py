"""What the handles of MPI refer to.

A state that was emptied, or never filled, has its slots unset: reading one raises the MPI error "invalid communicator"
(or group, ...) through ``State.__getattr__``, which Python calls only then. So the valid case pays nothing for the check.
"""

from __future__ import annotations

import functools
import itertools
from typing import ClassVar, NoReturn
from weakref import WeakValueDictionary

from ncclx_mpi import errors

_numbers = itertools.count(1)
_states: WeakValueDictionary[int, State] = WeakValueDictionary()


class State:
    """What handles refer to; subclasses name their slots."""

    __slots__ = ("__weakref__", "_number")
    WHAT: ClassVar[str] = "object"
    ERROR: ClassVar[int] = errors.ERR_ARG

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # of Python's own protocols, which inspect, copy and others ask any object for
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        errors.fail(self.ERROR, f"invalid {self.WHAT}: it is null, or was freed")

    @property
    def number(self) -> int:
        """The integer by which ``fromhandle`` finds this state again."""
        try:
            return object.__getattribute__(self, "_number")  # type: ignore[no-any-return]
        except AttributeError:
            self._number = next(_numbers)
            _states[self._number] = self
            return self._number

    def empty(self) -> None:
        """Unset every slot: all handles that refer to this state are invalid from now on."""
        for slot in _slots(type(self)):  # type: ignore[arg-type]
            try:  # noqa: SIM105  (half the time of contextlib.suppress, and every request comes here)
                object.__delattr__(self, slot)
            except AttributeError:
                pass


@functools.cache
def _slots(kind: type[State]) -> tuple[str, ...]:
    """Names of all slots of a class that :meth:`State.empty` unsets."""
    found = (slot for each in kind.__mro__ for slot in getattr(each, "__slots__", ()))
    return tuple(slot for slot in found if slot not in State.__slots__)


def find(number: int) -> State | None:
    """The living state with this number."""
    return _states.get(number)

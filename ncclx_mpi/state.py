"""What the handles of MPI refer to.

A state that was emptied, or never filled, has its slots unset: reading one raises the MPI error "invalid communicator"
(or group, ...) through ``State.__getattr__``, which Python calls only then. So the valid case pays nothing for the check.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable
from typing import ClassVar, NoReturn
from weakref import WeakValueDictionary

from ncclx_mpi import errors
from numba_kernels import pyobject, pyslots
from numba_kernels.jit import entry
from numba_kernels.rows import NamedTuple

_numbers = itertools.count(1)
_states: WeakValueDictionary[int, State] = WeakValueDictionary()


class State:
    """What handles refer to; subclasses name their slots."""

    __slots__ = ("__weakref__", "_number")
    WHAT: ClassVar[str] = "object"
    ERROR: ClassVar[int] = errors.ERR_ARG
    LATE: ClassVar[tuple[str, ...]] = ()
    """Slots that :meth:`empty` leaves alone, as they are set behind it: to find out that one is not set takes longer than to unset ten."""

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
        emptying = _emptying(type(self))  # type: ignore[arg-type]
        if emptying is not None:
            return emptying.function(self, emptying.address, emptying.number)
        for unset in _unsetting(type(self)):  # type: ignore[arg-type]
            try:  # noqa: SIM105  (half the time of contextlib.suppress, and every request comes here)
                unset(self)
            except AttributeError:
                pass


def _slots_of(kind: type[State]) -> dict[str, type]:
    """The slots of a class that :meth:`State.empty` unsets, each with the class that has it."""
    found = {slot: each for each in kind.__mro__ for slot in getattr(each, "__slots__", ())}
    return {slot: each for slot, each in found.items() if slot not in (*State.__slots__, *kind.LATE)}


@functools.cache
def _unsetting(kind: type[State]) -> tuple[Callable[[State], None], ...]:
    """What unsets each of those slots."""
    return tuple(vars(each)[slot].__delete__ for slot, each in _slots_of(kind).items())


class _Emptying(NamedTuple):
    """What unsets those slots in one call, where they lie in an object, and the memory that says so."""

    function: Callable[[State, int, int], None]
    address: int
    number: int
    offsets: array[int]


@functools.cache
def _emptying(kind: type[State]) -> _Emptying | None:
    """How compiled code empties a state; None where it may not look into objects."""
    if pyobject.mismatch():
        return None
    offsets = array("q", [pyslots.slot_offset(kind, slot) for slot in _slots_of(kind)])
    return _Emptying(entry(pyslots.empty_slots), offsets.buffer_info()[0], len(offsets), offsets)


def find(number: int) -> State | None:
    """The living state with this number."""
    return _states.get(number)

"""MPI.Info: hints as strings under keys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from ncclx_mpi.api.handle import Handle, constant, integer, text
from ncclx_mpi.constants import MAX_INFO_KEY, MAX_INFO_VAL
from ncclx_mpi.errors import ERR_ARG, ERR_INFO, ERR_INFO_KEY, ERR_INFO_NOKEY, ERR_INFO_VALUE, fail
from ncclx_mpi.state import State

Items = Mapping[str, str] | Iterable[tuple[str, str]]


class InfoState(State):
    """The hints that handles of one info object share."""

    __slots__ = ("frozen", "items")
    WHAT = "info"
    ERROR = ERR_INFO
    items: dict[str, str]
    frozen: bool

    def __init__(self, items: dict[str, str] | None = None, *, frozen: bool = False) -> None:
        if items is not None:
            self.items = items
            self.frozen = frozen


_NULL = InfoState()


class Info(Handle):
    """Hints for the library: strings under keys, in the order in which they were set."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = (InfoState,)
    _state: InfoState

    def __new__(cls, info: Info | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(info, "info")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle predefined objects by name, all others by value."""
        return (type(self).Create, (self.items(),)) if self and not self._state.frozen else super().__reduce__()

    @classmethod
    def Create(cls, items: Info | Items | None = None) -> Self:
        """Make an info object, with the given items."""
        made = cls._refer(InfoState({}))
        if items is not None:
            made._set_all(items)
        return made

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Self:
        """Make an info object that tells how the program was started."""
        words = [args] if isinstance(args, str | bytes) else args
        return cls._refer(InfoState(_environment(None if words is None else [os.fsdecode(word) for word in words])))

    def Free(self) -> None:
        """Release the info object."""
        self._writable("Free")
        self._state.empty()
        self._become_null()

    def Dup(self) -> Self:
        """Make an info object with the same items."""
        return type(self)._refer(InfoState(dict(self._state.items)))

    def Get(self, key: str) -> str | None:
        """Value of a key, None if it is not set."""
        return self._state.items.get(_text(key, MAX_INFO_KEY, ERR_INFO_KEY))

    def Set(self, key: str, value: str) -> None:
        """Set the value of a key."""
        items = self._writable("Set")
        items[_text(key, MAX_INFO_KEY, ERR_INFO_KEY)] = _text(value, MAX_INFO_VAL, ERR_INFO_VALUE)

    def Delete(self, key: str) -> None:
        """Remove a key."""
        items, name = self._writable("Delete"), _text(key, MAX_INFO_KEY, ERR_INFO_KEY)
        if name not in items:
            fail(ERR_INFO_NOKEY, f"Info.Delete: the key {name!r} is not set")
        del items[name]

    def Get_nkeys(self) -> int:
        """Number of keys."""
        return len(self._state.items)

    def Get_nthkey(self, n: int) -> str:
        """Key number `n`, in the order in which they were set."""
        keys, number = list(self._state.items), integer(n, "n")
        if not 0 <= number < len(keys):
            fail(ERR_ARG, f"Info.Get_nthkey: there is no key number {number} among {len(keys)}")
        return keys[number]

    def _writable(self, what: str) -> dict[str, str]:
        if self._state.frozen:
            fail(ERR_INFO, f"Info.{what}: INFO_ENV cannot be changed")
        return self._state.items

    def _set_all(self, items: Any) -> None:
        for key, value in _pairs(items):
            self.Set(key, value)

    # as a mapping; a null handle is an empty one

    def __len__(self) -> int:
        """Number of keys."""
        return self.Get_nkeys() if self else 0

    def __contains__(self, key: str) -> bool:
        """Whether a key is set."""
        return bool(self) and self.Get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Go through the keys."""
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        """Value of a key."""
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        """Set the value of a key."""
        if not self:
            raise KeyError(key)
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        """Remove a key."""
        if key not in self:
            raise KeyError(key)
        self.Delete(key)

    def get(self, key: str, default: str | None = None) -> str | None:
        """Value of a key, or a default."""
        value = self.Get(key) if self else None
        return default if value is None else value

    def keys(self) -> list[str]:
        """List of the keys."""
        return list(self._state.items) if self else []

    def values(self) -> list[str]:
        """List of the values."""
        return list(self._state.items.values()) if self else []

    def items(self) -> list[tuple[str, str]]:
        """List of the keys with their values."""
        return list(self._state.items.items()) if self else []

    def update(self, items: Info | Items = (), **kwds: str) -> None:
        """Set the values of several keys."""
        if not self:
            raise KeyError("the info object is null")
        self._set_all(items)
        self._set_all(kwds)

    def pop(self, key: str, *default: str) -> str:
        """Remove a key and return its value, or a default."""
        value = self.get(key)
        if value is not None:
            self.Delete(key)
            return value
        if default:
            (value,) = default
            return value
        raise KeyError(key)

    def popitem(self) -> tuple[str, str]:
        """Remove the key that was set last and return it with its value."""
        if not len(self):
            raise KeyError("the info object is empty")
        key, value = self.items()[-1]
        self.Delete(key)
        return key, value

    def copy(self) -> Self:
        """Make an info object with the same items; null for null."""
        return self.Dup() if self else type(self)()

    def clear(self) -> None:
        """Remove all keys."""
        if self:
            self._writable("clear").clear()


def _pairs(items: Any) -> list[tuple[str, str]]:
    if hasattr(items, "keys"):
        return [(key, items[key]) for key in items.keys()]  # noqa: SIM118 - an Info iterates over keys too
    return [(key, value) for key, value in items]


def _text(value: Any, most: int, error_class: int) -> str:
    found = text(value)
    if len(found) > most or (not found and error_class == ERR_INFO_KEY):
        fail(error_class, f"a string of {len(found)} characters is not accepted in an info object; 1 to {most} are")
    return found


def _environment(args: Sequence[str] | None) -> dict[str, str]:
    """How this program was started."""
    words = [sys.executable, *sys.argv] if args is None else list(args)
    found = {"thread_level": "MPI_THREAD_MULTIPLE"}
    with contextlib.suppress(FileNotFoundError):  # the folder may be gone
        found["wdir"] = os.getcwd()
    if words:
        found["command"] = words[0][:MAX_INFO_VAL]
    if words[1:]:
        found["argv"] = " ".join(words[1:])[:MAX_INFO_VAL]
    return found


INFO_NULL = constant(Info(), "INFO_NULL")
INFO_ENV = constant(Info._refer(InfoState(_environment(None), frozen=True)), "INFO_ENV")

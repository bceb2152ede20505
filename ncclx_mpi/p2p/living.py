"""What is found by a number as long as somebody else refers to it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_Object = TypeVar("_Object")
_FEW = 64


class Living(Generic[_Object]):
    """Objects by numbers. One that goes costs nothing: now and then, one that is added looks for those that are gone."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[_Object]] = {}
        self._look_at = _FEW

    def add(self, number: int, found: _Object) -> None:
        """Let an object be found."""
        if len(self._references) >= self._look_at:
            for dead in [number for number, reference in list(self._references.items()) if reference() is None]:
                self._references.pop(dead, None)
            self._look_at = 2 * len(self._references) + _FEW
        self._references[number] = weakref.ref(found)

    def get(self, number: int) -> _Object | None:
        """The object of a number, if there is one, and it lives."""
        reference = self._references.get(number)
        return None if reference is None else reference()

    def __iter__(self) -> Iterator[_Object]:
        for reference in list(self._references.values()):
            found = reference()
            if found is not None:
                yield found

"""Modules that are imported when something of theirs is first used: most programs start without ever using it."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class _Late:
    """Stands for a module; attributes are looked up there each time, so that whoever replaces one of them is heeded."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = sys.modules.get(self._name)
        if found is None or getattr(found.__spec__, "_initializing", False):  # another thread imports it, whose end is waited for
            found = importlib.import_module(self._name)
        return getattr(found, attribute)


def module(name: str) -> Any:
    """What stands for the module `name`; under ``TYPE_CHECKING`` it is imported instead, for who checks types and who digests sources.

    Examples
    --------
    >>> module("string").digits
    '0123456789'
    """
    return _Late(name)

"""What compiled code is written with, without Numba: it is made of Numba's own when something has to be compiled.

Kernels name intrinsics, types and functions of C. Where everything is in the cache nothing of that is ever needed, so modules of kernels
name them as :class:`Deferred`; :mod:`numba_kernels.emit` has what they stand for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


class Deferred:
    """Something of Numba's that is made when a function that names it is compiled.

    Parameters
    ----------
    make
        Makes it; called once.
    text
        What it is called.
    """

    def __init__(self, make: Callable[[], Any], text: str) -> None:
        self._make = make
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @functools.cached_property
    def real(self) -> Any:
        """What this stands for."""
        return self._make()

    @property
    def _numba_type_(self) -> Any:
        """Its type to Numba, which looks for it by this name."""
        from numba_kernels import compiling

        return compiling.type_of(self.real)


def emitted(module: str, name: str, *arguments: Any) -> Any:
    """What `name` is in the module of that name in :mod:`numba_kernels.emit`; with arguments, what it returns for them."""

    def make() -> Any:
        found = getattr(importlib.import_module(f"numba_kernels.emit.{module}"), name)
        return found(*arguments) if arguments else found

    return Deferred(make, f"{name}{arguments or ''}")


def real(value: Any) -> Any:
    """What a value stands for, if it is deferred; else the value itself."""
    return value.real if isinstance(value, Deferred) else value

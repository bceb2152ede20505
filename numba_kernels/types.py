"""Types of compiled functions, by Numba's names: in signatures, and to convert numbers in their bodies."""

from __future__ import annotations

from typing import Any

from numba_kernels.deferred import Deferred, emitted, real


class Type(Deferred):
    """A type of Numba's, or one that is made for it."""

    def __call__(self, *arguments: Any) -> Deferred:
        """Return the signature of a function that takes `arguments` and returns this type."""
        return Deferred(lambda: self.real(*map(real, arguments)), f"{self}({', '.join(map(str, arguments))})")


def emitted_type(module: str, name: str) -> Type:
    """Return a type that :mod:`numba_kernels.emit` makes, see :func:`numba_kernels.deferred.emitted`."""
    return Type(lambda: emitted(module, name).real, name)


def external(name: str, of: Deferred) -> Any:
    """A function of C, by its name in this process (:mod:`numba_kernels.symbols`) and its signature."""
    return Deferred(lambda: _numba("ExternalFunction")(name, of.real), name)


def _numba(name: str) -> Any:
    from numba import types

    return getattr(types, name)


def _type(name: str) -> Type:
    return Type(lambda: _numba(name), name)


void, intp, int32, int64 = _type("void"), _type("intp"), _type("int32"), _type("int64")
uint32, float64 = _type("uint32"), _type("float64")

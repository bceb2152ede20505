"""An array type of which the memory is left: what NumPy's arrays can do beside it is not there.

Before Python 3.12, a class written in Python exports memory through the buffer protocol only if it is derived from one that does. mpi4py's
`buffer`, which has to be such a class, has neither arithmetic nor a shape. NumPy's functions take it as they take any object with memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from numba_kernels.late_numpy import np

_Base: Any = np.ndarray
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "or", "xor", "matmul"]
_CONVERSIONS = ["int", "float", "complex", "index", "neg", "pos", "abs", "invert", "copy", "deepcopy"]


class _Absent:
    """Stands for a name of NumPy's arrays that the type does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"'{owner.__module__}.{owner.__name__}' object has no attribute '{self._name}'")


class _Type(type):
    """Lists no name that stands for nothing."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if _is_there(cls, name)]


def _is_there(cls: type, name: str) -> bool:
    return not isinstance(inspect.getattr_static(cls, name, None), _Absent)


def _plain(given: Any) -> Any:
    """An argument of a function of NumPy, with arrays in the place of our objects."""
    if isinstance(given, BareArray):
        given._check_device()
        return _Base.view(given, np.ndarray)
    return type(given)(map(_plain, given)) if type(given) in (list, tuple) else given


class BareArray(_Base, metaclass=_Type):  # type: ignore[misc]
    """Memory, as an array of bytes to NumPy alone. A subclass says when NumPy must not touch it."""

    __slots__ = ()
    _check_device: Callable[[], None]
    __hash__ = object.__hash__
    __repr__ = object.__repr__
    __str__ = object.__str__
    __format__ = object.__format__
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply a function of NumPy to the bytes."""
        return getattr(ufunc, method)(*_plain(inputs), **{name: _plain(given) for name, given in options.items()})

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Apply a function of NumPy to the bytes."""
        return function(*_plain(args), **{name: _plain(given) for name, given in options.items()})

    def __contains__(self, byte: Any) -> bool:
        """Whether a byte has this value."""
        return byte in memoryview(self)

    def __dir__(self) -> list[str]:
        """List no name that stands for nothing."""
        return [name for name in super().__dir__() if _is_there(type(self), name)]


def _refusing_operator(self: Any, *others: Any) -> Any:
    return NotImplemented


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any) -> NoReturn:
        raise TypeError(f"'{type(self).__module__}.{type(self).__name__}' object has no {what}")

    return refuse


for _name in dir(np.ndarray):
    if not _name.startswith("_"):
        setattr(BareArray, _name, _Absent(_name))
for _name in _OPERATORS:
    for _prefix in ("", "r", "i"):
        setattr(BareArray, f"__{_prefix}{_name}__", _refusing_operator)
for _name in ("lt", "le", "gt", "ge"):
    setattr(BareArray, f"__{_name}__", _refusing_operator)
for _name in _CONVERSIONS:
    setattr(BareArray, f"__{_name}__", _refusing(f"__{_name}__"))

"""Named tuples as :class:`typing.NamedTuple` makes them, in a fifteenth of the time.

That one compiles a constructor for each class and looks at the type of each field: 0.1 ms, and an import of ours makes 120 of them. Here the
constructor is made when the first tuple of a class is, of code that all classes with as many fields share, and annotations stay the text
that they are.
"""

from __future__ import annotations

import functools
import sys
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any


class _Row(tuple[Any, ...]):
    """What all named tuples have in common."""

    __slots__ = ()
    _fields: tuple[str, ...]
    _field_defaults: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the first tuple of its class."""
        made: Any = next(each for each in cls.__mro__ if "_fields" in vars(each))
        made.__new__ = staticmethod(_constructor(made._fields, made._field_defaults))
        return made.__new__(cls, *args, **kwargs)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        found = tuple.__new__(cls, values)
        if len(found) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(found)}")
        return found

    def _replace(self, /, **changes: Any) -> Any:
        found = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return found

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=True))})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


def row_type(name: str, fields: Iterable[str], members: dict[str, Any] | None = None) -> Any:
    """Return a class of named tuples, as ``collections.namedtuple`` does.

    Parameters
    ----------
    members
        What else is in the class, its defaults among it.
    """
    body = dict(members or ())
    names = tuple(map(sys.intern, fields))
    defaults = {field: body[field] for field in names if field in body}
    for number, field in enumerate(names):
        body[field] = _tuplegetter(number, None)
    body.update(__slots__=(), _fields=names, __match_args__=names, _field_defaults=defaults)
    return type(name, (_Row,), body)


def _constructor(fields: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    """Return the function that takes the values in their order, or by their names, as fast as one that is written out."""
    code = _code_of(len(fields)).replace(co_varnames=("_cls", *fields))
    return FunctionType(code, {"_new": tuple.__new__, "__builtins__": {}}, "__new__", tuple(defaults.values()) or None)


@functools.cache
def _code_of(nfields: int) -> CodeType:
    """Return the code of such a function, but for the names: compiled once for all classes of so many fields."""
    names = "".join(f"_{number}, " for number in range(nfields))
    code: CodeType = eval(f"lambda _cls, {names}: _new(_cls, ({names}))").__code__
    return code.replace(co_name="__new__", co_qualname="__new__")


class _Declared(type):
    """What makes a class of named tuples of one that is declared with :class:`NamedTuple`."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        """Make a class whose fields are what is annotated."""
        if len(bases) != 1:
            raise TypeError(f"{name} has another base beside NamedTuple")
        return row_type(name, members.get("__annotations__", ()), members)


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    NamedTuple = type.__new__(_Declared, "NamedTuple", (), {})

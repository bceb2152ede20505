"""What all MPI objects share: a Python handle that refers to a state, or to nothing.

Copies of a handle (``Comm(comm)``) share one state, as C handles do. ``Free`` empties the state, so that every other
copy fails with an MPI error from then on, and makes its own handle null.
"""

from __future__ import annotations

import copyreg
from typing import Any, ClassVar, Self, TypeVar, cast

from ncclx_mpi import errors
from ncclx_mpi.state import State, find

PUBLIC = "ncclx_mpi.MPI"
"""The module in which users find the public classes and constants, and from which they are unpickled."""

Some = TypeVar("Some", bound="Handle")

_constants: dict[State, tuple[Handle, str]] = {}


class Handle:
    """Base of Comm, Group, Op, Request and Message."""

    __slots__ = ("__weakref__", "_state")
    __module__ = PUBLIC
    _state: Any
    _NULL: ClassVar[Any]
    _ROOT: ClassVar[tuple[type[Handle]]]
    """The class that all handles of this sort are of. In a tuple, as `_STATE`: whoever walks the public classes would go round in circles."""
    _STATE: ClassVar[tuple[type[State]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The class that says what a null handle refers to is what handles of its kind are instances of."""
        super().__init_subclass__(**kwargs)
        if "_NULL" in vars(cls):
            cls._ROOT = (cls,)

    @classmethod
    def _refer(cls, state: Any) -> Self:
        """Return a handle of this class that refers to `state`."""
        self = object.__new__(cls)
        self._state = state
        return self

    @classmethod
    def _copy(cls, other: Handle | None, name: str) -> Self:
        """Return what ``cls(other)`` is: a handle of the same state, or a null one."""
        self = object.__new__(cls)
        if other is None:
            self._state = cls._NULL
            return self
        if not isinstance(other, cls._ROOT):
            raise TypeError(f"argument '{name}' has incorrect type (expected {cls._ROOT[0].__name__}, got {type(other).__name__})")
        self._state = other._state
        return self

    def _become_null(self) -> None:
        """Refer to nothing from now on. An assignment in ``Op.Free(Op)`` would change the class, for all operations."""
        self._state = self._NULL

    def __eq__(self, other: object, /) -> bool:
        """Return self==other."""
        if not isinstance(other, self._ROOT):
            return NotImplemented
        return bool(self._state is other._state)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        """Return whether the handle is not null."""
        return self._state is not self._NULL

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle predefined handles by name; others refer to this process and cannot be."""
        found = _constants.get(self._state)
        if found is None:
            raise ValueError(f"cannot serialize '{type(self).__module__}.{type(self).__name__}' instance")
        constant, name = found
        return name if self is constant else (copyreg.__newobj__, (type(self), constant))  # type: ignore[attr-defined]

    Free: Any
    """The method of a class that ends what its handles refer to."""

    def free(self) -> None:
        """Call `Free` if not null or predefined."""
        if is_constant(self):
            return
        if is_predefined(self):
            self._become_null()
        elif self:
            self.Free()

    @property
    def handle(self) -> int:
        """Integer that identifies what the handle refers to; 0 if it is null."""
        return 0 if self._state is self._NULL else int(self._state.number)

    @classmethod
    def fromhandle(cls, handle: int) -> Self:
        """Create object from the integer that `handle` gave."""
        return cast(Self, cls._ROOT[0]._refer(cls._find(handle)))

    @classmethod
    def _find(cls, number: int) -> Any:
        """Return the state with this number."""
        number = integer(number, "handle")
        if number == 0:
            return cls._NULL
        state = find(number)
        if not isinstance(state, cls._STATE):
            errors.fail(cls._NULL.ERROR, f"{number} is not the handle of a living {cls._NULL.WHAT}")
        return state

    def toint(self) -> int:
        """Translate object to integer handle: the number that :attr:`handle` is."""
        return self.handle

    @classmethod
    def fromint(cls, arg: int, /) -> Self:
        """Translate integer handle to object."""
        return cls.fromhandle(arg)

    def py2f(self) -> int:
        """Translate object to Fortran handle: the same number, there is no Fortran behind it."""
        return self.handle

    @classmethod
    def f2py(cls, arg: int) -> Self:
        """Translate Fortran handle to object."""
        return cls.fromhandle(arg)


def is_constant(handle: Handle) -> bool:
    """Whether `handle` is itself one of the module's predefined objects."""
    found = _constants.get(handle._state)
    return found is not None and found[0] is handle


def is_predefined(handle: Handle) -> bool:
    """Whether `handle` refers to something predefined; it may be a copy."""
    return handle._state in _constants


def constant(handle: Some, name: str) -> Some:
    """Make `handle` the predefined object `name`: pickled by name, never freed."""
    _constants.setdefault(handle._state, (handle, name))
    return handle


def instance(value: Any, kind: type[Some]) -> Some:
    """Return `value`, once it is found to be a `kind`; raises TypeError."""
    if not isinstance(value, kind):
        name = kind.__name__
        raise TypeError(f"expected {'an' if name[0] in 'EI' else 'a'} {name}, got {type(value).__name__}")
    return value


def text(value: Any) -> str:
    """Return what a program gives as text or as bytes as text; raises TypeError."""
    if not isinstance(value, str | bytes):
        raise TypeError(f"expected str or bytes, {type(value).__name__} found")
    return value if isinstance(value, str) else value.decode()


def integer(value: Any, name: str) -> int:
    """Return a rank, tag or count as an int.

    Whatever has an ``__index__`` or an ``__int__`` is taken, as by mpi4py: NumPy's integers, and floats without what comes behind the point.

    Raises
    ------
    TypeError
        `value` is no number.
    """
    if type(value) is int:
        return value
    try:
        return int(value.__index__())
    except AttributeError:
        pass
    if hasattr(type(value), "__int__"):
        return int(value)
    raise TypeError(f"{name} must be an integer, not {type(value).__name__}")

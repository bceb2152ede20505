"""The singletons that a program passes in the place of a buffer."""

from __future__ import annotations

import operator
from typing import Any, Self

import numpy as np

_Base: Any = np.ndarray


class _Place(_Base):  # type: ignore[misc]
    """An address that no buffer has; equal to it as an integer, and itself an empty buffer.

    It is an array for the sake of the buffer protocol, which classes written in Python do not have otherwise.
    """

    __slots__ = ()
    __array_ufunc__ = None
    _NAME = ""
    _VALUE = 0

    def __new__(cls) -> Self:
        """Return the one instance."""
        found: Self | None = _places.get(cls)
        if found is None:
            found = _places.setdefault(cls, _Base.__new__(cls, (0,), np.uint8))
        return found

    def __bool__(self) -> bool:
        """Whether the address is not 0."""
        return self._VALUE != 0

    def __int__(self) -> int:
        """The address."""
        return self._VALUE

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same, or an equal integer."""
        if isinstance(other, type(self)):
            return True
        try:
            return operator.index(other) == self._VALUE  # type: ignore[arg-type]
        except TypeError:
            return NotImplemented

    def __ne__(self, other: object) -> bool:
        """Whether `other` is neither the same nor an equal integer."""
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:
        """Hash of the address."""
        return hash(self._VALUE)

    def __index__(self) -> int:
        """Refuse: only BOTTOM is an index."""
        raise TypeError(f"'{type(self).__name__}' object cannot be interpreted as an integer")

    def __repr__(self) -> str:
        """Name of the constant."""
        return self._NAME

    __str__ = __repr__

    def __reduce__(self) -> str:
        """Pickle by name."""
        return self._NAME

    def __reduce_ex__(self, protocol: Any) -> str:
        """Pickle by name."""
        return self._NAME


_places: dict[type, Any] = {}


class BottomType(_Place):
    """Type of `BOTTOM`, the start of all memory."""

    __module__ = "ncclx_mpi.MPI"
    __slots__ = ()
    _NAME, _VALUE = "BOTTOM", 0

    def __index__(self) -> int:
        """The address."""
        return self._VALUE


class InPlaceType(_Place):
    """Type of `IN_PLACE`, which says that the result replaces the operand."""

    __module__ = "ncclx_mpi.MPI"
    __slots__ = ()
    _NAME, _VALUE = "IN_PLACE", -1


class BufferAutomaticType(_Place):
    """Type of `BUFFER_AUTOMATIC`, which leaves the memory for buffered sends to the library."""

    __module__ = "ncclx_mpi.MPI"
    __slots__ = ()
    _NAME, _VALUE = "BUFFER_AUTOMATIC", -2


BOTTOM = BottomType()
IN_PLACE = InPlaceType()
BUFFER_AUTOMATIC = BufferAutomaticType()

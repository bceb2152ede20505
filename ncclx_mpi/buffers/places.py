"""The singletons that a program passes in the place of a buffer."""

from __future__ import annotations

from typing import Any, Self


class _Place(int):
    """Something that is passed in the place of a buffer, equal to an address that no buffer has."""

    __slots__ = ()
    _NAME = ""
    _VALUE = 0

    def __new__(cls) -> Self:
        """Return the one instance."""
        found: Self | None = _places.get(cls)
        if found is None:
            found = _places.setdefault(cls, int.__new__(cls, cls._VALUE))
        return found

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same, or an equal integer."""
        return isinstance(other, type(self)) or (isinstance(other, int) and int(self) == int(other))

    def __ne__(self, other: object) -> bool:
        """Whether `other` is neither the same nor an equal integer."""
        return not self == other

    def __hash__(self) -> int:
        """Hash of the integer."""
        return hash(int(self))

    def __repr__(self) -> str:
        """Name of the constant."""
        return self._NAME

    __str__ = __repr__

    def __reduce__(self) -> str:
        """Pickle by name."""
        return self._NAME


_places: dict[type, Any] = {}


class BottomType(_Place):
    """Type of `BOTTOM`, the start of all memory."""

    __module__ = "ncclx_mpi.MPI"
    __slots__ = ()
    _NAME, _VALUE = "BOTTOM", 0


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

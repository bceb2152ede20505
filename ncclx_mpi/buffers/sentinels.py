"""The singletons that a program passes in the place of a buffer."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Self

from numba_kernels import pyobject


class _Slot(ctypes.Structure):
    """``PyType_Slot`` of the C API."""

    _fields_ = (("number", ctypes.c_int), ("function", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    """``PyType_Spec`` of the C API."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


_GETBUFFER = 1
_DEFAULT, _MAY_BE_DERIVED_FROM = 1 << 18, 1 << 10


def _api(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C API."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer, _int = ctypes.c_void_p, ctypes.c_int
_fill_info = _api("PyBuffer_FillInfo", _int, _pointer, _pointer, _pointer, ctypes.c_ssize_t, _int, _int)


def _describe(exporter: int, view: int, flags: int) -> int:
    """Fill a view of no memory, of no object."""
    return int(_fill_info(view, None, None, 0, 0, flags))


_getbuffer = ctypes.PYFUNCTYPE(_int, _pointer, _pointer, _int)(_describe)
_slots = (_Slot * 2)(_Slot(_GETBUFFER, ctypes.cast(_getbuffer, _pointer)), _Slot(0, None))
_spec = _Spec(b"ncclx_mpi.buffers.sentinels.Empty", 0, 0, _DEFAULT | _MAY_BE_DERIVED_FROM, _slots)
_Empty: Any = _api("PyType_FromSpec", ctypes.py_object, _pointer)(ctypes.byref(_spec))
"""What has a buffer that is empty and nobody's: ``memoryview(BOTTOM).obj`` is None. A class written in Python cannot say that."""


class _Place(_Empty):  # type: ignore[misc]
    """An address that no buffer has; equal to it as an integer, and itself an empty buffer."""

    __slots__ = ()
    _NAME = ""
    _VALUE = 0

    def __new__(cls) -> Self:
        """Return the one instance."""
        found: Self | None = _places.get(cls)
        if found is None:
            found = _places.setdefault(cls, object.__new__(cls))
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
pyobject.introduce_in_place(IN_PLACE)

"""MPI.buffer, which is imported when it is first used, since it needs NumPy.

`buffer` is an array type underneath, of which nothing but the memory shows (:mod:`ncclx_mpi.api.bare_array`). It is a view over the
whole address space, so that it costs no copy and no ctypes type for each length; what keeps the memory alive is held beside it.
"""

from __future__ import annotations

import operator
from typing import Any, Self, SupportsIndex

from ncclx_mpi.api.bare_array import BareArray
from ncclx_mpi.api.docstrings import begin_with_signatures
from ncclx_mpi.api.handle import PUBLIC
from ncclx_mpi.buffers.kinds import CPU, CUDA, ON_HOST
from ncclx_mpi.buffers.memory import ORIGIN, SPACE, array_words
from ncclx_mpi.buffers.source import Source, open_source
from ncclx_mpi.gpu_memory.memory import at as device_memory
from numba_kernels.late_numpy import np

_BYTE = np.dtype(np.uint8)
_Base: Any = np.ndarray


class buffer(BareArray):
    """A piece of memory: bytes at an address, and what keeps them alive."""

    __module__ = PUBLIC
    __slots__ = ("_device", "_obj", "_owner")
    _obj: Any
    _owner: Any
    _device: int

    def __new__(cls, *args: Any) -> Self:
        """Make a view of an object's memory, or an empty one."""
        if not args:
            return cls._over(0, 0, False, None, None)
        return cls._opened(open_source(args[0], writable=False, with_format=False), args[0])

    @classmethod
    def _over(cls, address: int, nbytes: int, readonly: bool, obj: Any, owner: Any, device: int = CPU) -> Self:
        """Make a view of raw memory."""
        self = _Base.__new__(cls, (nbytes,), _BYTE, SPACE, max(address - ORIGIN, 0))
        self._obj, self._owner, self._device = obj, owner, device
        if readonly:
            _Base.setflags(self, write=False)
        return self  # type: ignore[no-any-return]

    @classmethod
    def _opened(cls, found: Source, obj: Any) -> Self:
        return cls._over(found.address, found.nbytes, found.readonly, obj, found.owner, found.device)

    def __array_finalize__(self, obj: Any) -> None:
        """Give views that NumPy makes their own fields."""
        self._obj = self._owner = obj
        self._device = getattr(obj, "_device", CPU)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        """Make a view of new memory."""
        size = operator.index(nbytes)
        if size < 0:
            raise ValueError("expecting non-negative size")
        memory = np.zeros(size, _BYTE) if clear else np.empty(size, _BYTE)
        return buffer._over(array_words(memory)[0], size, False, memory, memory)

    @staticmethod
    def frombuffer(obj: Any, readonly: bool = False) -> buffer:
        """Make a view of an object's memory."""
        found = open_source(obj, writable=not readonly, with_format=False)
        return buffer._opened(found._replace(readonly=bool(readonly)), obj)

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        """Make a view of raw memory, whose life is the caller's business."""
        place, size = operator.index(address), operator.index(nbytes)
        if size < 0:
            raise ValueError("expecting non-negative buffer length")
        if size > 0 and place == 0:
            raise ValueError("expecting non-NULL address")
        if not ORIGIN <= place <= len(SPACE) - size and size:
            raise ValueError(f"no memory of {size} bytes can be at address {place:#x}")
        lent = device_memory(place) if size else None
        return buffer._over(place, size, bool(readonly), None, None, CUDA if lent is not None and lent.known.is_device else CPU)

    @property
    def address(self) -> int:
        """Address of the first byte."""
        found = array_words(self)[0]
        return 0 if self._owner is None and not len(self) else found

    @property
    def obj(self) -> Any:
        """The object whose memory it is, None for raw memory."""
        return self._obj

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return len(self)

    @property
    def readonly(self) -> bool:
        """Whether it must not be written to."""
        return not _Base.flags.__get__(self).writeable

    @property
    def format(self) -> str:
        """Format of an element: always bytes."""
        return "B"

    @property
    def itemsize(self) -> int:
        """Bytes of an element: always 1."""
        return 1

    def cast(self, format: str, shape: Any = ...) -> memoryview:
        """Make a view of the same memory with another format and shape."""
        self._check_device()
        view = memoryview(self)
        return view.cast(format) if shape is ... else view.cast(format, shape)  # type: ignore[call-overload,no-any-return]

    def tobytes(self, order: str | None = None) -> bytes:
        """Copy the memory into bytes."""
        self._check_device()
        return bytes(memoryview(self))

    def toreadonly(self) -> buffer:
        """Make a view of the same memory that must not be written to."""
        return buffer._over(self.address, len(self), True, self._obj, (self._owner, self), self._device)

    def release(self) -> None:
        """Give the memory up; the view is empty from then on."""
        _Base.__setstate__(self, (1, (0,), _BYTE, False, b""))
        self._obj = self._owner = None
        self._device = CPU

    def _check_device(self) -> None:
        if self._device not in ON_HOST:
            raise BufferError("buffer is not CPU-accessible")

    def __len__(self) -> int:
        """Length in bytes."""
        length: int = _Base.__len__(self)
        return length

    def __getitem__(self, item: SupportsIndex | slice) -> Any:
        """One byte as an integer, or a view of a part."""
        self._check_device()
        start, stop = _range(item, len(self))
        if not isinstance(item, slice):
            return _Base.item(self, start)
        return buffer._over(self.address + start, stop - start, self.readonly, self, self, self._device)

    def __setitem__(self, item: SupportsIndex | slice, value: Any) -> None:
        """Set one byte, or a part to a byte or to the bytes of a buffer."""
        self._check_device()
        if self.readonly:
            raise TypeError("buffer is read-only")
        start, stop = _range(item, len(self))
        target = memoryview(self)[start:stop]
        if hasattr(value, "__index__") and not isinstance(value, _Base):
            target[:] = bytes([operator.index(value) & 0xFF]) * (stop - start)
            return
        if not isinstance(item, slice):
            raise TypeError("a byte is an integer")
        source = buffer(value)
        if len(source) != stop - start:
            raise ValueError("slice length does not match buffer")
        target[:] = memoryview(source)

    def __delitem__(self, item: Any) -> None:
        """Refuse: memory has a fixed length."""
        raise NotImplementedError("Subscript deletion not supported by ncclx_mpi.MPI.buffer")

    def __iter__(self) -> Any:
        """Go through the bytes as integers."""
        return iter(memoryview(self))

    def __bool__(self) -> bool:
        """Whether it has any bytes."""
        return len(self) > 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to pickle an address."""
        raise TypeError(f"cannot pickle '{type(self).__name__}' object")


memory = buffer


def _range(item: Any, length: int) -> tuple[int, int]:
    """First and last plus one of the bytes that an index or slice means."""
    if isinstance(item, slice):
        start, stop, step = item.indices(length)
        if step != 1:
            raise IndexError("slice with step not supported")
        return start, max(start, stop)
    if not hasattr(item, "__index__"):
        raise TypeError("index must be integer or slice")
    start = operator.index(item)
    start += length if start < 0 else 0
    if not 0 <= start < length:
        raise IndexError("index out of range")
    return start, start + 1


begin_with_signatures([buffer])

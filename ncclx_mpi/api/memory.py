"""MPI.buffer, memory at an address, which is imported when it is first used.

What keeps the memory alive is held beside its address. Compiled code exports it (:mod:`numba_kernels.pybuffers`), as that of a class of an
extension module would be: so Python, NumPy and mpi4py's users have views of it, and NumPy is not needed for it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Self, SupportsIndex

from ncclx_mpi.api.docstrings import begin_with_signatures
from ncclx_mpi.api.handle import PUBLIC
from ncclx_mpi.buffers.export import enter
from ncclx_mpi.buffers.kinds import CPU, CUDA, ON_HOST
from ncclx_mpi.buffers.memory import ORIGIN, SPACE, span
from ncclx_mpi.buffers.source import Raw, Source, allocate, open_source
from ncclx_mpi.gpu_memory.memory import at as device_memory
from numba_kernels import pybuffers
from numba_kernels.jit import c_address
from numba_kernels.pybuffers import READ_ONLY, REFUSED, WRITABLE


class buffer(Raw):
    """A piece of memory: bytes at an address, and what keeps them alive."""

    __module__ = PUBLIC
    __slots__ = ("__weakref__", "_access", "_address", "_device", "_nbytes", "_obj", "_owner", "_readonly")
    _obj: Any
    _device: int
    _address: int
    _nbytes: int
    _readonly: bool
    _access: int

    def __init_subclass__(cls) -> None:
        """Let a class export its memory, too."""
        begin_exports()
        super().__init_subclass__()

    def __new__(cls, *args: Any) -> Self:
        """Make a view of an object's memory, or an empty one."""
        if not args:
            return cls._over(0, 0, False, None, None)
        return cls._opened(open_source(args[0], writable=False, with_format=False), args[0])

    @classmethod
    def _over(cls, address: int, nbytes: int, readonly: bool, obj: Any, owner: Any, device: int = CPU) -> Self:
        """Make a view of raw memory."""
        begin_exports()
        self = object.__new__(cls)
        self._address, self._nbytes, self._readonly = address, nbytes, readonly
        self._access = REFUSED if device not in ON_HOST else READ_ONLY if readonly else WRITABLE
        self._obj, self._owner, self._device = obj, owner, device
        return self

    @classmethod
    def _opened(cls, found: Source, obj: Any) -> Self:
        return cls._over(found.address, found.nbytes, found.readonly, obj, found.owner, found.device)

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a view of the memory."""
        self._check_device()
        view = span(self._address, self._nbytes)
        return view.toreadonly() if self._readonly else view

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where the memory is, of a GPU's alone."""
        if self._device in ON_HOST:
            raise AttributeError("the memory is the CPU's")
        return {"version": 3, "typestr": "|u1", "shape": (self._nbytes,), "data": (self._address, self._readonly)}

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        """Make a view of new memory."""
        size = operator.index(nbytes)
        if size < 0:
            raise ValueError("expecting non-negative size")
        address, owner = allocate(size, clear=clear)
        return buffer._over(address, size, False, owner[-1], owner)

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
        return self._address

    @property
    def obj(self) -> Any:
        """The object whose memory it is, None for raw memory."""
        return self._obj

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._nbytes

    @property
    def readonly(self) -> bool:
        """Whether it must not be written to."""
        return self._readonly

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
        self._nbytes = self._address = 0
        self._readonly, self._access, self._device = False, WRITABLE, CPU
        self._obj = self._owner = None

    def _check_device(self) -> None:
        if self._device not in ON_HOST:
            raise BufferError("buffer is not CPU-accessible")

    def __len__(self) -> int:
        """Length in bytes."""
        return self._nbytes

    def __getitem__(self, item: SupportsIndex | slice) -> Any:
        """One byte as an integer, or a view of a part."""
        self._check_device()
        start, stop = _range(item, len(self))
        if not isinstance(item, slice):
            return span(self._address + start, 1)[0]
        return buffer._over(self.address + start, stop - start, self.readonly, self, self, self._device)

    def __setitem__(self, item: SupportsIndex | slice, value: Any) -> None:
        """Set one byte, or a part to a byte or to the bytes of a buffer."""
        self._check_device()
        if self.readonly:
            raise TypeError("buffer is read-only")
        start, stop = _range(item, len(self))
        target = memoryview(self)[start:stop]
        if hasattr(value, "__index__") and not isinstance(value, buffer):
            target[:] = bytes([operator.index(value) & 0xFF]) * (stop - start)
            return
        if not isinstance(item, slice):
            raise TypeError("a byte is an integer")
        source = memoryview(value) if type(value) is bytes else buffer(value)
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


@functools.cache
def begin_exports() -> None:
    """Have compiled code export the memory of buffers, when there is to be one: importing this module compiles nothing."""
    pybuffers.introduce(buffer, "_address", "_nbytes", "_access", "buffer is not CPU-accessible")
    enter(buffer, c_address(pybuffers.get_buffer))


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

"""A small array library on the double: what CuPy, Torch or JAX are on the driver.

Its work is asynchronous in the calling thread's current stream: whoever reads an array without waiting for that stream sees
what was there before. Memory comes from a pool of larger allocations, so that arrays begin somewhere inside of them.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ncclx_mpi.buffers.memory import view
from ncclx_mpi.testing.driver_double.double import Double
from ncclx_mpi.testing.driver_double.memory import DEVICE
from numba_kernels.cuda import driver as table

_CHUNK = 1 << 21
_GRAIN = 512
_CUDA = 2

_thread = threading.local()


def current_stream() -> int:
    """The calling thread's current stream; the legacy default one unless :func:`using` says another."""
    stream: int = getattr(_thread, "stream", 0)
    return stream


@contextmanager
def using(stream: int) -> Iterator[None]:
    """While the body runs, work of this thread's arrays goes to `stream`."""
    before, _thread.stream = current_stream(), stream
    try:
        yield
    finally:
        _thread.stream = before


class Array:
    """An array in the memory of the current device, which speaks no protocol.

    Parameters
    ----------
    shape, dtype
        As of NumPy. Content: garbage.
    kind
        How the memory is allocated: :data:`~ncclx_mpi.testing.driver_double.memory.DEVICE` from the pool, others on their own.
    driver
        The double; the driver in use by default.

    Attributes
    ----------
    layout
        A NumPy array at the device address. Its shape, strides and slices can be used; reading it is a segmentation fault.
    """

    is_readonly = False

    def __init__(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64, *, kind: str = DEVICE, driver: Double | None = None
    ) -> None:
        self.driver = driver or in_use()
        if self.driver.current_device() is None:
            self.driver.use(0)
        self.device = self.driver.current_device()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        self.memory = _Memory(self.driver, nbytes, kind)
        self.layout: npt.NDArray[Any] = view(self.memory.address, nbytes).view(dtype).reshape(shape)

    @classmethod
    def from_host(cls, values: npt.ArrayLike, *, kind: str = DEVICE, driver: Double | None = None) -> Self:
        """Copy host values, now; they arrive asynchronously."""
        source = np.array(values)
        made = cls(source.shape, source.dtype, kind=kind, driver=driver)
        made.later(lambda target: np.copyto(target, source), "copy from the host")
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        return self.layout.strides

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def address(self) -> int:
        return self.layout.ctypes.data

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, key: Any) -> Self:
        """A view of slices; a single element is an array of no dimensions."""
        key = key if isinstance(key, tuple) else (key,)
        return self._like(self.layout[(*key, ...)])

    def reshape(self, *shape: int) -> Self:
        """A view of another shape; the array must be contiguous."""
        if not self.layout.flags.c_contiguous:
            raise ValueError("only contiguous arrays are reshaped")
        return self._like(self.layout.reshape(*shape))

    @property
    def T(self) -> Self:
        return self._like(self.layout.T)

    def _like(self, layout: npt.NDArray[Any]) -> Self:
        made = object.__new__(type(self))
        made.driver, made.device, made.memory, made.layout = self.driver, self.device, self.memory, layout
        return made

    def later(self, function: Callable[[npt.NDArray[Any]], Any], text: str = "computation", *more: Array) -> None:
        """Enqueue ``function(values of this array, *values of more)``."""
        arrays = (self, *more)
        self.driver.compute(current_stream(), text, lambda: function(*[array._values() for array in arrays]))

    def fill_later(self, value: Any) -> None:
        """Enqueue setting all elements."""
        self.later(lambda target: target.fill(value), f"fill with {value}")

    def get(self) -> npt.NDArray[Any]:
        """Values on the host, after everything in the current stream."""
        found: list[npt.NDArray[Any]] = []
        self.later(lambda values: found.append(values.copy()), "copy to the host")
        self.driver.finish(current_stream())
        return found[0]

    def free(self) -> None:
        """Free the memory under the array's feet."""
        self.memory.release()

    def _values(self) -> npt.NDArray[Any]:
        """The elements where the double can reach them."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        spans = [(count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)]
        before = -sum(span for span in spans if span < 0)
        nbytes = sum(map(abs, spans)) + self.dtype.itemsize
        memory = view(self.driver.reach(self.address - before, nbytes), nbytes)
        return np.ndarray(self.shape, self.dtype, memory.data, before, self.strides)


class InterfaceArray(Array):
    """An array with the CUDA array interface only, which names its stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, self.is_readonly),
            "strides": None if self.layout.flags.c_contiguous else self.strides,
            "version": 3,
            "stream": current_stream() or table.LEGACY_STREAM,
        }


class TensorArray(Array):
    """An array with DLPack only, which makes streams wait for its own."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device or 0

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        """A capsule; unless `stream` is -1, that stream waits for the array's."""
        if stream not in (None, -1):
            self.driver.wait(stream or 0, self.driver.record(current_stream()))
        layout = self.layout.view()
        layout.flags.writeable = not self.is_readonly
        return _moved_to_device(layout.__dlpack__(max_version=max_version), self.__dlpack_device__())


class DeviceArray(InterfaceArray, TensorArray):
    """An array with both protocols, as most libraries have."""


class SendOnlyArray(DeviceArray):
    """An array of a library whose arrays never change, and that shows no streams: it passes for one of JAX."""

    __module__ = "jaxlib"
    is_readonly = True

    def block_until_ready(self) -> Self:
        """Wait until the array has its values."""
        self.driver.finish(current_stream())
        return self


def in_use() -> Double:
    """The double, if it is the driver in use."""
    using_now = table.current()
    if not isinstance(using_now, Double):
        raise RuntimeError("no driver double is in use: enter one (with Double(seed): ...)")
    return using_now


class _Memory:
    """Memory of an array and its views: a piece of a pool's allocation, or an allocation."""

    def __init__(self, driver: Double, nbytes: int, kind: str) -> None:
        self._driver = driver
        self._is_pooled = kind == DEVICE and nbytes < _CHUNK
        if self._is_pooled:
            pool = _pools.setdefault(driver, {}).setdefault(driver.current_device() or 0, _Pool(driver))
            self.address, give_back = pool.take(max(nbytes, 1))
            weakref.finalize(self, give_back)
        else:
            self.address = driver.allocate_as(kind, nbytes)

    def release(self) -> None:
        """Free the allocation, with all other arrays in it."""
        found = self._driver.memory(self.address)
        if found is not None:
            self._driver.free(found.base)


class _Pool:
    """Pieces of larger allocations on one device. A piece is used again as soon as its array is gone: in stream order, as CuPy does."""

    def __init__(self, driver: Double) -> None:
        self._driver = driver
        self._free: dict[int, list[int]] = {}
        self._next = self._end = 0

    def take(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """A piece, and what gives it back."""
        size = -(-nbytes // _GRAIN) * _GRAIN
        free = self._free.setdefault(size, [])
        if free:
            address = free.pop()
        else:
            if self._next + size > self._end:
                self._next = self._driver.allocate(_CHUNK)
                self._end = self._next + _CHUNK
            address, self._next = self._next, self._next + size
        return address, lambda: free.append(address)


_pools: weakref.WeakKeyDictionary[Double, dict[int, _Pool]] = weakref.WeakKeyDictionary()


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.argtypes, _get_name.restype = [ctypes.py_object], ctypes.c_char_p
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p

_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}
"""Offset of the device (type and number, 32 bits each) in what a capsule of that name holds."""


def _moved_to_device(capsule: Any, device: tuple[int, int]) -> Any:
    """NumPy's capsule for memory at an address, which it has not read, with the device that the memory is on."""
    name = _get_name(capsule)
    place = _get_pointer(capsule, name) + _DEVICE_AT[name]
    (ctypes.c_int32 * 2).from_address(place)[:] = list(device)
    return capsule

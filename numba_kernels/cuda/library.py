"""The CUDA driver itself, called through ctypes: ``libcuda.so.1`` and nothing else.

Symbols carry the version that ``cuda.h`` of CUDA 12 and 13 gives a name (``cuMemAlloc`` is ``cuMemAlloc_v2``): the plain names are
older functions with other arguments. Every context is the device's primary one, which CuPy, Numba, Torch and JAX use too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from numba_kernels import jit
from numba_kernels.cuda.calls import Calls, Row, Watch, examine
from numba_kernels.cuda.driver import (
    HANDLE_BYTES,
    WAIT_AT_LEAST,
    WRITE,
    Batch,
    Copy,
    Driver,
    DriverError,
    Launchable,
    Memory,
    Step,
    Work,
)

_NOT_READY = 600
_NO_CONTEXT = 201
_NOT_A_POINTER = (1, 3, 4, _NO_CONTEXT)
"""What the driver says of an address that is none of its own: invalid value, not (any more) initialised, invalid context."""

_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16
_NON_BLOCKING, _NO_TIMING, _PORTABLE_AND_MAPPED, _LAZY_PEER_ACCESS = 1, 2, 3, 1
_WAIT_64, _WRITE_64 = 4, 5
_PARAMETERS, _PARAMETER_BYTES, _END = 1, 2, 0

_MEMORY_TYPE, _BUFFER_ID, _IS_MANAGED, _ORDINAL, _IS_EXPORTABLE, _RANGE_START, _RANGE_SIZE = 2, 7, 8, 9, 10, 11, 12
_ATTRIBUTES = (_MEMORY_TYPE, _BUFFER_ID, _IS_MANAGED, _ORDINAL, _IS_EXPORTABLE, _RANGE_START, _RANGE_SIZE)
_HOST = 1


class _Handle(ctypes.Structure):
    """``CUipcMemHandle``, which is passed by value."""

    _fields_ = (("reserved", c_ubyte * HANDLE_BYTES),)


class _Operation(ctypes.Structure):
    """``CUstreamBatchMemOpParams``, a union of 48 bytes; waits and writes are laid out alike."""

    _fields_ = (
        ("operation", c_uint),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
        ("unused", c_uint64),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (c_void_p, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuCtxSynchronize": (),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuPointerGetAttributes": (c_uint, c_void_p, c_void_p, c_uint64),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamGetCtx": (c_void_p, POINTER(c_void_p)),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamBatchMemOp_v2": (c_void_p, c_uint, c_void_p, c_uint),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuModuleLoadDataEx": (POINTER(c_void_p), c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
}
"""Argument types of every function that is called; all return a ``CUresult``, 0 for success."""


class Library(Driver):
    """The real driver.

    Parameters
    ----------
    functions
        The loaded library, or anything with callables of the names in :data:`SIGNATURES`.

    Raises
    ------
    DriverError
        The driver cannot be initialised; there is no GPU, as a rule.
    """

    def __init__(self, functions: Any) -> None:
        self._functions = {name: _typed(getattr(functions, name), types) for name, types in SIGNATURES.items()}
        self._rooms: list[tuple[Any, tuple[Any, Any]]] = []
        self._contexts: dict[int, int] = {}
        self._loaded: dict[tuple[int, Launchable], _Function] = {}
        self._guard = threading.Lock()
        self._call("cuInit", 0)
        self._devices = [self._int("cuDeviceGet", ordinal) for ordinal in range(self._int("cuDeviceGetCount"))]

    # Devices

    def device_count(self) -> int:
        """GPUs that this process sees."""
        return len(self._devices)

    def uuid(self, device: int) -> bytes:
        """16 bytes that name the GPU (on a partitioned GPU, the partition)."""
        name = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid_v2", name, self._devices[device])
        return name.raw

    def arch(self, device: int) -> tuple[int, int]:
        """Compute capability."""
        handle = self._devices[device]
        return self._int("cuDeviceGetAttribute", _MAJOR, handle), self._int("cuDeviceGetAttribute", _MINOR, handle)

    def multiprocessors(self, device: int) -> int:
        """Multiprocessors of the GPU."""
        return self._int("cuDeviceGetAttribute", _MULTIPROCESSORS, self._devices[device])

    def current_device(self) -> int | None:
        """Device of the calling thread's context, None if it has none."""
        found = c_int()
        status = self._functions["cuCtxGetDevice"](byref(found))
        if status == _NO_CONTEXT:
            return None
        if status:
            raise self._error("cuCtxGetDevice", status)
        return self._devices.index(found.value)

    def use(self, device: int) -> None:
        """Make the primary context of `device` current in the calling thread; it is retained for good at first use."""
        context = self._contexts.get(device)
        if context is None:
            with self._guard:
                context = self._contexts.get(device) or self._pointer("cuDevicePrimaryCtxRetain", self._devices[device])
                self._contexts[device] = context
        self._call("cuCtxSetCurrent", context)

    def context(self) -> int:
        """Handle of the calling thread's context, 0 if it has none."""
        return self._pointer("cuCtxGetCurrent")

    # Memory

    def memory(self, address: int) -> Memory | None:
        """What an address is; None for memory that the driver does not know."""
        room = values, query = self._room()
        ctypes.memset(values, 0, ctypes.sizeof(values))  # some of the values are narrower than the room for them
        status = self._functions["cuPointerGetAttributes"](len(_ATTRIBUTES), *query, address)
        if status in _NOT_A_POINTER:
            return None
        if status:
            raise self._error("cuPointerGetAttributes", status)
        kind, buffer_id, is_managed, ordinal, is_exportable, base, nbytes = values
        self._rooms.append(room)
        if not kind:
            return None
        is_host = kind == _HOST and not is_managed
        device = -1 if is_host else c_int32(ordinal).value
        return Memory(not is_host and not is_managed, device, base, nbytes, buffer_id, bool(is_exportable))

    def buffer_id(self, address: int) -> int:
        """Number of the allocation that an address lies in, 0 for none: a third of what all of :meth:`memory` takes."""
        found = c_uint64()
        status = self._functions["cuPointerGetAttribute"](byref(found), _BUFFER_ID, address)
        if status and status not in _NOT_A_POINTER:
            raise self._error("cuPointerGetAttribute", status)
        return 0 if status else found.value

    def allocate(self, nbytes: int) -> int:
        """Exportable memory on the current device."""
        return self._word("cuMemAlloc_v2", nbytes)

    def free(self, address: int) -> None:
        """Free what :meth:`allocate` returned; waits for the device."""
        self._call("cuMemFree_v2", address)

    def register_host(self, address: int, nbytes: int) -> None:
        """Pin host memory for all contexts, at the same address for kernels and streams as for the CPU."""
        self._call("cuMemHostRegister_v2", address, nbytes, _PORTABLE_AND_MAPPED)
        seen = self._word("cuMemHostGetDevicePointer_v2", address, 0)
        if seen != address:
            self.unregister_host(address)
            raise DriverError(
                801, f"pinned memory at {address:#x} is at {seen:#x} for the GPU; GPUs that need this are not supported"
            )

    def unregister_host(self, address: int) -> None:
        """Undo :meth:`register_host`."""
        self._call("cuMemHostUnregister", address)

    def export(self, address: int) -> bytes:
        """Handle for the allocation that begins at `address`."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """Map another process's allocation on the current device."""
        return self._word("cuIpcOpenMemHandle_v2", _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)

    def close(self, address: int) -> None:
        """Unmap what :meth:`open` returned."""
        self._call("cuIpcCloseMemHandle", address)

    # Streams

    def create_stream(self) -> int:
        """A stream of the current device that does not synchronise with the legacy default stream."""
        return self._pointer("cuStreamCreate", _NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        """Give a stream up; what it holds still runs."""
        self._call("cuStreamDestroy_v2", stream)

    def is_idle(self, stream: int) -> bool:
        """Whether everything enqueued has run. Raises what went wrong in it."""
        status = self._functions["cuStreamQuery"](stream)
        if status not in (0, _NOT_READY):
            raise self._error("cuStreamQuery", status)
        return bool(status == 0)

    def synchronize(self, stream: int) -> None:
        """Wait until everything enqueued has run."""
        self._call("cuStreamSynchronize", stream)

    def synchronize_device(self) -> None:
        """Wait until everything enqueued in any stream of the current device has run."""
        self._call("cuCtxSynchronize")

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream is being captured into a graph."""
        status = c_int()
        self._call("cuStreamIsCapturing", stream, byref(status))
        return status.value != 0

    def examine(self, stream: int, context: int) -> int:
        """Sum of what is unusual about the thread's context and the stream."""
        found: int = self._examination(stream, context)
        if found < 0:  # the function that failed is called once more, to say why
            self.is_capturing(stream)
            self._stream_context(stream)
        return found

    def stream_device(self, stream: int) -> int:
        """Device that a stream was made on."""
        before = self.context()
        self._call("cuCtxSetCurrent", self._stream_context(stream))
        try:
            return self._devices.index(self._int("cuCtxGetDevice"))
        finally:
            self._call("cuCtxSetCurrent", before)

    def _stream_context(self, stream: int) -> int:
        found = c_void_p()
        self._call("cuStreamGetCtx", stream, byref(found))
        return found.value or 0

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses."""
        self._call("cuMemcpyAsync", target, source, nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Enqueue writing a byte `nbytes` times to device memory."""
        self._call("cuMemsetD8Async", target, value, nbytes, stream)

    def pack(self, steps: Sequence[Step]) -> Any:
        """Stream memory operations as the driver takes them."""
        table = (_Operation * len(steps))()
        for row, (kind, address, value) in zip(table, steps, strict=True):
            row.operation, row.address, row.value = _WAIT_64 if kind == WAIT_AT_LEAST else _WRITE_64, address, value
        return table

    def batch(self, stream: int, steps: Any) -> None:
        """Enqueue stream memory operations, in order, in one call."""
        table = steps if isinstance(steps, ctypes.Array) else self.pack(steps)
        self._call("cuStreamBatchMemOp_v2", stream, len(table), table, 0)

    def writer(self, address: int) -> Callable[[int, int], None]:
        """What enqueues in a stream that a value is written to the word at `address`; the table is the same in all calls."""
        table = self.pack([Step(WRITE, address, 0)])
        row, enqueue = table[0], self._functions["cuStreamBatchMemOp_v2"]

        def write(stream: int, value: int) -> None:
            row.value = value
            status = enqueue(stream, 1, table, 0)
            if status:
                raise self._error("cuStreamBatchMemOp_v2", status)

        return write

    def watch(self, streams: Sequence[int], known: Sequence[tuple[int, int]]) -> Callable[[], bool]:
        """What tells whether the context, the streams and the memory are as before, in one call of compiled code."""
        functions = map(self._address, ("cuCtxGetCurrent", "cuStreamIsCapturing", "cuPointerGetAttribute"))
        return Watch(functions, self.context(), _BUFFER_ID, streams, known)

    def record(self, stream: int) -> Any:
        """An event that is done when what the stream holds now has run; it goes with the object."""
        event = _Event(self, self._pointer("cuEventCreate", _NO_TIMING))
        self._call("cuEventRecord", event.handle, stream)
        return event

    def wait(self, stream: int, event: Any) -> None:
        """Enqueue that what follows in `stream` waits for an event of this process."""
        self._call("cuStreamWaitEvent", stream, event.handle, 0)

    def bind(self, stream: int, work: Sequence[Work]) -> Callable[[], None]:
        """What enqueues `work` in `stream`, in order, in one call of compiled code."""
        rows = [self._row(each, stream) for each in work]
        calls = Calls([row for _, row, _ in rows], rows)

        def enqueue() -> None:
            status, failed = calls()
            if status:
                raise self._error(rows[failed][0], status)

        return enqueue

    def _row(self, work: Work, stream: int) -> tuple[str, Row, Any]:
        """Name of the function, the call, and what must live as long."""
        keep: Any = None
        arguments: tuple[int, ...]
        if isinstance(work, Copy):
            name, arguments = "cuMemcpyAsync", (*work, stream)
        elif isinstance(work, Batch):
            name, keep = "cuStreamBatchMemOp_v2", work.steps
            arguments = stream, len(keep), ctypes.addressof(keep), 0
        else:
            name, keep = "cuLaunchKernel", _Parameters(work.arguments)
            function = self._function(work.kernel).handle
            arguments = function, work.blocks, 1, 1, work.threads, 1, 1, 0, stream, 0, ctypes.addressof(keep.extra)
        return name, Row(self._address(name), arguments), keep

    @functools.cached_property
    def _examination(self) -> Callable[[int, int], int]:
        """What examines a stream, given a context."""
        functions = map(self._address, ("cuCtxGetCurrent", "cuStreamGetCtx", "cuStreamIsCapturing"))
        return functools.partial(jit.entry(examine), *functions)

    def _address(self, name: str) -> int:
        """Where a function is, for compiled code."""
        return ctypes.cast(self._functions[name], c_void_p).value or 0

    # Kernels

    def launch(self, kernel: Launchable, stream: int, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Enqueue a kernel; loads it into the current context at first use."""
        function = self._function(kernel)
        with function.guard:  # the driver reads the parameters while it enqueues
            extra = function.packed(arguments)
            self._call("cuLaunchKernel", function.handle, blocks, 1, 1, threads, 1, 1, 0, stream, None, extra)

    def _function(self, kernel: Launchable) -> _Function:
        """A kernel in the current context."""
        context = self.context()
        return self._loaded.get((context, kernel)) or self._load(context, kernel)

    def _load(self, context: int, kernel: Launchable) -> _Function:
        device = self.current_device()
        if device is None:
            raise DriverError(201, f"kernel {kernel.name}: the calling thread has no CUDA context")
        code, entry = kernel.cubin(self.arch(device))
        with self._guard:
            found = self._loaded.get((context, kernel))
            if found is None:
                module = self._pointer("cuModuleLoadDataEx", code, 0, None, None)
                found = _Function(self._pointer("cuModuleGetFunction", module, entry.encode()))
                self._loaded[context, kernel] = found
        return found

    # Calls

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            raise self._error(name, status)

    def _int(self, name: str, *arguments: Any) -> int:
        """Call a function that returns an int through its first argument."""
        found = c_int()
        self._call(name, byref(found), *arguments)
        return found.value

    def _word(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a device address through its first argument."""
        found = c_uint64()
        self._call(name, byref(found), *arguments)
        return found.value

    def _pointer(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a handle through its first argument."""
        found = c_void_p()
        self._call(name, byref(found), *arguments)
        return found.value or 0

    def _error(self, name: str, status: int) -> DriverError:
        said = [c_char_p(), c_char_p()]
        for get, text in zip(("cuGetErrorName", "cuGetErrorString"), said, strict=True):
            self._functions[get](status, byref(text))
        title, reason = ((text.value or b"unknown").decode() for text in said)
        return DriverError(status, f"{name} returned {title} ({status}): {reason}")

    def _room(self) -> tuple[Any, tuple[Any, Any]]:
        """Room for the attributes of an address, and what asks for them; a call's own, as a signal handler in its middle may ask, too."""
        try:
            return self._rooms.pop()
        except IndexError:
            count = len(_ATTRIBUTES)
            values = (c_uint64 * count)()
            first = ctypes.addressof(values)
            pointers = (c_void_p * count)(*range(first, first + 8 * count, 8))
            return values, ((c_int * count)(*_ATTRIBUTES), pointers)


class _Function:
    """A kernel in a context, and the parameters of its last launch, whose room is used again."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.guard = threading.Lock()
        self._parameters: _Parameters | None = None

    def packed(self, arguments: Sequence[int]) -> Any:
        """The parameters as ``cuLaunchKernel`` takes them in its last argument."""
        if self._parameters is None or len(self._parameters.block) != len(arguments):
            self._parameters = _Parameters(arguments)
        else:
            self._parameters.block[:] = arguments
        return self._parameters.extra


class _Parameters:
    """Parameters of a kernel.

    Attributes
    ----------
    block
        The parameters, 8 bytes each.
    extra
        What tells ``cuLaunchKernel`` where they are.
    """

    def __init__(self, arguments: Sequence[int]) -> None:
        self.block: Any = (c_int64 * len(arguments))(*arguments)
        self._size = c_size_t(ctypes.sizeof(self.block))
        self.extra = (c_void_p * 5)(_PARAMETERS, ctypes.addressof(self.block), _PARAMETER_BYTES, ctypes.addressof(self._size), _END)


class _Event:
    def __init__(self, library: Library, handle: int) -> None:
        self.handle = handle
        self._library = library

    def __del__(self) -> None:
        with contextlib.suppress(DriverError):  # the context may be gone already
            self._library._call("cuEventDestroy_v2", self.handle)


def _typed(function: Any, types: tuple[Any, ...]) -> Any:
    function.argtypes, function.restype = types, c_int
    return function

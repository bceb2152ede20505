"""The table of driver functions: everything that is asked of a GPU goes through one :class:`Driver`.

:class:`numba_kernels.cuda.library.Library` calls the real driver; ``ncclx_mpi.testing.driver_double`` stands in for it where there is no
GPU. Addresses and streams are plain integers, as the driver has them.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numba_kernels.cuda import loaded
from numba_kernels.rows import NamedTuple

HANDLE_BYTES = 64
_NO_DEVICE, _NO_LIBRARY = 100, 302
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
"""Handles of the default streams; 0 is the legacy one too."""

WAIT_AT_LEAST, WRITE = 1, 2
"""Kinds of stream memory operation: wait until a 64-bit word, taken cyclically, is at least a value; write it."""

NOT_CURRENT, FOREIGN, CAPTURED = 1, 2, 4
"""What :meth:`Driver.examine` finds: the thread's context is another one, the stream's is, the stream is being captured into a graph."""


class Memory(NamedTuple):
    """What the driver knows of an address.

    Attributes
    ----------
    is_device
        The CPU cannot read it. Managed memory and pinned host memory can be read.
    device
        Ordinal of the GPU in this process; -1 for host memory.
    base, nbytes
        The allocation it lies in.
    buffer_id
        Number of the allocation, never used again in this process: a freed address that comes back has another.
    is_exportable
        Whether other processes may map it.
    """

    is_device: bool
    device: int
    base: int
    nbytes: int
    buffer_id: int
    is_exportable: bool


class Step(NamedTuple):
    """One stream memory operation on the 64-bit word at `address`: :data:`WAIT_AT_LEAST` or :data:`WRITE`."""

    kind: int
    address: int
    value: int


class Launchable(Protocol):
    """A compiled kernel: integer parameters of 8 bytes only, addresses among them."""

    name: str

    def cubin(self, arch: tuple[int, int]) -> tuple[bytes, str]:
        """Machine code for compute capability `arch`, and the name of its entry."""

    def on_cpu(self, threads: int, *arguments: int) -> None:
        """Do on the CPU what `threads` threads would do on the GPU."""


class Copy(NamedTuple):
    """What :meth:`Driver.copy` takes, but the stream."""

    target: int
    source: int
    nbytes: int

    def enqueue(self, driver: Driver, stream: int) -> None:
        """Enqueue it."""
        driver.copy(self.target, self.source, self.nbytes, stream)


class Batch(NamedTuple):
    """Stream memory operations, of :meth:`Driver.pack`."""

    steps: Any

    def enqueue(self, driver: Driver, stream: int) -> None:
        """Enqueue them."""
        driver.batch(stream, self.steps)


class Launch(NamedTuple):
    """What :meth:`Driver.launch` takes, but the stream."""

    kernel: Launchable
    blocks: int
    threads: int
    arguments: Sequence[int]

    def enqueue(self, driver: Driver, stream: int) -> None:
        """Enqueue it."""
        driver.launch(self.kernel, stream, self.blocks, self.threads, self.arguments)


Work = Copy | Batch | Launch


class DriverError(RuntimeError):
    """A driver function failed.

    Attributes
    ----------
    code
        The driver's number for it.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Driver(ABC):
    """The driver functions that this project uses. All raise :class:`DriverError`; `device` is an ordinal in this process."""

    @abstractmethod
    def device_count(self) -> int:
        """GPUs that this process sees."""

    @abstractmethod
    def uuid(self, device: int) -> bytes:
        """16 bytes that name the GPU, whatever its ordinal in a process."""

    @abstractmethod
    def arch(self, device: int) -> tuple[int, int]:
        """Compute capability."""

    @abstractmethod
    def multiprocessors(self, device: int) -> int:
        """Multiprocessors of the GPU."""

    @abstractmethod
    def current_device(self) -> int | None:
        """Device of the calling thread's context, None if it has none."""

    @abstractmethod
    def use(self, device: int) -> None:
        """Make the primary context of `device` current in the calling thread."""

    @abstractmethod
    def context(self) -> int:
        """Handle of the calling thread's context, 0 if it has none."""

    @abstractmethod
    def memory(self, address: int) -> Memory | None:
        """What an address is; None for memory that the driver does not know: plain host memory."""

    def buffer_id(self, address: int) -> int:
        """Number of the allocation that an address lies in; 0 for memory that the driver does not know."""
        found = self.memory(address)
        return 0 if found is None else found.buffer_id

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Exportable memory on the current device (``cuMemAlloc``)."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free what :meth:`allocate` returned; waits for the device."""

    @abstractmethod
    def register_host(self, address: int, nbytes: int) -> None:
        """Pin host memory for all contexts, so that copies run at full speed and streams may wait for words in it."""

    @abstractmethod
    def unregister_host(self, address: int) -> None:
        """Undo :meth:`register_host`."""

    @abstractmethod
    def export(self, address: int) -> bytes:
        """Handle of :data:`HANDLE_BYTES` bytes for the allocation that begins at `address`."""

    @abstractmethod
    def open(self, handle: bytes) -> int:
        """Map another process's allocation on the current device: the address of its begin. A process cannot open its own."""

    @abstractmethod
    def close(self, address: int) -> None:
        """Unmap what :meth:`open` returned."""

    @abstractmethod
    def create_stream(self) -> int:
        """A stream of the current device that does not synchronise with the legacy default stream."""

    @abstractmethod
    def destroy_stream(self, stream: int) -> None:
        """Give a stream up; what it holds still runs."""

    @abstractmethod
    def is_idle(self, stream: int) -> bool:
        """Whether everything enqueued has run. Raises what went wrong in it."""

    @abstractmethod
    def synchronize(self, stream: int) -> None:
        """Wait until everything enqueued has run."""

    @abstractmethod
    def synchronize_device(self) -> None:
        """Wait until everything enqueued in any stream of the current device has run."""

    @abstractmethod
    def is_capturing(self, stream: int) -> bool:
        """Whether the stream is being captured into a graph."""

    @abstractmethod
    def examine(self, stream: int, context: int) -> int:
        """Sum of :data:`NOT_CURRENT`, :data:`FOREIGN` and :data:`CAPTURED`: 0 if `context` is the calling thread's and the stream's."""

    @abstractmethod
    def stream_device(self, stream: int) -> int:
        """Device that a stream was made on."""

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses; host memory must be pinned to be copied asynchronously."""

    @abstractmethod
    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Enqueue writing a byte `nbytes` times to device memory."""

    @abstractmethod
    def pack(self, steps: Sequence[Step]) -> Any:
        """Stream memory operations in the form in which the driver takes them, for :meth:`batch` any number of times."""

    @abstractmethod
    def batch(self, stream: int, steps: Any) -> None:
        """Enqueue stream memory operations, in order, in one call: steps, or what :meth:`pack` made of them."""

    def writer(self, address: int) -> Callable[[int, int], None]:
        """What enqueues in a stream that a value is written to the 64-bit word at `address`; used by one thread at a time."""
        return lambda stream, value: self.batch(stream, [Step(WRITE, address, value)])

    def watch(self, streams: Sequence[int], known: Sequence[tuple[int, int]]) -> Callable[[], bool]:
        """What tells whether all is as before: the thread's context is the one of now, no stream is being captured, and memory is the same.

        `known` are addresses, and the ``buffer_id`` of each.
        """
        context = self.context()

        def is_as_before() -> bool:
            if self.context() != context or any(map(self.is_capturing, streams)):
                return False
            found = [self.memory(address) for address, _ in known]
            return all(memory is not None and memory.buffer_id == each[1] for memory, each in zip(found, known, strict=True))

        return is_as_before

    @abstractmethod
    def launch(self, kernel: Launchable, stream: int, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Enqueue a kernel on `blocks` blocks of `threads` threads; loads it into the current context at first use."""

    def bind(self, stream: int, work: Sequence[Work]) -> Callable[[], None]:
        """What enqueues `work` in `stream`, in order, whenever it is called; for the context that is current now."""

        def enqueue() -> None:
            for each in work:
                each.enqueue(self, stream)

        return enqueue

    @abstractmethod
    def record(self, stream: int) -> Any:
        """An event that is done when what the stream holds now has run; an opaque token."""

    @abstractmethod
    def wait(self, stream: int, event: Any) -> None:
        """Enqueue that what follows in `stream` waits for an event of this process."""


class _Use:
    installed: Driver | None = None
    machine: Driver | None = None
    is_tried = False
    guard = threading.RLock()


def current() -> Driver | None:
    """The driver in use, None as long as no memory of this process can be a GPU's.

    That is the machine's own once something in the process has loaded its library, if it finds a GPU; nothing is loaded here.
    """
    if _Use.installed is not None:
        return _Use.installed
    if _Use.machine is None and not _Use.is_tried:
        _look_for_machine()
    return _Use.machine


def install(driver: Driver | None) -> None:
    """Use `driver` from now on; None goes back to the machine's own."""
    _Use.installed = driver


def find() -> Driver:
    """The driver in use, else the machine's own, whose library is loaded for it.

    Raises
    ------
    DriverError
        There is no driver, or no GPU.
    """
    if _Use.installed is not None:
        return _Use.installed
    functions = loaded.load()
    if functions is None:
        raise DriverError(_NO_LIBRARY, f"no CUDA driver is installed ({loaded.NAME})")
    from numba_kernels.cuda.library import Library

    found = Library(functions)
    if not found.device_count():
        raise DriverError(_NO_DEVICE, "the CUDA driver shows this process no GPU; see CUDA_VISIBLE_DEVICES")
    return found


def _look_for_machine() -> None:
    """Find the machine's driver, once: another thread waits for it, and does not take the memory of its GPU for the host's meanwhile."""
    with _Use.guard:
        if _Use.is_tried or loaded.library() is None:
            return
        with contextlib.suppress(DriverError):
            _Use.machine = find()
        _Use.is_tried = True

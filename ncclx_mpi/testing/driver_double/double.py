"""The driver double: every function of the driver table, without a GPU, across the processes of a job."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from ncclx_mpi.testing.driver_double.capture import Capture, Event, Graph
from ncclx_mpi.testing.driver_double.deadlock import Detector
from ncclx_mpi.testing.driver_double.memory import (
    DEVICE,
    IMPORTED,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MANAGED,
    PINNED,
    POOL,
    Fault,
    Space,
    is_mapped,
    load_word,
    opened,
    store_word,
)
from ncclx_mpi.testing.driver_double.streams import Executor, Operation, Stream
from numba_kernels.cuda import driver as table
from numba_kernels.cuda.driver import WAIT_AT_LEAST, WRITE, Driver, DriverError, Launchable, Memory, Step
from numba_kernels.jit import entry

CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_ISOLATION, CAPTURE_IMPLICIT = 900, 901, 904, 905, 906
DEINITIALIZED, INVALID_DEVICE, NO_PEER_ACCESS = 4, 101, 217

_WORD = 8
_CONTEXTS = 0xC000
_THREADS_ON_CPU = 128
_MOST_THREADS, _MOST_BLOCKS = 1024, (1 << 31) - 1
_ADDRESSES = range(1 << 32, 1 << 47)
"""What arguments of kernels may be addresses: those below are counts, or in the heap of a Python that is no PIE, which is left alone."""
_SWITCH_SECONDS = 0.0005
_ASKING_SECONDS = 0.0001
"""What it takes to hear that a stream is not idle: who asks again and again leaves the core to the threads that run streams."""


class Violation(AssertionError):
    """The program under test did what a GPU would answer with wrong data, a crash or a hang; never handled by it."""


class Double(Driver):
    """A stand-in for the CUDA driver in one process of a job.

    Operations run late and out of order, as the seed draws it, never earlier than CUDA's rules allow. What a program does wrong is
    a violation: the call that meets it, every later one and the end of the ``with`` block raise it.

    Parameters
    ----------
    seed
        Of all choices. Ranks of one job should have different ones.
    devices
        Physical GPUs of the machine.
    visible
        Those that this process sees, in the order of its ordinals (``CUDA_VISIBLE_DEVICES``); all by default.
    arch
        Compute capability of all.
    has_peer_access
        Whether memory of one GPU can be mapped on another.
    patience
        Seconds without a move in all processes after which blocked streams are a deadlock.
    job
        Same in all processes of a job; by default the parent process, which the ranks of a launcher have in common.

    Attributes
    ----------
    calls
        How often each function was called; ``calls.clear()`` starts anew.
    violations
        What the program did wrong so far.

    Examples
    --------
    ::

        with Double(seed) as driver:
            array = DeviceArray.from_host(np.arange(10))
            comm.Allreduce(MPI.IN_PLACE, array)
            assert driver.calls["batch"] == 1
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        devices: int = 1,
        visible: Sequence[int] | None = None,
        arch: tuple[int, int] = (9, 0),
        has_peer_access: bool = True,
        patience: float = 5.0,
        job: str = "",
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.violations: list[str] = []
        self._visible = tuple(range(devices) if visible is None else visible)
        self._arch = arch
        self._has_peer_access = has_peer_access
        self._patience = patience
        self._pid = os.getpid()
        self._is_closed = False
        self._detector = Detector(job or str(os.getppid()), patience)
        self._space = Space(garbage=1 + seed % 200)
        self._waiting: dict[str, str] = {}
        self._executor = Executor(seed, self._violate, self._on_stalled, self._detector.move)
        self._choices = np.random.default_rng(seed)
        self._streams: dict[int, Stream] = {}
        self._default: dict[tuple[int, int], Stream] = {}
        self._next_handle = 0x5000
        self._captures: list[Capture] = []
        self._graphs = 0
        self._loaded: set[tuple[int, str]] = set()
        self._thread = threading.local()
        self._switch_interval = sys.getswitchinterval()
        self._executor.start()

    # Life

    def __enter__(self) -> Double:
        """Become the driver in use."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        table.install(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let the streams run empty, unless an error is on its way, and raise what went wrong."""
        try:
            if error is None:
                self.drain()
        finally:
            table.install(None)
            sys.setswitchinterval(self._switch_interval)
            self._is_closed = True
            self._executor.close()
            self._space.close()
            self._detector.close()
        if error is not None:
            for text in self.violations:
                error.add_note(f"driver double: {text}")
        elif self.violations:
            raise Violation("\n".join(self.violations))

    def drain(self) -> None:
        """Wait until no stream holds anything; a deadlock is a violation."""
        with self._executor.changed:
            self._wait("drain", self._executor.is_drained)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the body runs, enqueue only: afterwards the order depends on nothing but the seed."""
        self._executor.hold(True)
        try:
            yield
        finally:
            self._executor.hold(False)

    def reseed(self, seed: int) -> None:
        """Run all streams empty, then choose by another seed: many runs of one program in one process."""
        self.drain()
        self._executor.reseed(seed)
        self._choices = np.random.default_rng(seed)

    # Devices

    def device_count(self) -> int:
        with self._call("device_count"):
            return len(self._visible)

    def uuid(self, device: int) -> bytes:
        with self._call("uuid"):
            return self._uuid(device)

    def arch(self, device: int) -> tuple[int, int]:
        with self._call("arch"):
            self._uuid(device)
            return self._arch

    def multiprocessors(self, device: int) -> int:
        with self._call("multiprocessors"):
            self._uuid(device)
            return 132

    def current_device(self) -> int | None:
        with self._call("current_device"):
            return self._current

    def use(self, device: int) -> None:
        with self._call("use"):
            self._uuid(device)
            self._thread.device = device

    def context(self) -> int:
        with self._call("context"):
            return self._context(self._current)

    # Memory

    def memory(self, address: int) -> Memory | None:
        with self._call("memory"):
            found = self._space.at(address)
            return None if found is None else found.describe()

    def allocate(self, nbytes: int) -> int:
        return self.allocate_as(DEVICE, nbytes)

    def allocate_as(self, kind: str, nbytes: int) -> int:
        """Memory of another kind: :data:`POOL`, :data:`MANAGED` or :data:`PINNED`; freed by :meth:`free`."""
        with self._call("allocate", is_unsafe=True):
            return self._space.allocate(kind, nbytes, self._device()).base

    def free(self, address: int) -> None:
        with self._call("free", is_unsafe=True):
            found = self._space.check(address, 0)
            if found is None or found.base != address or found.kind not in (DEVICE, POOL, MANAGED, PINNED):
                raise DriverError(INVALID_VALUE, f"free: nothing that was allocated here begins at {address:#x}")
            tails = self._executor.tails(found.device)
            self._wait(f"free of {found}", lambda: all(tail.is_done for tail in tails))
            self._space.release(found)

    def register_host(self, address: int, nbytes: int) -> None:
        with self._call("register_host", is_unsafe=True):
            self._device()
            self._space.register(address, nbytes)

    def unregister_host(self, address: int) -> None:
        with self._call("unregister_host", is_unsafe=True):
            self._space.unregister(address)

    def export(self, address: int) -> bytes:
        with self._call("export"):
            found = self._space.check(address, 0)
            if found is None or found.base != address or found.kind != DEVICE:
                raise DriverError(INVALID_VALUE, f"export: no exportable memory begins at {address:#x}")
            return self._space.export(found, self._uuid(found.device))

    def open(self, handle: bytes) -> int:
        with self._call("open", is_unsafe=True):
            device = self._device()
            if not self._has_peer_access and handle[-16:] != self._uuid(device):
                raise DriverError(NO_PEER_ACCESS, f"open: device {device} cannot access memory of GPU {handle[-16:]!r}")
            return self._space.open(handle, device).base

    def close(self, address: int) -> None:
        with self._call("close", is_unsafe=True):
            found = self._space.at(address)
            if found is None or found.base != address or found.kind != IMPORTED:
                raise Fault(f"no opened memory begins at {address:#x}")
            found.references -= 1
            if not found.references:
                self._space.release(found)

    # Streams

    def create_stream(self, *, is_blocking: bool = False) -> int:
        with self._call("create_stream"):
            handle, self._next_handle = self._next_handle, self._next_handle + 0x10
            self._streams[handle] = self._executor.stream(handle, self._device(), is_blocking=is_blocking)
            return handle

    def destroy_stream(self, stream: int) -> None:
        with self._call("destroy_stream"):
            found = self._stream(stream)
            if found.handle not in self._streams:
                raise DriverError(INVALID_HANDLE, "destroy_stream: a default stream cannot be destroyed")
            del self._streams[stream]
            self._executor.forget(found)

    def is_idle(self, stream: int) -> bool:
        with self._call("is_idle"):
            found = self._stream(stream)
            self._refuse_captured(found, "is_idle")
            if found.is_idle:
                return True
        time.sleep(_ASKING_SECONDS)
        return False

    def synchronize(self, stream: int) -> None:
        with self._call("synchronize"):
            found = self._stream(stream)
            self._refuse_captured(found, "synchronize")
            self._finish(found)

    def synchronize_device(self) -> None:
        with self._call("synchronize_device", is_unsafe=True):
            tails = self._executor.tails(self._device())
            self._wait("the device to run empty", lambda: all(tail.is_done for tail in tails))
            self._raise_violations()

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._call("copy"):
            queue = self._stream(stream)
            if nbytes < 0:
                raise DriverError(INVALID_VALUE, f"copy of {nbytes} bytes")
            if abs(target - source) < nbytes:
                raise Fault(f"{nbytes} bytes at {source:#x} and at {target:#x} overlap")
            pageable = [address for address in (target, source) if self._space.check(address, nbytes) is None]
            if pageable:
                self._refuse_captured(queue, f"copy from or to {pageable[0]:#x}, which is not pinned")
            self._enqueue(queue, self._copy_operation(target, source, nbytes, pageable))
            if target in pageable or (pageable and self._choices.integers(2)):
                self._finish(queue)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        with self._call("fill"):
            if self._space.check(target, nbytes) is None or nbytes < 0:
                raise DriverError(INVALID_VALUE, f"fill: {nbytes} bytes at {target:#x} are no memory of a device")
            text = f"fill of {nbytes} bytes at {target:#x}"
            self._enqueue(self._stream(stream), Operation(text, lambda: _fill(self.reach(target, nbytes), value, nbytes)))

    def pack(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(steps)

    def batch(self, stream: int, steps: Sequence[Step]) -> None:
        with self._call("batch"):
            self._enqueue(self._stream(stream), *[self._word_operation(*step) for step in steps])

    def launch(self, kernel: Launchable, stream: int, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        with self._call("launch"):
            queue = self._stream(stream)
            if queue.device != self._device():
                raise DriverError(INVALID_HANDLE, f"launch: {queue} belongs to device {queue.device}, not to the current one")
            fits = getattr(kernel, "fits", None)
            if not (1 <= threads <= _MOST_THREADS and 1 <= blocks <= _MOST_BLOCKS and (fits is None or fits(blocks, threads))):
                raise DriverError(
                    INVALID_VALUE, f"launch: {kernel.name} cannot be launched as {blocks} blocks of {threads} threads"
                )
            if (queue.device, kernel.name) not in self._loaded:
                self._refuse_unsafe(f"first launch of {kernel.name} (it loads the module)")
                self._loaded.add((queue.device, kernel.name))
            given = tuple(int(argument) for argument in arguments)
            self._check_arguments(given)
            on_cpu = min(blocks * threads, _THREADS_ON_CPU)
            self._enqueue(queue, Operation(f"kernel {kernel.name}{given}", lambda: self._run_kernel(kernel, on_cpu, given)))

    def compute(self, stream: int, text: str, function: Callable[[], None]) -> None:
        """Enqueue what the kernel of a library other than ours does; not counted."""
        with self._call(""):
            self._enqueue(self._stream(stream), Operation(text, function))

    def finish(self, stream: int) -> None:
        """As :meth:`synchronize`, not counted."""
        with self._call(""):
            self._finish(self._stream(stream))

    def reach(self, address: int, nbytes: int) -> int:
        """Where the double reads and writes memory that streams can use, while it runs an operation."""
        with self._executor.changed:
            if self._space.check(address, nbytes) is None:
                raise Fault(f"{address:#x} is plain host memory: register it, or it was unregistered too early")
            return self._space.translate(address, nbytes)

    def record(self, stream: int) -> Event:
        with self._call("record"):
            queue = self._stream(stream)
            capture = self._capture_of(queue)
            return Event(queue.tail if capture is None else capture.tails.get(queue), capture)

    def wait(self, stream: int, event: Event) -> None:
        with self._call("wait"):
            queue = self._stream(stream)
            capture = self._capture_of(queue)
            is_over = event.capture is not None and event.capture not in self._captures
            if is_over or (event.capture is None and capture is not None):
                if capture is not None:
                    capture.invalid = "wait for an event from outside"
                raise DriverError(CAPTURE_ISOLATION, f"wait: the event and {queue} do not belong to the same capture")
            if event.capture is not None:
                event.capture.join(queue, event.operation)
            elif event.operation is not None:
                self._enqueue(queue, Operation(f"wait for {event.operation.text}", after=(event.operation,)))

    def examine(self, stream: int, context: int) -> int:
        with self._call("examine"):
            queue = self._explicit(stream)
            found = table.NOT_CURRENT if self._context(self._current) != context else 0
            found |= table.FOREIGN if self._context(queue.device) != context else 0
            return found | (table.CAPTURED if self._capture_of(queue) is not None else 0)

    def stream_device(self, stream: int) -> int:
        with self._call("stream_device"):
            return self._explicit(stream).device

    # Capture

    def is_capturing(self, stream: int) -> bool:
        with self._call("is_capturing"):
            return self._capture_of(self._stream(stream)) is not None

    def begin_capture(self, stream: int, *, is_global: bool = True) -> None:
        """Record what is enqueued in `stream` from now on instead of running it; under `is_global`, refuse unsafe calls meanwhile."""
        with self._call("begin_capture"):
            queue = self._stream(stream)
            if queue.handle == 0 or self._capture_of(queue) is not None:
                raise DriverError(CAPTURE_UNSUPPORTED, f"begin_capture: {queue} cannot be captured, or already is")
            self._captures.append(Capture(queue, is_global, tails={queue: None}))

    def end_capture(self, stream: int) -> Graph:
        """What was recorded, for :meth:`replay`."""
        with self._call("end_capture"):
            queue = self._stream(stream)
            capture = next((capture for capture in self._captures if capture.origin is queue), None)
            if capture is None:
                raise DriverError(INVALID_VALUE, f"end_capture: no capture began in {queue}")
            self._captures.remove(capture)
            if capture.invalid:
                raise DriverError(CAPTURE_INVALIDATED, f"end_capture: the capture is invalid since: {capture.invalid}")
            if loose := capture.unjoined():
                raise DriverError(CAPTURE_UNJOINED, f"end_capture: {loose[0]} was forked into the capture and not joined")
            return capture.graph(self._internal_stream)

    def replay(self, graph: Graph, stream: int) -> None:
        """Run a graph in a stream."""
        with self._call("replay"):
            graph.replay(self._executor, self._stream(stream))

    def _internal_stream(self, device: int) -> Stream:
        self._graphs += 1
        return self._executor.stream(-self._graphs, device, is_blocking=False)

    # What the functions share

    @contextmanager
    def _call(self, name: str, *, is_unsafe: bool = False) -> Iterator[None]:
        """Count a call, refuse it after a violation, turn a fault in it into one."""
        if os.getpid() != self._pid:
            raise Violation(f"{name}: this process was forked from one that has a CUDA context")
        with self._executor.changed:
            if self._is_closed:
                raise DriverError(DEINITIALIZED, f"{name}: the double is closed")
            self._raise_violations()
            self._detector.move()
            if name:
                self.calls[name] += 1
            if is_unsafe:
                self._refuse_unsafe(name)
            try:
                yield
            except Fault as fault:
                self._violate(f"{name}: {fault}")
                self._raise_violations()

    def _violate(self, text: str) -> None:
        with self._executor.changed:
            self.violations.append(text)
            self._executor.changed.notify_all()

    def _raise_violations(self) -> None:
        if self.violations:
            raise Violation(self.violations[0])

    def _wait(self, what: str, is_over: Callable[[], bool]) -> None:
        """Let other threads work until `is_over`; a violation ends it."""
        name = threading.current_thread().name
        self._waiting[name] = what
        try:
            while not is_over():
                self._raise_violations()
                self._executor.changed.wait()
        finally:
            self._waiting.pop(name, None)

    def _finish(self, queue: Stream) -> None:
        tail = queue.tail
        self._wait(f"{queue} to run empty", lambda: tail is None or tail.is_done)
        self._raise_violations()

    def _on_stalled(self, is_blocked: bool) -> None:
        """Look for a deadlock; one ends this process's waits, in the double and, by an interrupt, outside of it."""
        if not self._detector.is_due:
            return
        with self._executor.changed:
            threads = [f"thread {name} waits for {what}" for name, what in self._waiting.items()]
            self._detector.describe([*self.violations, *self._executor.blocked(), *threads])
        report = self._detector.look(is_blocked=is_blocked and not self.violations)
        if report:
            main = threading.main_thread()
            is_elsewhere = main.name not in self._waiting and main.ident is not None
            print(report, file=sys.stderr, flush=True)
            self._violate(report)
            if is_elsewhere:
                signal.pthread_kill(main.ident or 0, signal.SIGINT)

    @property
    def _current(self) -> int | None:
        device: int | None = getattr(self._thread, "device", None)
        return device

    def _device(self) -> int:
        if self._current is None:
            raise DriverError(INVALID_CONTEXT, "the calling thread has no current context")
        return self._current

    def _context(self, device: int | None) -> int:
        return 0 if device is None else _CONTEXTS + device

    def _uuid(self, device: int) -> bytes:
        if not 0 <= device < len(self._visible):
            raise DriverError(INVALID_DEVICE, f"there is no device {device}: this process sees {len(self._visible)}")
        return b"driver-double%03d" % self._visible[device]

    def _stream(self, handle: int) -> Stream:
        device = self._device()
        if handle in (0, table.LEGACY_STREAM, table.PER_THREAD_STREAM):
            number = 2 if handle == table.PER_THREAD_STREAM else 0
            key = (device, threading.get_ident() if number else 0)
            if key not in self._default:
                self._default[key] = self._executor.stream(number, device, is_blocking=bool(number))
            return self._default[key]
        return self._explicit(handle)

    def _explicit(self, handle: int) -> Stream:
        """A stream that was created."""
        if handle not in self._streams:
            raise Fault(f"{handle:#x} is no stream, or one that was destroyed")
        return self._streams[handle]

    def _enqueue(self, queue: Stream, *operations: Operation) -> None:
        capture = self._capture_of(queue)
        if capture is None:
            self._refuse_implicit(queue)
            self._executor.push(queue, *operations)
        else:
            for operation in operations:
                capture.add(queue, operation)

    def _capture_of(self, queue: Stream) -> Capture | None:
        return next((capture for capture in self._captures if queue in capture.tails), None)

    def _refuse_captured(self, queue: Stream, name: str) -> None:
        capture = self._capture_of(queue)
        if capture is not None:
            capture.invalid = capture.invalid or name
            raise DriverError(CAPTURE_UNSUPPORTED, f"{name}: {queue} is under capture")
        self._refuse_implicit(queue)

    def _refuse_implicit(self, queue: Stream) -> None:
        """The legacy stream would wait for blocking streams, which cannot be done for one under capture."""
        for capture in self._captures:
            if queue.handle == 0 and any(other.is_blocking and other.device == queue.device for other in capture.tails):
                capture.invalid = capture.invalid or "use of the legacy default stream"
                raise DriverError(CAPTURE_IMPLICIT, "the legacy default stream would synchronise with a stream under capture")

    def _refuse_unsafe(self, name: str) -> None:
        for capture in self._captures:
            if capture.is_global:
                capture.invalid = capture.invalid or name
                raise DriverError(CAPTURE_UNSUPPORTED, f"{name}: not permitted while a stream is captured")

    def _copy_operation(self, target: int, source: int, nbytes: int, pageable: list[int]) -> Operation:
        """A copy; from memory that is not pinned to a device, what is there now."""
        text = f"copy of {nbytes} bytes from {source:#x} to {target:#x}"
        reach = {True: lambda address, _: address, False: self.reach}
        to, origin = reach[target in pageable], reach[source in pageable]
        if source in pageable and target not in pageable:
            taken = ctypes.string_at(source, nbytes)
            return Operation(text, lambda: _move(to(target, nbytes), taken, nbytes))
        return Operation(text, lambda: _move(to(target, nbytes), origin(source, nbytes), nbytes))

    def _word_operation(self, kind: int, address: int, value: int) -> Operation:
        found = self._space.check(address, _WORD)
        if address % _WORD or found is None or found.kind == MANAGED:
            where = "plain host memory" if found is None else str(found)
            raise Fault(f"stream memory operation on {address:#x} in {where}: a word of registered or device memory is needed")
        value &= (1 << 64) - 1
        if kind == WRITE:
            signed = value - (value >> 63 << 64)
            text = f"write of {value} to {address:#x}"
            return Operation(text, lambda: entry(store_word)(self.reach(address, _WORD), signed))
        if kind != WAIT_AT_LEAST:
            raise DriverError(INVALID_VALUE, f"batch: {kind} is no kind of stream memory operation")
        text = f"wait until {address:#x} is at least {value}"
        return Operation(text, word=lambda: int(entry(load_word)(self.reach(address, _WORD))), value=value)

    def _check_arguments(self, arguments: tuple[int, ...]) -> None:
        """Refuse addresses of freed memory, and those of host memory that a GPU could not reach."""
        for argument in arguments:
            if argument in _ADDRESSES and self._space.check(argument, 0) is None and is_mapped(argument):
                raise Fault(f"kernel argument {argument:#x} is an address of plain host memory")

    def _run_kernel(self, kernel: Launchable, threads: int, arguments: tuple[int, ...]) -> None:
        with self._executor.changed:
            self._check_arguments(arguments)
        with opened(self._space, self._executor.changed):
            kernel.on_cpu(threads, *arguments)


def _fill(target: int, value: int, nbytes: int) -> None:
    ctypes.memset(target, value, nbytes)


def _move(target: int, source: int | bytes, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes)

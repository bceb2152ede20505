"""Memory of a GPU as a call borrows it: where it is, in which stream it may be touched, and whether it is still there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

from ncclx_mpi import errors, runtime
from ncclx_mpi.gpu_memory.streams import LEGACY, Stream
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.driver import Driver, DriverError, Memory

_POLLS = 200
"""Looks at a stream before the wait goes through the engine, which moves messages on and notices dead peers."""


class DeviceMemory:
    """The memory that one array lends to one call.

    Attributes
    ----------
    driver
        The driver that knows it.
    known
        What the driver said of it when the call was made.
    address
        An address in it.
    stream
        Where copies of it are enqueued.
    """

    __slots__ = ("address", "driver", "known", "stream")

    def __init__(self, driver: Driver, known: Memory, address: int, stream: Stream) -> None:
        self.driver = driver
        self.known = known
        self.address = address
        self.stream = stream

    @property
    def device(self) -> int:
        """Ordinal of the GPU in this process."""
        return self.known.device

    def current(self) -> _Current:
        """Lend the driver, with the device current in this thread, to the body of a ``with``.

        Raises
        ------
        Exception
            ERR_OTHER: the driver failed.
        """
        return _Current(self)

    @contextmanager
    def in_order(self, keep: Any) -> Iterator[Driver]:
        """Lend the driver for enqueuing copies in the stream; on return all have run.

        `keep` owns what is copied to or from; should the wait be given up, it is never used for anything else.

        Raises
        ------
        Exception
            ERR_BUFFER: the array was freed. ERR_OTHER: its stream is being captured, or the driver failed.
        """
        with self.current() as driver:
            self.check_usable()
            try:
                yield driver
                self._wait()
            except BaseException:
                keep_for_good(keep)
                raise

    def copy_now(self, target: int, source: int, nbytes: int, keep: Any) -> None:
        """One copy in the stream, which has run on return; as :meth:`in_order` otherwise."""
        with self.current() as driver:
            self.check_usable()
            try:
                driver.copy(target, source, nbytes, self.stream.handle)
                self._wait()
            except BaseException:
                keep_for_good(keep)
                raise

    def fail(self, error: DriverError) -> NoReturn:
        """Raise ERR_OTHER for what the driver has refused."""
        raise errors.error(errors.ERR_OTHER, f"a copy between GPU {self.device} and the host failed: {error}") from error

    def check_usable(self) -> None:
        """Raise unless copies of the array can be enqueued now; its device is current.

        Raises
        ------
        Exception
            ERR_BUFFER: the array was freed. ERR_OTHER: its stream is being captured.
        """
        self.check_alive()
        self._check_not_captured()

    def check_alive(self) -> None:
        """Raise ERR_BUFFER if the array was freed since it was given to the call."""
        if self.driver.buffer_id(self.address) != self.known.buffer_id:
            errors.fail(
                errors.ERR_BUFFER,
                f"the GPU memory at {self.address:#x} was freed since it was given to this call; "
                "keep the array until the request is complete (a persistent one: until it is freed)",
            )

    def _check_not_captured(self) -> None:
        if self.driver.is_capturing(self.stream.handle):
            errors.fail(
                errors.ERR_OTHER,
                f"the array's current stream ({self.stream.handle:#x}) is being captured into a graph, and this call has to wait for "
                "it; communicate outside of the capture",
            )

    def _wait(self) -> None:
        driver, handle = self.driver, self.stream.handle
        for _ in range(_POLLS):
            if driver.is_idle(handle):
                return
        if runtime.is_active():
            runtime.engine().idle_wait(lambda: driver.is_idle(handle), f"wait for a stream of GPU {self.device}")
        else:
            driver.synchronize(handle)


class _Current:
    """A device current while a body runs. A class: a generator costs a message several microseconds."""

    __slots__ = ("_before", "_memory")

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._before: int | None = None

    def __enter__(self) -> Driver:
        memory = self._memory
        driver, device = memory.driver, memory.known.device
        try:
            self._before = driver.current_device()
            if self._before != device:
                driver.use(device)
        except DriverError as error:
            memory.fail(error)
        return driver

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None) -> None:
        memory, before = self._memory, self._before
        try:
            if before is not None and before != memory.known.device:
                memory.driver.use(before)
        except DriverError as error:
            memory.fail(error)
        if isinstance(raised, DriverError):
            memory.fail(raised)


def keep_for_good(owner: Any) -> None:
    """Never let go of the owner of memory that the GPU may still write to or read."""
    _unfinished.append(owner)


_unfinished: list[Any] = []


def at(address: int) -> DeviceMemory | None:
    """The GPU memory that an address is in, None for the host's; without an array there is only the legacy stream to go by."""
    driver = drivers.current()
    known = None if driver is None or not address else driver.memory(address)
    if driver is None or known is None or known.device < 0:
        return None
    return DeviceMemory(driver, known, address, LEGACY)


def check_readable(address: int, nbytes: int) -> None:
    """Raise BufferError unless the CPU can read what an object says is a GPU's, and the driver does not know.

    Protocols of GPU arrays are spoken over host memory too. A freed array is neither, and reading it would end the program; so the
    kernel is asked to read it.
    """
    reader, writer = os.pipe()
    try:
        for byte in (address, address + nbytes - 1):
            if _libc.write(writer, byte, 1) != 1:
                raise BufferError(
                    f"the driver knows no GPU memory at {address:#x}, and it is not the host's either: was the array freed?"
                )
    finally:
        os.close(reader)
        os.close(writer)


_libc = ctypes.CDLL(None)
_libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]

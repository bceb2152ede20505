"""Memory of a GPU as a call borrows it: where it is, in which stream it may be touched, and whether it is still there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    @contextmanager
    def current(self) -> Iterator[Driver]:
        """Lend the driver, with the device current in this thread.

        Raises
        ------
        Exception
            ERR_OTHER: the driver failed.
        """
        driver = self.driver
        before = driver.current_device()
        try:
            if before != self.device:
                driver.use(self.device)
            yield driver
        except DriverError as error:
            errors.fail(errors.ERR_OTHER, f"a copy between GPU {self.device} and the host failed: {error}")
        finally:
            if before not in (None, self.device):
                driver.use(before)

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

"""Copies of parts of an array that are under way, each in a stream of its own, so that each can be waited for by itself."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from ncclx_mpi import errors, runtime
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from numba_kernels.cuda.driver import Driver


class Copies:
    """Copies from or to an array, over in the order in which they began.

    Parameters
    ----------
    memory
        The array's memory.
    after
        An event that comes before all of them, None if there is nothing to wait for.
    """

    def __init__(self, memory: DeviceMemory, after: Any = None) -> None:
        self.memory = memory
        self._after = after
        self._under_way: deque[tuple[int, int]] = deque()

    @property
    def are_under_way(self) -> bool:
        """Whether the GPU may still read and write what copies were begun of."""
        return bool(self._under_way)

    def begin(self, target: int, source: int, nbytes: int) -> None:
        """Begin a copy; one end is in the array, the other anywhere that its GPU can reach. Raises as :meth:`begin_all`."""
        self.begin_all([(target, source, nbytes)])

    def begin_all(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Begin copies, each a target, a source and bytes, that are waited for together.

        Raises
        ------
        Exception
            ERR_BUFFER: the array was freed. ERR_OTHER: the driver failed.
        """
        memory = self.memory
        with memory.current() as driver:
            memory.check_alive()
            stream = _take(driver, memory.device)
            if self._after is not None:
                driver.wait(stream, self._after)
            self._under_way.append((stream, sum(nbytes for _, _, nbytes in moves)))
            for target, source, nbytes in moves:
                driver.copy(target, source, nbytes, stream)

    def wait(self) -> None:
        """Wait until all are over; messages move on meanwhile.

        Raises
        ------
        Exception
            ERR_OTHER: a copy failed. ERR_PROC_FAILED: a rank died. ERR_PENDING: the deadline passed.
        """
        if runtime.is_active():
            runtime.engine().idle_wait(self._are_over, f"wait for a copy of memory of GPU {self.memory.device}")
            return
        with self.memory.current() as driver:
            for stream, _ in self._under_way:
                driver.synchronize(stream)
        self.ended()

    def join(self) -> None:
        """Have what the array's stream gets from now on come after them, if the driver still can: nobody waits for them any more."""
        memory = self.memory
        with contextlib.suppress(errors.Exception), memory.current() as driver:
            for stream, _ in self._under_way:
                driver.wait(memory.stream.handle, driver.record(stream))

    def _are_over(self) -> bool:
        self.ended()
        return not self._under_way

    def ended(self) -> int:
        """Bytes of the copies that are over, each told once.

        Raises
        ------
        Exception
            ERR_OTHER: a copy failed.
        """
        total = 0
        with self.memory.current() as driver:
            while self._under_way and driver.is_idle(self._under_way[0][0]):
                stream, nbytes = self._under_way.popleft()
                _streams(driver, self.memory.device).append(stream)
                total += nbytes
        return total


_idle: weakref.WeakKeyDictionary[Driver, dict[int, list[int]]] = weakref.WeakKeyDictionary()
"""Streams in which nothing is under way, by the GPU they are on."""


def _streams(driver: Driver, device: int) -> list[int]:
    return _idle.setdefault(driver, {}).setdefault(device, [])


def _take(driver: Driver, device: int) -> int:
    try:
        return _streams(driver, device).pop()
    except IndexError:
        return driver.create_stream()

"""Where a kernel under test runs: threads one after another on the CPU, or a GPU. Memory is checked around what is written."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from numba_kernels.cuda.driver import Driver
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.library import Library

GUARD = 64
_FILLER = 0xA5


class Placed:
    """A copy of an array in a machine's memory, `offset` bytes off a multiple of 64, between guard bytes."""

    def __init__(self, machine: Machine, array: np.ndarray, offset: int) -> None:
        self.dtype, self.count, self.nbytes = array.dtype, len(array), array.nbytes
        room = array.nbytes + 3 * GUARD
        self.block = machine.allocate(room)
        self.start = GUARD + offset - self.block % GUARD
        self.room = room
        self.before = np.full(room, _FILLER, np.uint8)
        self.before[self.start : self.start + self.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        machine.put(self.block, self.before)
        self.machine = machine

    @property
    def address(self) -> int:
        return self.block + self.start

    def read(self) -> np.ndarray:
        """What is there now; checks the guard bytes."""
        now = self.machine.get(self.block, self.room)
        inside = slice(self.start, self.start + self.nbytes)
        result = now[inside].copy()
        now[inside] = self.before[inside]
        assert (now == self.before).all(), "bytes around the array were written"
        return result.view(self.dtype)


class Machine:
    """The CPU."""

    def __init__(self) -> None:
        self._memory: list[np.ndarray] = []

    def place(self, array: np.ndarray, offset: int = 0) -> Placed:
        return Placed(self, array, offset)

    def allocate(self, nbytes: int) -> int:
        self._memory.append(np.empty(nbytes, np.uint8))
        return self._memory[-1].ctypes.data

    def put(self, address: int, content: np.ndarray) -> None:
        ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def get(self, address: int, nbytes: int) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(address, nbytes), np.uint8).copy()

    def run(self, kernel: Kernel, *arguments: int, threads: int = 7) -> None:
        kernel.on_cpu(threads, *arguments)

    def free(self) -> None:
        """Give all memory back."""
        self._memory.clear()


class Gpu(Machine):
    """The first GPU, through the driver."""

    def __init__(self) -> None:
        self.driver: Driver = Library(ctypes.CDLL("libcuda.so.1"))
        self.driver.use(0)
        self.stream = self.driver.create_stream()
        self._blocks: list[int] = []

    def allocate(self, nbytes: int) -> int:
        self._blocks.append(self.driver.allocate(nbytes))
        return self._blocks[-1]

    def put(self, address: int, content: np.ndarray) -> None:
        self.driver.copy(address, content.ctypes.data, content.nbytes, self.stream)
        self.driver.synchronize(self.stream)

    def get(self, address: int, nbytes: int) -> np.ndarray:
        content = np.empty(nbytes, np.uint8)
        self.driver.copy(content.ctypes.data, address, nbytes, self.stream)
        self.driver.synchronize(self.stream)
        return content

    def run(self, kernel: Kernel, *arguments: int, threads: int = 7) -> None:
        """Launch 3 blocks, or as many as make `threads`; one where threads of a kernel must see each other and are too few for that."""
        width = min(threads, kernel.launch_bounds)
        blocks = -(-threads // width) if threads > width else 3
        self.driver.launch(kernel, self.stream, blocks if kernel.fits(blocks, width) else 1, width, arguments)
        self.driver.synchronize(self.stream)

    def free(self) -> None:
        for block in self._blocks:
            self.driver.free(block)
        self._blocks.clear()


MACHINES = [pytest.param(Machine, id="cpu"), pytest.param(Gpu, id="gpu", marks=pytest.mark.gpu)]

"""What a process runs on a GPU for collectives: kernels on tables, in a stream of its own.

A table says what a kernel does (:mod:`numba_kernels.cuda.copy`, :mod:`numba_kernels.cuda.reduce_rows`). It is uploaded to device memory
when it is first used, and stays there until the room is needed for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from numba_kernels.cuda.driver import Driver, DriverError, Launchable
from numba_kernels.cuda.driver import Launch as BoundLaunch
from numba_kernels.cuda.limits import GROUP

TABLE_BYTES = 4 << 20
"""Device memory for tables."""
BLOCKS_A_PROCESSOR = 4
"""Blocks of a launch for each multiprocessor; work is cut so that each has about one piece."""
LEAST_PIECE = 16 << 10
"""Bytes below which work is not cut up further."""
_ALIGNMENT = 256
_LEAST_ROOM = 16 << 10


class Launch:
    """A kernel and what it works on.

    Parameters
    ----------
    kernel, blocks, threads
        What is launched, and on how much of the GPU.
    arguments
        What it takes; behind the address of the table if it has one.
    table
        Words that are uploaded before the first launch.
    """

    __slots__ = ("arguments", "blocks", "enqueue", "kernel", "round", "table", "threads")

    def __init__(
        self, kernel: Launchable, blocks: int, threads: int, arguments: tuple[int, ...], table: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.kernel, self.blocks, self.threads = kernel, blocks, threads
        self.arguments = arguments
        self.table = table
        self.enqueue: Callable[[], None] | None = None
        self.round = -1


def on_table(kernel: Launchable, table: npt.NDArray[np.int64]) -> Launch:
    """The launch of a kernel on a table of rows, which the groups of threads share out among them."""
    return Launch(kernel, len(table), GROUP, (len(table),), table)


class Room:
    """Device memory of an executor; it is used for something else when nothing refers to it any more, in the executor's stream.

    Attributes
    ----------
    address, nbytes
        Where it is, and how large at least.
    """

    __slots__ = ("_idle", "address", "nbytes")

    def __init__(self, idle: dict[int, list[int]], address: int, nbytes: int) -> None:
        self._idle = idle
        self.address, self.nbytes = address, nbytes

    def __del__(self) -> None:
        self._idle.setdefault(self.nbytes, []).append(self.address)


class Executor:
    """A stream and tables on one GPU, for all communicators and threads of the process.

    Parameters
    ----------
    driver
        The driver functions.
    device
        Ordinal of the GPU; current in the calling thread here and in all methods.

    Attributes
    ----------
    blocks
        Most blocks of a launch.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._stream = driver.create_stream()
        self._tables = driver.allocate(TABLE_BYTES)
        self.blocks = BLOCKS_A_PROCESSOR * driver.multiprocessors(device)
        self._round = self._used = 0
        self._loaded: set[str] = set()
        self._idle: dict[int, list[int]] = {}
        self._writers: dict[int, Callable[[int, int], None]] = {}
        self._guard = threading.Lock()

    def piece(self, nbytes: int) -> int:
        """Bytes of the pieces into which work on altogether `nbytes` is best cut."""
        return max(LEAST_PIECE, -(-nbytes // (self.blocks * LEAST_PIECE)) * LEAST_PIECE)

    def prepare(self, launch: Launch) -> Launch:
        """Make sure that a launch can be run: the kernel is loaded, by running it on nothing, and its table fits.

        Raises
        ------
        DriverError, CompilerMissing
            It cannot be run here.
        """
        kernel, table = launch.kernel, launch.table
        if table is not None and table.nbytes > TABLE_BYTES:
            raise DriverError(0, f"a table of {len(table)} rows is too large")
        with self._guard:
            if kernel.name not in self._loaded:
                nothing = (self._tables, 0) if table is not None else (0,) * len(launch.arguments)
                self._driver.launch(kernel, self._stream, 1, launch.threads, nothing)
                self._loaded.add(kernel.name)
        return launch

    def room(self, nbytes: int) -> Room:
        """Lend device memory for what is enqueued here."""
        size = max(_LEAST_ROOM, 1 << (nbytes - 1).bit_length())
        with self._guard:
            idle = self._idle.get(size)
            return Room(self._idle, idle.pop() if idle else self._driver.allocate(size), size)

    def upload(self, target: int, words: npt.NDArray[np.int64]) -> None:
        """Enqueue a copy to device memory; `words` may go at once."""
        self._driver.copy(target, words.ctypes.data, words.nbytes, self._stream)

    def run(self, launches: Sequence[Launch], done: int, number: int) -> None:
        """Enqueue launches, and behind them the write of `number` to the word at `done`."""
        with self._guard:
            for launch in launches:
                if launch.enqueue is None or launch.round != self._round:
                    launch.enqueue = self._bind(launch)
                launch.enqueue()
            self._writer(done)(self._stream, number)

    def _bind(self, launch: Launch) -> Callable[[], None]:
        """What enqueues a launch, for as long as its table stays where it is."""
        arguments = launch.arguments
        if launch.table is not None:
            arguments = self._upload(launch.table), *arguments
        launch.round = self._round
        bound = BoundLaunch(launch.kernel, min(self.blocks, launch.blocks), launch.threads, arguments)
        return self._driver.bind(self._stream, [bound])

    def _writer(self, address: int) -> Callable[[int, int], None]:
        """What writes a word, one for each."""
        return self._writers.get(address) or self._writers.setdefault(address, self._driver.writer(address))

    def drain(self) -> None:
        """Wait until nothing is under way: no kernel waits for anybody, so that does not take long."""
        self._driver.synchronize(self._stream)

    def _upload(self, table: npt.NDArray[np.int64]) -> int:
        """Find room for a table: its address. Where that of others is taken, their last launches come before the copy in the stream."""
        nbytes = -(-table.nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._used + nbytes > TABLE_BYTES:
            self._round, self._used = self._round + 1, 0
        address = self._tables + self._used
        self._used += nbytes
        self._driver.copy(address, table.ctypes.data, table.nbytes, self._stream)
        return address

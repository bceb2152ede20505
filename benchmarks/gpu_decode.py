"""A decode loop with a mixture of experts: counts that stay on the GPU, against counts that the host exchanges, and against padding.

Each rank has 128 tokens. A step is four things in one stream: *route* sorts copies of the tokens by expert and writes how many each
expert gets, *dispatch* takes them to the experts' ranks, *expert* computes, *combine* takes the results back. All three ways run
the same kernels, and are checked to the bit:

=========  ==============================================================================================================
way        what is different
=========  ==============================================================================================================
ours       nothing: 100 steps are enqueued, then waited for
by host    before each dispatch the counts are copied to the host, which waits for them and exchanges them (Allgather)
padded     every rank is sent room for all tokens, whatever the counts; the experts compute on it
=========  ==============================================================================================================

Part of ``benchmarks/gpu.py``, which starts the ranks and prints the table.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numba_kernels.cuda.driver import Driver
from numba_kernels.cuda.intrinsics import load_i64, load_vector, store_i64, store_vector
from numba_kernels.cuda.kernel import Kernel

WAYS = ("ours", "by host", "padded")
WAITING = ("synchronize", "is_idle", "synchronize_device")
"""Driver functions by which a host waits for a GPU."""
EXPERTS_EACH, TABLES = 4, 16
"""Experts of a rank; routings that the steps take turns with."""
VECTOR, THREADS = 16, 512
_PAGE = 4096


def route(thread, threads, states, order, rows, vectors, outbox, lengths, splits, count):
    """Copy state ``order[row]`` to each row of the outbox, and the lengths to the splits."""
    i = thread
    while i < rows * vectors:
        row = i // vectors
        source = states + (load_i64(order + 8 * row) * vectors + i - row * vectors) * VECTOR
        store_vector(outbox + i * VECTOR, load_vector(source))
        i += threads
    i = thread
    while i < count:
        store_i64(splits + 8 * i, load_i64(lengths + 8 * i))
        i += threads


def expert(thread, threads, areas, sources, pitch, every, segments, first, taken, vectors):
    """Add 1 to each word of the rows that are there: of each source, what segments `first` to `first` + `taken` say."""
    for source in range(sources):
        rows = 0
        for segment in range(first, first + taken):
            rows += load_i64(every + 8 * (source * segments + segment))
        begin, i = areas + source * pitch, thread
        while i < rows * vectors:
            a, b, c, d = load_vector(begin + i * VECTOR)
            store_vector(begin + i * VECTOR, (a + 1, b + 1, c + 1, d + 1))
            i += threads


ROUTE = Kernel("decode_route", route, parameters=8)
EXPERT = Kernel("decode_expert", expert, parameters=8)


class Shape(NamedTuple):
    """Tokens of a rank, bytes of a state, experts for each token, and steps that are measured."""

    tokens: int = 128
    state_bytes: int = 7168 * 2
    top: int = 1
    steps: int = 100


class Block:
    """Device memory with the array interface, used in one stream."""

    def __init__(self, driver: Driver, stream: int, values: npt.NDArray[Any]) -> None:
        self.driver, self.stream, self.shape, self.dtype = driver, stream, values.shape, values.dtype
        self.nbytes = values.nbytes
        self.address = driver.allocate(max(values.nbytes, VECTOR))
        self.put(values)

    def put(self, values: npt.NDArray[Any]) -> None:
        """Copy from the host; complete on return."""
        self.driver.copy(self.address, values.ctypes.data, self.nbytes, self.stream)
        self.driver.synchronize(self.stream)

    def get(self) -> npt.NDArray[Any]:
        """Copy to the host, after what the stream holds."""
        values = np.empty(self.shape, self.dtype)
        self.driver.copy(values.ctypes.data, self.address, self.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        return values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "stream": self.stream}


class Decoder:
    """One rank's part, in one of the ways.

    Parameters
    ----------
    comm
        A prepared communicator.
    """

    def __init__(self, comm: Any, driver: Driver, stream: int, way: str, shape: Shape) -> None:
        from mpi4py import MPI

        self.comm, self.driver, self.stream, self.way, self.shape = comm, driver, stream, way, shape
        self.grid = 4 * driver.multiprocessors(driver.current_device() or 0)
        size, copies = comm.size, shape.tokens * shape.top
        is_padded = way == "padded"
        self.segments = size if is_padded else size * EXPERTS_EACH
        self.rows = size * copies if is_padded else copies
        self.pitch = copies * shape.state_bytes
        self.orders, self.lengths = self.routings(is_padded)

        def block(values: npt.NDArray[Any]) -> Block:
            return Block(driver, stream, values)

        def empty(*shape: int) -> Block:
            return block(np.zeros(shape, np.int64))

        words = shape.state_bytes // 8
        self.states = block(np.random.default_rng(comm.rank).integers(0, 1 << 60, (shape.tokens, words)))
        self.order, self.wanted = block(self.orders), block(self.lengths)
        self.outbox, self.inbox = empty(self.rows, words), empty(self.rows, words)
        self.areas = empty(size, copies, words)
        self.splits, self.every = empty(self.segments), empty(size, self.segments)
        self.token = MPI.INT64_T.Create_contiguous(words).Commit()
        pinned = np.zeros(3 * _PAGE // 8, np.int64)
        self.page = -(-pinned.ctypes.data // _PAGE) * _PAGE
        driver.register_host(self.page, _PAGE)
        first = (self.page - pinned.ctypes.data) // 8
        self.counts = pinned[first : first + self.segments]
        self.all_counts = np.zeros((size, self.segments), np.int64)
        areas = [self.areas, [copies] * size, self.token]
        self.dispatch = comm.Alltoallv_dynamic_init([self.outbox, self.token], areas, self.splits, allsplits=self.every)
        self.combine = comm.Alltoallv_dynamic_combine_init(areas, [self.inbox, self.token], self.every)

    def routings(self, is_padded: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """For each table the states in the order in which they are sent, and split lengths; some experts are much liked."""
        shape, size = self.shape, self.comm.size
        orders, lengths = [], []
        for table in range(TABLES):
            dice = np.random.default_rng((table, self.comm.rank))
            liking = dice.normal(size=(shape.tokens, size * EXPERTS_EACH))
            liking += 2 * np.random.default_rng(table).normal(size=size * EXPERTS_EACH)
            experts = np.argsort(-liking, axis=1)[:, : shape.top].reshape(-1)
            order = np.argsort(experts, kind="stable")
            counts = np.bincount(experts, minlength=size * EXPERTS_EACH)
            if is_padded:
                padded = np.zeros((size, len(order)), np.int64)
                ends = np.cumsum(counts.reshape(size, -1).sum(axis=1))
                for target, part in enumerate(np.split(order, ends[:-1])):
                    padded[target, : len(part)] = part // shape.top
                order, counts = padded.reshape(-1), np.full(size, len(order))
            else:
                order = order // shape.top
            orders.append(order)
            lengths.append(counts)
        return np.array(orders, np.int64), np.array(lengths, np.int64)

    def step(self, number: int) -> None:
        """Enqueue one step."""
        table, vectors = number % TABLES, self.shape.state_bytes // VECTOR
        order, lengths = self.order.address + 8 * table * self.rows, self.wanted.address + 8 * table * self.segments
        self.launch(ROUTE, self.states, order, self.rows, vectors, self.outbox, lengths, self.splits, self.segments)
        if self.way == "by host":
            self.exchange_on_host()
        self.dispatch.Start(stream=self.stream)
        each = self.segments // self.comm.size
        self.launch(
            EXPERT, self.areas, self.comm.size, self.pitch, self.every, self.segments, self.comm.rank * each, each, vectors
        )  # fmt: skip
        self.combine.Start(stream=self.stream)

    def launch(self, kernel: Kernel, *arguments: Any) -> None:
        given = [argument.address if isinstance(argument, Block) else argument for argument in arguments]
        self.driver.launch(kernel, self.stream, self.grid, THREADS, given)

    def exchange_on_host(self) -> None:
        """What a program does whose alltoall takes counts of the host."""
        self.driver.copy(self.page, self.splits.address, self.splits.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        self.comm.Allgather(self.counts, self.all_counts)

    def check(self) -> None:
        """Raise ValueError unless everything came back from the last step, with 1 added to each word of 4 bytes."""
        self.dispatch.check()
        self.combine.check()
        wanted = self.outbox.get().view(np.uint32) + np.uint32(1)
        if not (self.inbox.get().view(np.uint32) == wanted).all():
            raise ValueError(f"rank {self.comm.rank}: {self.way}: the tokens that came back are not the ones that were sent")

    def moved(self) -> float:
        """Bytes that this rank sends in a step on average, there and back."""
        return 2 * self.shape.state_bytes * float(self.lengths.sum()) / TABLES

    def free(self) -> None:
        """Give everything back."""
        self.dispatch.Free()
        self.combine.Free()
        self.token.Free()
        self.driver.unregister_host(self.page)
        for block in (self.states, self.order, self.wanted, self.outbox, self.inbox, self.areas, self.splits, self.every):
            self.driver.free(block.address)


@contextlib.contextmanager
def waits(driver: Driver) -> Iterator[list[str]]:
    """Names of the calls by which this process waits for a GPU while the body runs."""
    made: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(driver, name)

        def call(*arguments: Any) -> Any:
            made.append(name)
            return function(*arguments)

        return call

    for name in WAITING:
        setattr(driver, name, counted(name))
    try:
        yield made
    finally:
        for name in WAITING:
            delattr(driver, name)


class Measured(NamedTuple):
    """What a way takes.

    Attributes
    ----------
    seconds
        For a step, on the slowest rank.
    enqueue_seconds
        On the host, for one ``Start`` among many; the slowest rank's.
    waits
        Calls by which a rank waits for its GPU in all steps.
    bytes
        That all ranks send in a step, on average.
    """

    seconds: float
    enqueue_seconds: float
    waits: int
    bytes: float


def measure(comm: Any, driver: Driver, stream: int, way: str, shape: Shape) -> Measured:
    """Run and check one way in a stream; the communicator is prepared, and freed before the stream is."""
    decoder = Decoder(comm, driver, stream, way, shape)
    for number in range(2):
        decoder.step(number)
    decoder.check()
    comm.Barrier()
    begun = time.perf_counter()
    with waits(driver) as made:
        for number in range(shape.steps):
            decoder.step(number)
    driver.synchronize(stream)
    seconds = time.perf_counter() - begun
    decoder.check()
    comm.Barrier()
    begun = time.perf_counter()
    for _ in range(shape.steps):
        decoder.dispatch.Start(stream=stream)
    enqueuing = time.perf_counter() - begun
    driver.synchronize(stream)
    facts = comm.allgather((seconds / shape.steps, enqueuing / shape.steps, len(made), decoder.moved()))
    decoder.free()
    slowest, enqueued, waited, sent = zip(*facts, strict=True)
    return Measured(max(slowest), max(enqueued), max(waited), sum(sent))

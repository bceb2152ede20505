"""Calls in streams on arrays of any kind, as :mod:`tests.device.cases` has calls that are complete on return: (comm, make, length) -> arrays.

Each prepares a communicator of its own and waits for its streams only at the end. What was sent is overwritten as soon as it is
enqueued. :data:`IN_STREAMS` has for each what does the same with blocking calls on the host. Choices of one rank alone come from the
module :mod:`random`, which the test seeds.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import Double
from ncclx_mpi.testing.driver_double.arrays import in_use, using
from tests.device.cases import CASES, Do, Make, doing, empty, enqueuing, own
from tests.device.messages import spoil

Run = Callable[[Any, Make, int], list[Any]]

HEAP = 4 << 20
ENQUEUED = ("bcast", "allgather", "alltoall", "allreduce", "reduce_scatter_block")
REPLAYS = 3


def then_spoil(do: Do) -> Do:
    """Let what was sent be overwritten as soon as a collective is over, or its stream has passed it."""

    def carry_out(name: str, *arguments: Any, **named: Any) -> None:
        do(name, *arguments, **named)
        sent = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
        if name != "Bcast" and sent is not None and sent is not MPI.IN_PLACE:
            spoil(sent)

    return carry_out


@contextlib.contextmanager
def prepared(comm: Any, count: int = 1) -> Iterator[tuple[Any, Double, list[int]]]:
    """A prepared duplicate, the driver, and streams in which it was used; at the end everything in them is over, and was right."""
    driver = in_use()
    duplicate = comm.Dup()
    duplicate.prepare(HEAP, [(op, MPI.INT64_T) for op in (MPI.SUM, MPI.MAX)])
    streams = [driver.create_stream(is_blocking=random.random() < 0.3) for _ in range(count)]
    yield duplicate, driver, streams
    for stream in streams:
        driver.finish(stream)
    duplicate.check()
    duplicate.Free()
    for stream in streams:
        driver.destroy_stream(stream)


def collective(name: str, comm: Any, make: Make, length: int) -> list[Any]:
    with prepared(comm) as (duplicate, _, (stream,)), using(stream):
        duplicate.in_stream(stream).Barrier()
        return CASES[name](duplicate, then_spoil(enqueuing(duplicate, stream)), make, length)


def collective_on_host(name: str, comm: Any, make: Make, length: int) -> list[Any]:
    return CASES[name](comm, doing(comm, "blocking"), make, length)


def many_streams(comm: Any, make: Make, length: int) -> list[Any]:
    """Calls of one communicator in streams that each rank chooses: they follow each other nevertheless."""
    found = []
    with prepared(comm, 3) as (duplicate, _, streams):
        for turn in range(5):
            stream = random.choice(streams)
            with using(stream):
                found += exchange(comm, enqueuing(duplicate, stream), make, length, turn)
    return found


def many_on_host(comm: Any, make: Make, length: int) -> list[Any]:
    return [array for turn in range(5) for array in exchange(comm, doing(comm, "blocking"), make, length, turn)]


def exchange(comm: Any, do: Do, make: Make, length: int, turn: int) -> list[Any]:
    """The same sizes at every turn, so that arrays come back at addresses of earlier ones."""
    sent, turned, total = make(own(comm, length * comm.size, turn)), make(empty(length * comm.size)), make(own(comm, length, turn))
    do("Alltoall", sent, turned)
    spoil(sent)
    do("Allreduce", MPI.IN_PLACE, total, MPI.SUM)
    return [turned, total]


class Chain:
    """Calls that take what the one before brought, on arrays that stay: a graph, replayed with other values."""

    def __init__(self, comm: Any, make: Make, length: int) -> None:
        self.comm, self.make, self.length = comm, make, min(length, 1000)
        whole = self.length * comm.size
        self.given, self.turned, self.gathered = (make(empty(whole)) for _ in range(3))
        self.part = make(empty(self.length))

    def call(self, do: Do) -> None:
        do("Alltoall", self.given, self.turned)
        do("Reduce_scatter_block", self.turned, self.part, MPI.MAX)
        do("Allgather", self.part, self.gathered)
        do("Allreduce", MPI.IN_PLACE, self.gathered, MPI.SUM)
        do("Bcast", self.gathered, root=self.comm.size - 1)

    def give(self, turn: int, assign: Callable[..., None]) -> None:
        assign(np.copyto, self.given, own(self.comm, self.length * self.comm.size, turn))

    def take(self, assign: Callable[..., None]) -> list[Any]:
        """Copies of what has come, which is overwritten then."""
        kept = []
        for array in (self.turned, self.part, self.gathered):
            kept.append(self.make(empty(array.size)))
            assign(np.copyto, kept[-1], array)
            spoil(array)
        return kept


def graph(comm: Any, make: Make, length: int) -> list[Any]:
    """A graph that is replayed, in a stream in which other calls are enqueued meanwhile."""

    def later(function: Callable[..., None], target: Any, source: Any) -> None:
        if isinstance(source, np.ndarray):
            target.later(lambda values: function(values, source))
        else:
            target.later(function, "copy", source)

    with prepared(comm, 2) as (duplicate, driver, (stream, other)):
        found, eager = [], enqueuing(duplicate, other)
        with using(stream):
            chain = Chain(comm, make, length)
            driver.begin_capture(stream)
            chain.call(enqueuing(duplicate, stream))
            recorded = driver.end_capture(stream)
        for turn in range(REPLAYS):
            with using(stream):
                chain.give(turn, later)
                driver.replay(recorded, stream)
                spoil(chain.given)
                found += chain.take(later)
            with using(other):
                found += exchange(comm, eager, make, chain.length, turn)
        return found


def graph_on_host(comm: Any, make: Make, length: int) -> list[Any]:
    chain, do = Chain(comm, make, length), doing(comm, "blocking")
    found: list[Any] = []
    for turn in range(REPLAYS):
        chain.give(turn, lambda function, *arrays: function(*arrays))
        chain.call(do)
        found += chain.take(lambda function, *arrays: function(*arrays))
        found += exchange(comm, do, make, chain.length, turn)
    return found


def started(comm: Any, make: Make, length: int, *, is_captured: bool) -> list[Any]:
    """To and fro with lengths that arrive late, twice; each time the areas are overwritten behind it."""
    splits = split_lengths(comm, length)
    total, room = int(splits.sum()), 2 * length
    with prepared(comm) as (duplicate, driver, (stream,)), using(stream):
        sent, back, lengths = make(own(comm, total)), make(empty(total)), make(splits)
        areas = make(empty(comm.size * room).reshape(comm.size, room))
        every = make(empty(2 * comm.size**2).reshape(comm.size, -1))
        requests = [
            duplicate.Alltoallv_dynamic_init(sent, areas, lengths, allsplits=every),
            duplicate.Alltoallv_dynamic_combine_init(areas, back, every),
        ]

        def start() -> None:
            for request in requests:
                request.Start(stream=stream)

        again = start
        if is_captured:
            driver.begin_capture(stream)
            start()
            recorded = driver.end_capture(stream)
            again = partial(driver.replay, recorded, stream)
        again()
        spoil(areas)
        spoil(every)
        again()
        driver.finish(stream)
        for request in requests:
            request.check()
            request.Free()
        return [every, back]


def started_on_host(comm: Any, make: Make, length: int) -> list[Any]:
    splits = split_lengths(comm, length)
    every = np.empty((comm.size, 2 * comm.size), splits.dtype)
    comm.Allgather(splits, every)
    return [every, own(comm, int(splits.sum()))]


def split_lengths(comm: Any, length: int) -> np.ndarray:
    """Of two segments for each rank."""
    return np.array([length // (1 + (comm.rank + segment) % 3) for segment in range(2 * comm.size)])


class InStreams(NamedTuple):
    """What enqueues calls, and what does the same on the host."""

    run: Run
    reference: Run


IN_STREAMS: dict[str, InStreams] = {
    **{name: InStreams(partial(collective, name), partial(collective_on_host, name)) for name in ENQUEUED},
    "many streams": InStreams(many_streams, many_on_host),
    "graph": InStreams(graph, graph_on_host),
    "dynamic": InStreams(partial(started, is_captured=False), started_on_host),
    "dynamic, graph": InStreams(partial(started, is_captured=True), started_on_host),
}

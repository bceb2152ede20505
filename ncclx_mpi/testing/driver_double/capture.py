"""Streams under capture: what would have run is kept, with its order, and runs at each replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ncclx_mpi.testing.driver_double.streams import Executor, Operation, Stream


@dataclass
class Event:
    """A point in a stream: the operation that was its last one. Under capture, `capture` is what it belongs to."""

    operation: Operation | None
    capture: Capture | None = None


@dataclass(eq=False)
class Capture:
    """What streams would have done since one of them began to be captured.

    Attributes
    ----------
    origin
        The stream on which it began.
    tails
        Last captured operation of each stream that joined.
    is_global
        Whether calls that may synchronise are refused meanwhile, in all threads.
    invalid
        Why it cannot be ended well any more.
    """

    origin: Stream
    is_global: bool
    operations: list[tuple[Stream, Operation]] = field(default_factory=list)
    tails: dict[Stream, Operation | None] = field(default_factory=dict)
    waits: dict[Stream, tuple[Operation, ...]] = field(default_factory=dict)
    invalid: str = ""

    def add(self, stream: Stream, operation: Operation) -> None:
        """Take an operation in, after the stream's last one and the events it has waited for."""
        before = self.tails.get(stream)
        operation.after = (*self.waits.pop(stream, ()), *((before,) if before is not None else ()))
        self.operations.append((stream, operation))
        self.tails[stream] = operation

    def join(self, stream: Stream, event: Operation | None) -> None:
        """Let what follows in `stream` wait for a captured operation; captures the stream from now on."""
        self.tails.setdefault(stream, None)
        if event is not None:
            self.waits[stream] = (*self.waits.get(stream, ()), event)

    def graph(self, new_stream: Callable[[int], Stream]) -> Graph:
        """What was captured, on streams of its own; `new_stream` makes one of a device."""
        inner = {stream: new_stream(stream.device) for stream in self.tails}
        return Graph([(inner[stream], operation) for stream, operation in self.operations])

    def unjoined(self) -> list[Stream]:
        """Streams whose last operation nothing in the origin follows."""
        reached: set[Operation] = set()
        last = self.tails.get(self.origin)
        todo = list(self.waits.get(self.origin, ())) + ([last] if last is not None else [])
        while todo:
            operation = todo.pop()
            if operation not in reached:
                reached.add(operation)
                todo.extend(operation.after)
        return [stream for stream, tail in self.tails.items() if tail is not None and tail not in reached]


@dataclass(frozen=True)
class Graph:
    """Captured operations, each in a queue and with those that it comes after."""

    operations: Sequence[tuple[Stream, Operation]]

    def replay(self, executor: Executor, stream: Stream) -> None:
        """Enqueue everything behind what `stream` holds; what follows in it comes after everything."""
        begin = Operation("begin of a graph")
        executor.push(stream, begin)
        made: dict[Operation, Operation] = {}
        for queue, operation in self.operations:
            made[operation] = operation.again((begin, *(made[other] for other in operation.after)))
            executor.push(queue, made[operation])
        executor.push(stream, Operation("end of a graph", after=tuple(made.values())))

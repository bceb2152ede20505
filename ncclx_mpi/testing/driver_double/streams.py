"""The streams of the double: queues whose heads one thread runs as late, and as much out of order, as the rules allow.

The rules: operations of one stream run in order; an operation runs after the events it waits for; what is in the legacy default
stream runs after all that the blocking streams of its device held before, and they go on after it; a wait for a word
holds its stream up. Everything else is drawn from the seed: each operation is due some time after the one before it in its stream, and
of those that may run the one runs that is due first.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ncclx_mpi.testing.driver_double.memory import Fault

_PAUSES = (0.0, 20e-6, 100e-6, 400e-6)
_SLOWNESS = (0.0, 1.0, 1.0, 6.0)
_LONGEST = 5e-3
_POLL, _LONGEST_POLL, _IDLE_POLL = 50e-6, 1e-3, 0.25


@dataclass(eq=False)
class Operation:
    """Something enqueued.

    Attributes
    ----------
    text
        What it does, for reports.
    act
        Does it.
    word, value
        For waits: loads the word that, taken cyclically, must be at least the value.
    after
        Operations of other streams that come first.
    """

    text: str
    act: Callable[[], None] = lambda: None
    word: Callable[[], int] | None = None
    value: int = 0
    after: tuple[Operation, ...] = ()
    due: float = 0.0
    is_done: bool = False

    @property
    def is_ready(self) -> bool:
        return self.word is None or (self.word() - self.value) % (1 << 64) < 1 << 63

    def again(self, after: tuple[Operation, ...]) -> Operation:
        """The same once more, for a replay."""
        return Operation(self.text, self.act, self.word, self.value, after)

    def __str__(self) -> str:
        try:
            return self.text if self.word is None else f"{self.text}, which holds {self.word()}"
        except Fault as fault:
            return f"{self.text}: {fault}"


@dataclass(eq=False)
class Stream:
    """A queue.

    Attributes
    ----------
    handle, device
        Its number, and the ordinal of its device.
    is_blocking
        Whether it synchronises with the legacy default stream.
    tail
        The last operation enqueued.
    """

    handle: int
    device: int
    is_blocking: bool
    slowness: float = 1.0
    queue: deque[Operation] = field(default_factory=deque)
    tail: Operation | None = None

    @property
    def is_idle(self) -> bool:
        return self.tail is None or self.tail.is_done

    def __str__(self) -> str:
        return {0: "legacy default stream", 2: "per-thread default stream"}.get(self.handle, f"stream {self.handle:#x}")


class Executor:
    """The thread that runs what streams hold.

    Parameters
    ----------
    seed
        Of all delays and choices.
    on_fault
        Told what went wrong in an operation.
    on_stalled
        Called now and then while nothing can run, with whether streams are blocked.
    on_move
        Called, with the lock, before and after each operation.

    Attributes
    ----------
    changed
        Lock of everything in the double; notified when an operation is done.
    """

    def __init__(
        self, seed: int, on_fault: Callable[[str], None], on_stalled: Callable[[bool], None], on_move: Callable[[], None]
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._streams: list[Stream] = []
        self.reseed(seed)
        self._on_fault = on_fault
        self._on_stalled = on_stalled
        self._on_move = on_move
        self._started = time.monotonic()
        self._held_at: float | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="driver double", daemon=True)

    def start(self) -> None:
        """Begin to run what streams hold; whoever made this is ready to be called from now on."""
        self._thread.start()

    def reseed(self, seed: int) -> None:
        """Draw from another seed from now on."""
        with self.changed:
            self._random = random.Random(seed)
            self._pause = self._random.choice(_PAUSES)
            for stream in self._streams:
                stream.slowness = self._random.choice(_SLOWNESS)

    def stream(self, handle: int, device: int, *, is_blocking: bool) -> Stream:
        """A new stream; the caller holds the lock."""
        made = Stream(handle, device, is_blocking, self._random.choice(_SLOWNESS))
        self._streams.append(made)
        return made

    def forget(self, stream: Stream) -> None:
        """Drop a stream that holds nothing any more, or once it does."""
        if stream.is_idle:
            self._streams.remove(stream)
        else:
            self.push(stream, Operation("destruction", lambda: self._streams.remove(stream)))

    def push(self, stream: Stream, *operations: Operation) -> None:
        """Enqueue, in order; the caller holds the lock."""
        for operation in operations:
            operation.after += self._implicit(stream)
            delay = min(self._random.expovariate(1.0) * self._pause * stream.slowness, _LONGEST)
            before = stream.tail.due if stream.tail is not None else 0.0
            operation.due = max(self._now(), before) + delay
            stream.queue.append(operation)
            stream.tail = operation
        self.changed.notify_all()

    def _implicit(self, stream: Stream) -> tuple[Operation, ...]:
        """What the legacy default stream and the blocking streams of its device wait for in each other."""
        if stream.handle != 0 and not stream.is_blocking:
            return ()
        others = [other for other in self._streams if other.device == stream.device and other is not stream]
        wanted = [other for other in others if (other.is_blocking if stream.handle == 0 else other.handle == 0)]
        return tuple(other.tail for other in wanted if other.tail is not None and not other.tail.is_done)

    def hold(self, is_held: bool) -> None:
        """Run nothing, so that what is enqueued meanwhile runs in an order that the seed alone decides."""
        with self.changed:
            if is_held and self._held_at is None:
                self._held_at = self._now()
            elif not is_held and self._held_at is not None:
                self._started = time.monotonic() - self._held_at
                self._held_at = None
            self.changed.notify_all()

    def is_drained(self) -> bool:
        """Whether no stream holds anything."""
        return all(stream.is_idle for stream in self._streams)

    def tails(self, device: int) -> list[Operation]:
        """What to wait for to have waited for a device."""
        return [stream.tail for stream in self._streams if stream.device == device and stream.tail is not None]

    def blocked(self) -> list[str]:
        """Who waits for what, a line for each stream whose head cannot run."""
        with self.changed:
            return [f"{stream} of device {stream.device}: {self._why(stream.queue[0])}" for stream in self._streams if stream.queue]

    def _why(self, head: Operation) -> str:
        pending = [other.text for other in head.after if not other.is_done]
        return f"{head}, after {' and '.join(pending)} of other streams" if pending else str(head)

    def close(self) -> None:
        """End the thread; what it has not run is dropped."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()
        self._thread.join()

    def _now(self) -> float:
        return time.monotonic() - self._started if self._held_at is None else self._held_at

    def _work(self) -> None:
        """Run until closed; an error of the double itself must not leave anybody waiting."""
        try:
            self._run()
        except BaseException as error:
            self._on_fault(f"the double failed: {error!r}")
            raise

    def _run(self) -> None:
        poll = _POLL
        while True:
            with self.changed:
                if self._is_closing:
                    return
                stream, is_blocked = self._next()
                if stream is None:
                    self.changed.wait(poll if is_blocked else _IDLE_POLL)
                elif (early := stream.queue[0].due - self._now()) > 0:
                    self.changed.wait(early)
                    continue
                else:
                    self._on_move()
            if stream is None:
                poll = min(2 * poll, _LONGEST_POLL)
                self._on_stalled(is_blocked)
            else:
                self._do(stream)
                poll = _POLL

    def _next(self) -> tuple[Stream | None, bool]:
        """The stream whose head runs next, and whether there are only heads that cannot."""
        if self._held_at is not None:
            return None, False
        heads = [stream for stream in self._streams if stream.queue]
        free = [stream for stream in heads if all(other.is_done for other in stream.queue[0].after)]
        ready = [stream for stream in free if self._is_ready(stream.queue[0])]
        first = min(ready, key=lambda stream: stream.queue[0].due, default=None)
        return first, bool(heads)

    def _is_ready(self, operation: Operation) -> bool:
        try:
            return operation.is_ready
        except Fault as fault:
            self._on_fault(f"{operation.text}: {fault}")
            operation.word = None
            return True

    def _do(self, stream: Stream) -> None:
        """Run the head of a stream; what fails ends the program's use of the driver, not this thread."""
        operation = stream.queue[0]
        try:
            operation.act()
        except Fault as fault:
            self._on_fault(f"{operation.text}: {fault}")
        except Exception as error:
            self._on_fault(f"{operation.text}: {type(error).__name__}: {error}")
        with self.changed:
            stream.queue.popleft()
            operation.is_done = True
            operation.after = ()
            self._on_move()
            self.changed.notify_all()

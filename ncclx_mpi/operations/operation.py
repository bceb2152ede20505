"""What a request stands for, and what is made of several or of one again and again.

An operation is used in this order: ``wait()`` or ``poll()`` until it is done, ``fill(status)`` as often as wanted, then
``finish()`` once, which delivers the result and empties the operation (``settle()`` if a received object is not wanted). Whoever
called a ``wait()`` that failed calls ``abandon()``, as :func:`wait_for` does. Emptied, it is invalid for every request that still refers
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ncclx_mpi import errors
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from ncclx_mpi.p2p.engine import NativeComm, Result
from ncclx_mpi.state import State

if TYPE_CHECKING:
    from ncclx_mpi.api.status import Status

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

EMPTY = Result(ANY_SOURCE, ANY_TAG, 0, errors.SUCCESS, False)
ALREADY_ACTIVE = "the persistent request is active: wait for it before starting it again"
NOT_ACTIVE = "the persistent request is not active: there is nothing to cancel"
NO_PROC = Result(PROC_NULL, ANY_TAG, 0, errors.SUCCESS, False)


class Operation(State):
    """What a request stands for; this one is complete from the start, with a fixed status."""

    __slots__ = ("outcome",)
    WHAT = "request"
    ERROR = errors.ERR_REQUEST
    is_persistent = False

    def __init__(self, outcome: Result = EMPTY) -> None:
        self.outcome = outcome

    @property
    def is_active(self) -> bool:
        """Whether there is something to wait for."""
        return True

    @property
    def is_stepped(self) -> bool:
        """Whether polling moves it on, beyond what the engine does by itself: it must not wait behind another operation."""
        return False

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return True

    def wait(self) -> None:
        """Return when it is done."""

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, self.outcome)

    def finish(self) -> Any:
        """Deliver what a done operation brought, and empty it."""
        self.empty()

    def settle(self) -> None:
        """As :meth:`finish`, but make no Python object of what has come."""
        self.finish()

    def cancel(self) -> None:
        """Ask for its cancellation."""

    def release(self) -> None:
        """Give it up; it goes on by itself."""
        self.empty()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed: no buffer is touched any more."""
        self.release()


class Together(Operation):
    """Several operations waited for as one; the last gives the status."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Operation]) -> None:
        self.parts = parts

    @property
    def is_stepped(self) -> bool:
        """Whether polling moves one of them on."""
        return any(part.is_stepped for part in self.parts)

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        done = [part.poll() for part in self.parts]  # each, so that all move on
        return all(done)

    def wait(self) -> None:
        """Return when it is done."""
        for part in self.parts:
            part.wait()

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        self.parts[-1].fill(status)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        parts = self.parts
        self.empty()
        for part in parts:
            part.finish()

    def cancel(self) -> None:
        """Ask for its cancellation."""
        for part in self.parts:
            part.cancel()

    def release(self) -> None:
        """Give it up; it goes on by itself."""
        for part in self.parts:
            part.release()
        self.empty()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        for part in self.parts:
            part.abandon()
        self.empty()


class Persistent(Operation):
    """An operation that ``Start`` begins anew each time; between two times there is nothing to wait for."""

    __slots__ = ("begin", "current")
    is_persistent = True
    current: Operation | None

    def __init__(self, begin: Callable[[], Operation]) -> None:
        self.begin = begin
        self.current = None

    @property
    def is_active(self) -> bool:
        """Whether it was started and not yet finished."""
        return self.current is not None

    @property
    def is_stepped(self) -> bool:
        """Whether polling moves it on."""
        return self.current is not None and self.current.is_stepped

    def start(self) -> None:
        """Begin the operation."""
        if self.current is not None:
            errors.fail(errors.ERR_REQUEST, ALREADY_ACTIVE)
        self.current = self.turn()

    def turn(self) -> Operation:
        """What one start begins."""
        return self.begin()

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.current is None or self.current.poll()

    def wait(self) -> None:
        """Return when it is done."""
        if self.current is not None:
            self.current.wait()

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        if self.current is None:
            write_status(status, EMPTY)
        else:
            self.current.fill(status)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        current, self.current = self.current, None
        return None if current is None else current.finish()

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if self.current is None:
            errors.fail(errors.ERR_REQUEST, NOT_ACTIVE)
        self.current.cancel()

    def release(self) -> None:
        """Give it up; it goes on by itself."""
        if self.current is not None:
            self.current.release()
        self.empty()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        if self.current is not None:
            self.current.abandon()
            self.current = None


def write_status(status: Status, result: Result) -> None:
    """Write what became of a message to `status`, all but its error, which only calls on many requests set."""
    status._fill(result.source, result.tag, result.nbytes, result.cancelled)


def started(start: Callable[[list[Operation]], Operation], *, is_waited: bool = False) -> Operation:
    """Return the operation that `start` begins, done if `is_waited`; if that ends by an exception, all of it is withdrawn.

    `start` adds a receive to the list that it gets before the message starts: a signal handler may raise anywhere between that and the
    wait, and a receive that nobody waits for would take the next message.
    """
    begun: list[Operation] = []
    try:
        operation = start(begun)
        begun = [operation]
        if is_waited:
            operation.wait()
    except BaseException:
        for each in begun:
            each.abandon()
        raise
    return operation


def wait_for(operation: Operation) -> None:
    """Return when an operation is done; if the wait fails, all of it is withdrawn."""
    try:
        operation.wait()
    except BaseException:
        operation.abandon()
        raise


def blame(error: BaseException, comm: NativeComm) -> None:
    """Note the communicator whose operation ended with an error: its error handler is the one to call."""
    if isinstance(error, errors.Exception):
        error._origin = comm


def on_behalf(
    comm: NativeComm, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a function for an operation of a communicator, which is blamed for an error."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        blame(error, comm)
        raise

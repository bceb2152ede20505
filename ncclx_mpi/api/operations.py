"""What requests stand for: one class for each kind of operation that can be waited for.

An operation is used in this order: ``wait()`` or ``poll()`` until it is done, ``fill(status)`` as often as wanted, then
``finish()`` once, which delivers the result and empties the operation (``settle()`` if a received object is not wanted). Emptied,
it is invalid for every request that still refers to it.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ncclx_mpi import errors
from ncclx_mpi.api import background_progress
from ncclx_mpi.api.handle import State
from ncclx_mpi.api.status import Status
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from ncclx_mpi.p2p.engine import Engine, NativeComm, Result
from ncclx_mpi.p2p.layout import STANDARD

if TYPE_CHECKING:
    from ncclx_mpi.collectives import Collective

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
    outcome: Result

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


class Transfer(Operation):
    """One message, which :meth:`send` and its like start: the operation owns the request, and what has its memory, before that is under way.

    Parameters
    ----------
    comm
        The communicator.
    owner
        What keeps the memory of the message alive; the operation does, and the engine where the operation ends before the message.
    landing
        Called with the number of bytes that have come, to unpack them.
    what
        What the message is, if the engine would not say it well.
    request
        The engine's request, if there is one already.
    """

    __slots__ = ("comm", "engine", "landing", "owner", "request", "what")
    engine: Engine
    comm: NativeComm
    request: int
    owner: Any
    landing: Callable[[int], None] | None
    what: str

    def __init__(
        self, comm: NativeComm, owner: Any, landing: Callable[[int], None] | None = None, what: str = "", request: int = 0
    ) -> None:
        self.comm = comm
        self.owner = owner
        self.landing = landing
        self.what = what
        self.request = request or comm.engine.new_request()
        self.engine = comm.engine

    def send(self, address: int, nbytes: int, dest: int, tag: int, mode: int = STANDARD, offset: int = 0) -> Self:
        """Start sending `nbytes` bytes at `address`; `offset` selects a context of the communicator. Returns the operation."""
        self.engine.start_send(self.comm, address, nbytes, dest, tag, mode, offset, self.request)
        return self

    def receive(self, address: int, nbytes: int, source: int, tag: int, offset: int = 0) -> Self:
        """Start receiving up to `nbytes` bytes to `address`; wildcards are allowed. Returns the operation."""
        self.engine.start_recv(self.comm, address, nbytes, source, tag, offset, self.request)
        return self

    def receive_matched(self, message: int, address: int, nbytes: int) -> Self:
        """Start receiving a message that was taken out of matching. Returns the operation."""
        self.engine.start_matched_recv(self.comm, message, address, nbytes, self.request)
        return self

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.engine.done(self.request)

    def wait(self) -> None:
        """Return when it is done."""
        try:
            self.engine.await_request(self.request, self.what)
        except BaseException as error:
            blame(error, self.comm)
            self.abandon()
            raise

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`; a send knows only whether it was cancelled."""
        found = self.engine.result(self.request)
        is_send = self.engine.capacity(self.request) < 0
        write_status(status, EMPTY._replace(cancelled=found.cancelled) if is_send else found)

    def empty(self) -> None:
        """Unset what every use of it needs."""
        try:
            del self.engine, self.owner, self.landing
        except AttributeError:
            self.engine  # noqa: B018  (raises: another thread has emptied it)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        engine, request, comm, landing, owner = self.engine, self.request, self.comm, self.landing, self.owner
        self.empty()  # before the request is given back, so that whoever reads both (cancel) can tell; and the memory is free to be unpacked
        if landing is None and engine.close(request):
            return
        what, capacity = self.what or engine.describe(request), engine.capacity(request)
        result = engine.result(request)
        engine.free(request)
        if result.error and capacity >= 0:
            raise_error(result, comm, what, capacity)
        if landing is not None and not result.cancelled:
            landing(result.nbytes)
        del owner

    def cancel(self) -> None:
        """Ask for its cancellation."""
        engine, request = self.engine, self.request
        serial = engine.serial(request)
        self.engine.cancel(request, serial)  # still there: the serial was that of this message

    def release(self) -> None:
        """Give it up; it goes on by itself. What comes in packed memory is unpacked some milliseconds after it has come, if not earlier."""
        engine, request, comm, landing, owner = self.engine, self.request, self.comm, self.landing, self.owner
        self.empty()
        if landing is None:
            engine.free(request, (comm, owner))
        else:
            background_progress.add(_Landing(Transfer(comm, owner, landing, self.what, request)))

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        engine, request, kept = self.engine, self.request, (self.owner, self.landing)
        self.empty()
        engine.withdraw(request, kept)

    def __del__(self) -> None:
        try:
            object.__getattribute__(self, "engine")
        except AttributeError:
            return
        self.release()


class Ticket(Transfer):
    """The transfer of a plain array, which compiled code starts and completes, and uses again (:mod:`ncclx_mpi.p2p.request_pool`)."""

    __slots__ = ()
    HOME = "tickets"
    """The engine's list of free ones."""

    def __init__(self, engine: Engine, address: int = 0) -> None:
        self.landing = None
        self.what = ""
        self.request = engine.new_ticket(self, self.HOME, address)
        self.engine = engine


class Bound(Transfer):
    """A persistent message of packed memory, whose request compiled code starts again and again (:mod:`ncclx_mpi.p2p.request_pool`)."""

    __slots__ = ("arguments",)
    is_persistent = True
    arguments: tuple[int, int, int, int, int, int]
    """Kind (SEND or RECEIVE), address, bytes, peer, tag and mode."""

    def __init__(self, comm: NativeComm, owner: Any, arguments: tuple[int, int, int, int, int, int]) -> None:
        self.arguments = arguments
        super().__init__(comm, owner, request=comm.engine.new_bound(comm, *arguments))

    @property
    def is_active(self) -> bool:
        """Whether it was started and not yet finished."""
        return not self.engine.is_resting(self.request)

    def start(self) -> None:
        """Begin the message."""
        if self.is_active:
            errors.fail(errors.ERR_REQUEST, ALREADY_ACTIVE)
        self.engine.start_bound(self.request)

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return not self.is_active or super().poll()

    def wait(self) -> None:
        """Return when it is done."""
        if self.is_active:
            super().wait()

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        if self.is_active:
            super().fill(status)
        else:
            write_status(status, EMPTY)

    def finish(self) -> Any:
        """Let it be started again."""
        if not self.is_active:
            return
        engine, request = self.engine, self.request
        result = engine.result(request)
        engine.rest_bound(request)
        if result.error and engine.capacity(request) >= 0:
            raise_error(result, self.comm, engine.describe(request), engine.capacity(request))

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if not self.is_active:
            errors.fail(errors.ERR_REQUEST, NOT_ACTIVE)
        super().cancel()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed; another request takes its place."""
        if self.is_active:
            request, self.request = self.request, self.engine.new_bound(self.comm, *self.arguments)
            self.engine.withdraw(request, self.owner)


class _Landing:
    """A receive that nobody waits for any more, whose message is still to be unpacked."""

    is_owed = False

    def __init__(self, transfer: Transfer) -> None:
        self._transfer: Transfer | None = transfer
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Unpack the message if it has come, in whichever thread notices first."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._transfer is None or not self._transfer.poll():
                return self._transfer is None
            transfer, self._transfer = self._transfer, None
            with contextlib.suppress(errors.Exception):  # a message that was too long: there is nobody to tell
                transfer.finish()
            return True
        finally:
            self._lock.release()


class Together(Operation):
    """Several operations waited for as one; the last gives the status."""

    __slots__ = ("parts",)
    parts: Sequence[Operation]

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


class Collection(Operation):
    """A non-blocking collective."""

    __slots__ = ("after", "collective", "owner")
    collective: Collective
    owner: Any
    after: Callable[[], None] | None

    def __init__(self, collective: Collective, owner: Any, after: Callable[[], None] | None) -> None:
        self.collective = collective
        self.owner = owner
        self.after = after

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        try:
            return self.collective.test()
        except errors.Exception as error:
            blame(error, self.collective.comm)
            raise

    def wait(self) -> None:
        """Return when it is done."""
        try:
            self.collective.wait()
        except BaseException as error:
            blame(error, self.collective.comm)
            raise

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        after = self.after
        self.empty()
        if after is not None:
            after()

    def empty(self) -> None:
        """Unset what every use of it needs."""
        del self.collective, self.owner, self.after

    def cancel(self) -> None:
        """Ask for its cancellation."""
        errors.fail(errors.ERR_REQUEST, "a collective operation cannot be cancelled")

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        if self.collective.running:
            self.collective.abandon()
        self.empty()


class Persistent(Operation):
    """An operation that ``Start`` begins anew each time; between two times there is nothing to wait for."""

    __slots__ = ("begin", "current")
    is_persistent = True
    begin: Callable[[], Operation]
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
        self.current = self.begin()

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.current is None or self.current.poll()

    def wait(self) -> None:
        """Return when it is done."""
        if self.current is not None:
            try:
                self.current.wait()
            except BaseException:
                self.current = None
                raise

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


class Generalized(Operation):
    """An operation of the program itself: complete when the program says so."""

    __slots__ = ("args", "cancel_fn", "engine", "free_fn", "is_complete", "is_queried", "kwargs", "query_fn", "value")
    engine: Engine
    is_complete: bool
    is_queried: bool
    value: Any

    def __init__(self, engine: Engine, query_fn: Any, free_fn: Any, cancel_fn: Any, args: Any, kwargs: Any) -> None:
        self.engine = engine
        self.query_fn = query_fn
        self.free_fn = free_fn
        self.cancel_fn = cancel_fn
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.is_complete = False
        self.is_queried = False
        self.value = None

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        self.engine.progress()
        return self.is_complete

    def wait(self) -> None:
        """Return when it is done."""
        self.engine.idle_wait(lambda: self.is_complete, "wait for a generalized request")

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)
        self.is_queried = True
        if self.query_fn is None:
            return
        self._call(self.query_fn, status)
        if self.cancel_fn is None:
            status.Set_cancelled(False)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        value = self.value
        try:
            if not self.is_queried:
                self.fill(Status())
        finally:
            try:
                if self.free_fn is not None:
                    self._call(self.free_fn)
            finally:
                self.empty()
        return value

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if self.cancel_fn is not None:
            self._call(self.cancel_fn, self.is_complete)

    def release(self) -> None:
        """Forget it once it is complete; until then it stays, as MPI has it."""
        if self.is_complete:
            self.finish()
        else:
            self.is_complete = True
            self.empty()

    def _call(self, function: Callable[..., Any], *first: Any) -> None:
        """Call a function of the user; its exception is printed and becomes an MPI error."""
        try:
            function(*first, *self.args, **self.kwargs)
        except BaseException as exception:
            traceback.print_exc()
            if isinstance(exception, errors.Exception):
                raise
            errors.fail(errors.ERR_OTHER, f"a function of a generalized request raised {exception!r}")


def write_status(status: Status, result: Result) -> None:
    """Write what became of a message to `status`, all but its error, which only calls on many requests set."""
    status._fill(result.source, result.tag, result.nbytes, result.cancelled)


def raise_error(result: Result, comm: NativeComm, what: str, capacity: int) -> NoReturn:
    """Raise the MPI error that a completed receive ended with."""
    rank, text = comm.rank, ""
    if result.error == errors.ERR_TRUNCATE:
        text = (
            f"rank {rank} <- {result.source}, tag {result.tag} ({what}): the buffer has {capacity} bytes, the message "
            f"{result.nbytes}; make the receive buffer or its count larger"
        )
    error = errors.error(result.error, text or f"rank {rank}: {what} (peer {result.source}, tag {result.tag}) failed")
    blame(error, comm)
    raise error


def blame(error: BaseException, comm: NativeComm) -> None:
    """Note the communicator whose operation ended with an error: its error handler is the one to call."""
    if isinstance(error, errors.Exception):
        error._origin = comm

"""One message between buffers of the host: started by Python, by compiled code, or again and again."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ncclx_mpi import errors
from ncclx_mpi.operations import background_progress
from ncclx_mpi.operations.operation import ALREADY_ACTIVE, EMPTY, NOT_ACTIVE, Operation, blame, on_behalf, write_status
from ncclx_mpi.p2p import gaps, request_pool
from ncclx_mpi.p2p.engine import Engine, NativeComm, Result
from ncclx_mpi.p2p.layout import FREE, RECEIVE, REQUEST, STANDARD
from numba_kernels.jit import entry

if TYPE_CHECKING:
    from ncclx_mpi.api.status import Status


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
    request: int

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
        on_behalf(self.comm, self.engine.await_request, self.request, self.what)

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


class Compiled(Transfer):
    """A transfer that compiled code starts and completes (:mod:`ncclx_mpi.p2p.request_pool`), and which Python may have to complete."""

    __slots__ = ()

    @property
    def landing(self) -> Callable[[int], None] | None:
        """Unpacks so many bytes that have come, if they have to be, as long as the owner of the memory is kept."""
        words = REQUEST.gaps, REQUEST.kind, REQUEST.state
        landing, kind, state = (ctypes.c_int64.from_address(self.request + word).value for word in words)
        if not landing or kind != RECEIVE or state == FREE:
            return None
        return lambda nbytes: entry(gaps.move)(landing, nbytes, True)

    @landing.deleter
    def landing(self) -> None:
        """Nothing: what it says is the request's."""


class Ticket(Compiled):
    """The transfer of a plain array, or of elements with gaps, which compiled code uses again."""

    __slots__ = ()
    HOME = "tickets"
    """The engine's list of free ones."""

    def __init__(self, engine: Engine, address: int = 0) -> None:
        self.what = ""
        self.request = engine.new_ticket(self, self.HOME, address)
        self.engine = engine


class Bound(Compiled):
    """A persistent message, whose request compiled code starts again and again.

    Parameters
    ----------
    comm, owner
        As of any transfer.
    arguments
        Kind (SEND or RECEIVE), address, bytes, peer, tag, mode, and the landing of elements with gaps (:mod:`ncclx_mpi.p2p.gaps`), else 0.
    """

    __slots__ = ("arguments",)
    is_persistent = True

    def __init__(self, comm: NativeComm, owner: Any, arguments: tuple[int, int, int, int, int, int, int]) -> None:
        self.arguments = arguments
        self.comm = comm
        self.owner = owner
        self.what = ""
        self.request = comm.engine.new_bound(comm, *arguments)
        self.engine = comm.engine

    @property
    def is_active(self) -> bool:
        """Whether it was started and not yet finished."""
        self.engine  # noqa: B018  (raises if it was freed: the request may be another's by now)
        return ctypes.c_int64.from_address(self.request + REQUEST.state).value != FREE

    def start(self) -> None:
        """Begin the message."""
        if self.is_active:
            errors.fail(errors.ERR_REQUEST, ALREADY_ACTIVE)
        entry(request_pool.start_bound)(self.request)

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
        engine, request, landing = self.engine, self.request, self.landing
        result = engine.result(request)
        if landing is not None and not (result.error or result.cancelled):
            landing(result.nbytes)
        entry(request_pool.rest)(request)
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

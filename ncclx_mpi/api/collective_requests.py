"""Requests of non-blocking and persistent collectives that go by lines: a number, and the communicator in which it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.api import fast
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.status import Status
from ncclx_mpi.collectives import Described, Pending
from ncclx_mpi.operations.operation import ALREADY_ACTIVE, EMPTY, NOT_ACTIVE, Operation, on_behalf, write_status
from ncclx_mpi.operations.transfer import Bound, Ticket
from ncclx_mpi.p2p import request_pool
from ncclx_mpi.p2p.layout import COLLECTIVE
from numba_kernels.jit import entry


class Started(Operation):
    """A non-blocking collective on lines of any operands; `after` is called when it is done."""

    __slots__ = ("after", "name", "number", "pending")
    number: int

    def __init__(self, pending: Pending, number: int, name: str, after: Callable[[], None] | None) -> None:
        super().__init__()
        self.pending = pending
        self.number = number
        self.name = name
        self.after = after

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return on_behalf(self.pending.comm, self.pending.test, self.number, self.name)

    def wait(self) -> None:
        """Return when it is done."""
        on_behalf(self.pending.comm, self.pending.wait, self.number, self.name)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        after = self.after
        self.pending.owners.pop(self.number, None)
        self.empty()
        if after is not None:
            after()

    def empty(self) -> None:
        """Unset what every use of it needs."""
        del self.pending

    def cancel(self) -> None:
        """Ask for its cancellation."""
        _refuse_to_cancel(self.pending)

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self.pending.abandon()
        self.empty()


class Turn(Ticket):
    """A non-blocking collective of plain arrays, which compiled code starts and completes, and uses again."""

    __slots__ = ()
    HOME = "lines_tickets"
    comm: Any
    """The communicator's :class:`Pending`."""

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        pending: Pending = self.comm
        return on_behalf(pending.comm, pending.test, *pending.describe_request(self.request))

    def wait(self) -> None:
        """Return when it is done."""
        on_behalf(self.comm.comm, self.comm.wait, *self.comm.describe_request(self.request))

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)

    def cancel(self) -> None:
        """Ask for its cancellation."""
        _refuse_to_cancel(self.engine)

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self.comm.abandon()
        self.release()

    def release(self) -> None:
        """Give it up; it goes on by itself."""
        comm, request, owner = self.comm, self.request, self.owner
        self.empty()
        comm.forget(request, owner)


class Repeated(Bound):
    """A persistent collective of packed memory, whose request compiled code starts and completes again and again."""

    __slots__ = ("described", "name", "pending")

    def __init__(self, pending: Pending, name: str, described: Described, owner: Any) -> None:
        self.pending = pending
        self.name = name
        self.described = described
        super().__init__(pending.comm, owner, (COLLECTIVE, described.address, 0, 0, 0, 0, 0))
        pending.hold(self.request)

    def start(self) -> None:
        """Begin the collective."""
        if self.is_active:
            errors.fail(errors.ERR_REQUEST, ALREADY_ACTIVE)
        self.pending.begin_request(self.request, self.name)

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        if not self.is_active:
            return True
        return on_behalf(self.pending.comm, self.pending.test, *self.pending.describe_request(self.request))

    def wait(self) -> None:
        """Return when it is done."""
        if self.is_active:
            on_behalf(self.pending.comm, self.pending.wait, *self.pending.describe_request(self.request))

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)

    def finish(self) -> Any:
        """Let it be started again."""
        if self.is_active:
            entry(request_pool.rest)(self.request)

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if not self.is_active:
            errors.fail(errors.ERR_REQUEST, NOT_ACTIVE)
        _refuse_to_cancel(self.engine)

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        if self.is_active:
            self.pending.abandon()
            entry(request_pool.rest)(self.request)

    def release(self) -> None:
        """Give it up; it goes on by itself if it is active."""
        engine, pending, request, owner, is_active = self.engine, self.pending, self.request, self.owner, self.is_active
        self.empty()
        if is_active:
            pending.forget(request, owner)
        else:
            engine.free(request)
        pending.let_go(request)


request_pool.introduce_collectives(Turn, Repeated)


def request(state: CommState, number: int, name: str, after: Callable[[], None] | None) -> Request:
    """Return the request of collective `number`. The next one of plain arrays finds a ticket."""
    fast.add_ticket(state, Turn)
    return Request._refer(Started(state.pending, number, name, after))


def _refuse_to_cancel(is_valid: Any) -> None:
    """Raise; reading what the caller gives as `is_valid` has raised already if the operation is complete."""
    errors.fail(errors.ERR_REQUEST, "a collective operation cannot be cancelled")

"""Requests of non-blocking collectives that go by lines: a number, and the communicator in which it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.operations import EMPTY, Operation, blame, write_status
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.status import Status
from ncclx_mpi.collectives import Pending

_make = object.__new__


class Started(Operation):
    """A non-blocking collective on lines."""

    __slots__ = ("after", "name", "number", "pending")
    after: Callable[[], None] | None
    name: str
    number: int
    pending: Pending

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        try:
            return self.pending.test(self.number, self.name)
        except errors.Exception as error:
            blame(error, self.pending.comm)
            raise

    def wait(self) -> None:
        """Return when it is done."""
        try:
            self.pending.wait(self.number, self.name)
        except BaseException as error:
            blame(error, self.pending.comm)
            raise

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)

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
        self.pending  # noqa: B018  (raises if it is complete)
        errors.fail(errors.ERR_REQUEST, "a collective operation cannot be cancelled")

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self.pending.abandon()
        self.empty()


def request(state: CommState, number: int, name: str, owner: Any, after: Callable[[], None] | None = None) -> Request:
    """Return the request of collective `number`; `owner` keeps its buffers alive, `after` is called when it is done."""
    pending = state.pending
    pending.keep(number, owner)
    operation: Started = _make(Started)
    operation.pending = pending
    operation.number = number
    operation.name = name
    operation.after = after
    made: Request = _make(Request)
    made._state = operation
    return made

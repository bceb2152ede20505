"""A non-blocking collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors
from ncclx_mpi.operations.operation import Operation, on_behalf

if TYPE_CHECKING:
    from ncclx_mpi.collectives import Collective


class Collection(Operation):
    """A non-blocking collective."""

    __slots__ = ("after", "collective", "owner")

    def __init__(self, collective: Collective, owner: Any, after: Callable[[], None] | None) -> None:
        super().__init__()
        self.collective = collective
        self.owner = owner
        self.after = after

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return on_behalf(self.collective.comm, self.collective.test)

    def wait(self) -> None:
        """Return when it is done."""
        on_behalf(self.collective.comm, self.collective.wait)

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

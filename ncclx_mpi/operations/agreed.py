"""An agreement that is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi.operations.operation import Operation

if TYPE_CHECKING:
    from ncclx_mpi.collectives import Agreement


class Agreed(Operation):
    """An agreement, and what is done with it when it is there: `after`."""

    __slots__ = ("after", "agreement")
    is_stepped = True
    after: Callable[[], None] | None

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self.agreement = agreement
        self.after = None

    def poll(self) -> bool:
        """Whether all have agreed, after some progress."""
        return self.agreement.poll()

    def wait(self) -> None:
        """Return when all have agreed."""
        self.agreement.comm.engine.ended.wait_through_deaths(self.agreement.poll, "agreement")

    def finish(self) -> Any:
        """Do what there is to do, and empty it."""
        after = self.after
        if after is not None:
            after()
        self.empty()

    def abandon(self) -> None:
        """Expect nothing more of it after a wait that failed."""
        self.agreement.abandon()
        self.empty()

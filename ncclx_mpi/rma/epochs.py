"""Epochs among some ranks of a window: Start and Complete at the origin, Post and Wait at the target.

Both ends tell each other by empty messages in the window's communicator: a target that its memory may be accessed, an origin
that it has done so. Messages between two ranks stay in order, so that epochs need no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ncclx_mpi import errors
from ncclx_mpi.p2p.engine import NativeComm

_POSTED, _COMPLETED = 1, 2


class Epochs:
    """The epochs of one rank of a window: `started` are the targets it may access, None outside of an epoch."""

    def __init__(self, comm: NativeComm) -> None:
        self.comm = comm
        self.engine = comm.engine
        self.started: list[int] | None = None
        self._exposed: list[int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is an epoch that must be ended before the window can be freed."""
        return self.started is not None or self._exposed is not None

    def start(self, targets: Sequence[int]) -> None:
        """Wait until all `targets` have posted; then their memory may be accessed."""
        if self.started is not None:
            self._refuse("Start", "has started an epoch already: call Complete first")
        self.engine.wait_all(self._expect(targets, _POSTED), "Win.Start")
        self.started = list(targets)

    def complete(self) -> None:
        """Tell the targets that they have been accessed."""
        if self.started is None:
            self._refuse("Complete", "has not called Start")
        targets, self.started = self.started, None
        self._tell(targets, _COMPLETED, "Win.Complete")

    def post(self, origins: Sequence[int]) -> None:
        """Tell `origins` that they may access the memory of this rank."""
        if self._exposed is not None:
            self._refuse("Post", "exposes its memory already: call Wait first")
        self._tell(origins, _POSTED, "Win.Post")
        self._exposed = self._expect(origins, _COMPLETED)

    def wait(self) -> None:
        """Wait until all origins have accessed the memory of this rank."""
        requests, self._exposed = self._expected("Wait"), None
        self.engine.wait_all(requests, "Win.Wait")

    def test(self) -> bool:
        """Whether all origins have accessed the memory of this rank; if so, that epoch is over."""
        requests = self._expected("Test")
        if not all(self.engine.done(request) for request in requests):
            self.engine.check_peers("Win.Test")
            return False
        self._exposed = None
        self.engine.wait_all(requests, "Win.Test")
        return True

    def __del__(self) -> None:
        for request in getattr(self, "_exposed", None) or ():
            self.engine.free(request, self.comm)

    def _expected(self, name: str) -> list[int]:
        if self._exposed is None:
            self._refuse(name, "has not called Post")
        return self._exposed

    def _expect(self, ranks: Sequence[int], tag: int) -> list[int]:
        """Receive an empty message from each rank; returns the requests."""
        return [self.engine.start_recv(self.comm, self.comm.address, 0, rank, tag) for rank in ranks]

    def _tell(self, ranks: Sequence[int], tag: int, what: str) -> None:
        requests = [self.engine.start_send(self.comm, self.comm.address, 0, rank, tag) for rank in ranks]
        self.engine.wait_all(requests, what)

    def _refuse(self, name: str, why: str) -> NoReturn:
        errors.fail(errors.ERR_RMA_SYNC, f"Win.{name}: rank {self.comm.rank} {why}")

"""Epochs among some ranks of a window: Start and Complete at the origin, Post and Wait at the target.

Ranks that share memory count in it (:mod:`ncclx_mpi.rma.fast_epochs`). Those that do not tell each other by empty messages in the window's
communicator: a target that its memory may be accessed, an origin that it has done so. Messages between two ranks stay in order,
so that these epochs need no numbers. Both ends know which of the two a pair of ranks does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ncclx_mpi import errors
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.fast import GIVEN_UP
from ncclx_mpi.p2p.layout import PEER_LEFT
from ncclx_mpi.rma import fast_epochs
from ncclx_mpi.rma.asking import SLOW
from ncclx_mpi.rma.layout import CLOSED, OPEN, Words
from numba_kernels.jit import entry

_POSTED, _COMPLETED = 1, 2


def raise_given_up(comm: NativeComm, code: int, what: str) -> NoReturn:
    """Raise why a wait for another rank of an epoch was given up, as compiled code returns it."""
    comm.engine.ended.check(comm, what)
    if GIVEN_UP - code == PEER_LEFT:
        errors.fail(
            errors.ERR_PROC_FAILED,
            f"rank {comm.rank}: {what} was given up because a rank that it waits for has left the job: all ranks must end their "
            "epochs, and free the window, before they finalize",
        )
    comm.engine.fail(GIVEN_UP - code, what)


class Epochs:
    """The epochs of one rank of a window, for what compiled code leaves to Python: far ranks, first epochs, and errors."""

    def __init__(self, comm: NativeComm, words: Words) -> None:
        self.comm = comm
        self.engine = comm.engine
        self._words = words
        self._awaited: list[int] = []

    def start(self, targets: Sequence[int]) -> None:
        """Wait until all `targets` have posted; then their memory may be accessed."""
        if self._words.get("started") != CLOSED:
            self._refuse("Start", "has started an epoch already: call Complete first")
        self._make_counters()
        far = self._far(targets)
        self.engine.wait_all(self._expect(far, _POSTED), "Win.Start")
        self._words.set_members("access", targets, len(far))
        if self._is_slow(entry(fast_epochs.begin_access)(self._words.address), "Win.Start"):
            self._refuse("Start", "has started an epoch in another thread: call Complete first")

    def targets(self) -> list[int]:
        """The ranks whose memory may be accessed."""
        if self._words.get("started") != OPEN:
            self._refuse("Complete", "has not called Start")
        return self._words.members("access")

    def complete(self) -> None:
        """Tell the targets that they have been accessed."""
        far = self._far(self.targets())
        self._words.set("access_far", 0)
        entry(fast_epochs.complete)(self._words.address)
        self._tell(far, _COMPLETED, "Win.Complete")

    def post(self, origins: Sequence[int]) -> None:
        """Tell `origins` that they may access the memory of this rank."""
        if self._words.get("exposed") != CLOSED:
            self._refuse("Post", "exposes its memory already: call Wait first")
        self._make_counters()
        far = self._far(origins)
        self._tell(far, _POSTED, "Win.Post")
        self._words.set_members("exposure", origins, len(far))
        if entry(fast_epochs.begin_exposure)(self._words.address) != 0:
            self._refuse("Post", "exposes its memory in another thread: call Wait first")
        self._awaited = self._expect(far, _COMPLETED)

    def wait(self) -> None:
        """Wait until all origins have accessed the memory of this rank."""
        self._check_exposed("Wait")
        self._end_far("Win.Wait")
        if self._is_slow(entry(fast_epochs.wait)(self._words.address), "Win.Wait"):
            self._refuse("Wait", "waits in another thread already")

    def test(self) -> bool:
        """Whether all origins have accessed the memory of this rank; if so, that epoch is over."""
        self._check_exposed("Test")
        if not all(self.engine.done(request) for request in self._awaited):
            self.engine.check_peers("Win.Test")
            return False
        self._end_far("Win.Test")
        code: int = entry(fast_epochs.test)(self._words.address)
        if self._is_slow(code, "Win.Test"):
            self._refuse("Test", "waits in another thread already")
        return code != fast_epochs.PENDING

    def __del__(self) -> None:
        for request in getattr(self, "_awaited", ()):
            self.engine.free(request, self.comm)

    def _check_exposed(self, name: str) -> None:
        if self._words.get("exposed") != OPEN:
            self._refuse(name, "has not called Post")

    def _end_far(self, what: str) -> None:
        """Wait for the origins that are far; if that is given up, the epoch is over."""
        awaited, self._awaited = self._awaited, []
        try:
            self.engine.wait_all(awaited, what)
        except BaseException:
            self._words.set("exposed", CLOSED)
            raise
        self._words.set("exposure_far", 0)

    def _far(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that tell by messages."""
        return [rank for rank in ranks if not self._words.of(rank, "lock")]

    def _make_counters(self) -> None:
        """Make this rank's counters, if this is its first epoch."""
        if self._words.get("counters"):
            return
        heap = self.engine.arena.open_heap(self.engine.local_rank)
        counters = heap.allocate(fast_epochs.counters_bytes(self.comm.size))
        if entry(fast_epochs.have_counters)(self._words.address, counters) != 0:
            heap.free(counters)

    def free(self) -> None:
        """Give the counters back when no rank looks at them any more."""
        counters = self._words.get("counters")
        if counters:
            self._words.set("counters", 0)
            self.engine.arena.open_heap(self.engine.local_rank).free(counters)

    def _expect(self, ranks: Sequence[int], tag: int) -> list[int]:
        """Receive an empty message from each rank; returns the requests."""
        return [self.engine.start_recv(self.comm, self.comm.address, 0, rank, tag) for rank in ranks]

    def _tell(self, ranks: Sequence[int], tag: int, what: str) -> None:
        requests = [self.engine.start_send(self.comm, self.comm.address, 0, rank, tag) for rank in ranks]
        self.engine.wait_all(requests, what)

    def _is_slow(self, code: int, what: str) -> bool:
        """Whether compiled code has left something undone; raises why a wait was given up."""
        if code < SLOW:
            raise_given_up(self.comm, code, what)
        return code == SLOW

    def _refuse(self, name: str, why: str) -> NoReturn:
        errors.fail(errors.ERR_RMA_SYNC, f"Win.{name}: rank {self.comm.rank} {why}")

"""Communicators in which nobody is to wait any more, and deaths after which a process goes on: Python's part of :mod:`revoking`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.p2p import revoking
from ncclx_mpi.p2p.layout import COMM, PEER_DEAD, REQUEST
from ncclx_mpi.p2p.living import Living
from numba_kernels.jit import entry
from numba_kernels.layout import WORD, zeroed

if TYPE_CHECKING:
    from ncclx_mpi.p2p.engine import Engine, NativeComm


class EndedComms:
    """What a rank knows of communicators that were revoked, and of deaths that were acknowledged.

    Attributes
    ----------
    address : int
        Where contexts of communicators that were revoked elsewhere arrive.
    callback
        What compiled waits call when some have.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._revoked, self.address = zeroed(revoking.MOST_REVOKED * WORD)
        self._comms: Living[NativeComm] = Living()
        self._early: set[int] = set()
        self._acknowledged: frozenset[int] = frozenset()
        self.callback = self.heed

    def __iter__(self) -> Iterator[NativeComm]:
        """The communicators of this process that are left."""
        return iter(self._comms)

    def know(self, comm: NativeComm) -> None:
        """Be told of a communicator that has been made: it may have been revoked elsewhere already, or have ranks that died."""
        self._comms.add(comm.context, comm)
        if comm.context in self._early:
            self.revoke(comm)
        elif (self._acknowledged or self._engine.guests.dead) and comm.size > 1:
            self._raise_for_dead(comm)

    def revoke(self, comm: NativeComm) -> None:
        """End all waits in a communicator, and those of its other ranks, and let no collective begin. Once: later calls do nothing."""
        if comm.is_revoked:
            return
        comm.is_revoked = True
        self._early.discard(comm.context)
        self.raise_for(comm)
        for rank in comm.world_ranks:
            if rank != self._engine.rank:
                entry(revoking.tell_revoked)(self._engine.address, rank, comm.context)
        owner = comm.owner()
        if owner is not None:
            owner.revoke()

    def heed(self) -> None:
        """Look at what other ranks have revoked; every wait comes by here when there is something."""
        first, count = self._engine.word("heeded"), self._engine.word("revoked_count")
        if first == count:
            return
        self._engine.set_word("heeded", count)
        for number in range(max(first, count - revoking.MOST_REVOKED), count):
            context = self._revoked[number % revoking.MOST_REVOKED]
            if context < 0:  # a peer of another job has died
                self._guest_died(-1 - context)
                continue
            comm = self._comms.get(context)
            if comm is None:  # not made yet; or freed, and then it stays here until there are many
                self._early = self._early if len(self._early) < revoking.MOST_REVOKED else set()
                self._early.add(context)
            else:
                self.revoke(comm)

    def acknowledge(self) -> list[int]:
        """Go on without the ranks that have died so far, whose world ranks are returned.

        Their communicators stay unusable; waits in others are not ended by these deaths any more.
        """
        count = self._engine.arena.deaths
        dead = self._engine.dead_ranks()
        if count > self._engine.word("acknowledged"):
            self._acknowledged = frozenset(dead)
            for comm in self._comms:
                self._raise_for_dead(comm)
            self._engine.set_word("acknowledged", count)
            self._engine.arena.acknowledge(count)
        return dead

    def _raise_for_dead(self, comm: NativeComm) -> None:
        if not self._acknowledged.isdisjoint(comm.world_ranks) or self._engine.guests.dead_of(comm.world_ranks):
            self.raise_for(comm)

    def _guest_died(self, number: int) -> None:
        self._engine.guests.learn()
        for comm in self._comms:
            if number in comm.world_ranks:
                self.raise_for(comm)

    def raise_for(self, comm: NativeComm) -> None:
        """End all waits in a communicator of this process."""
        if not comm.word("ended"):
            comm.set_word("broken", 1)
            comm.set_word("ended", 1)
            self._engine.set_word("ended", self._engine.word("ended") + 1)

    def failure(self, comm: NativeComm, what: str) -> errors.Exception:
        """What ends a wait in a communicator in which nobody is to wait any more."""
        if comm.is_revoked:
            return errors.error(
                errors.ERR_REVOKED,
                f"rank {comm.rank}: {what} was given up, or not begun, because the communicator was revoked; only Shrink, Agree and Free are "
                "left to do with it",
            )
        return self._engine.failure(PEER_DEAD, what)

    def check(self, comm: NativeComm, what: str) -> None:
        """Raise if nobody is to wait in a communicator any more."""
        if self._engine.word("revoked_count") != self._engine.word("heeded"):
            self.heed()
        if comm.word("ended"):
            raise self.failure(comm, what)

    def check_request(self, request: int, what: str) -> None:
        """As :meth:`check`, for the communicator of a request; with nothing to check it costs two looks at a word."""
        if self._engine.word("revoked_count") == self._engine.word("heeded") and not self._engine.word("ended"):
            return
        comm = self._comms.get(self._context_of(request))
        if comm is not None:
            self.check(comm, what or self._engine.describe(request))

    def _context_of(self, request: int) -> int:
        address = ctypes.c_int64.from_address(request + REQUEST.comm).value
        return ctypes.c_int64.from_address(address + COMM.context).value if address else -1

    def wait_through_deaths(self, predicate: Callable[[], bool], what: str) -> None:
        """As :meth:`idle_wait`, but go on when ranks die: the predicate is to know of it by :meth:`acknowledge`."""
        while True:
            try:
                return self._engine.idle_wait(predicate, what)
            except errors.Exception as error:
                if error.Get_error_class() != errors.ERR_PROC_FAILED or self._engine.arena.abort_code is not None:
                    raise
                self.acknowledge()

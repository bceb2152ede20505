"""Notices the death of the other ranks where no launcher of ours does.

A daemon thread sleeps in ``poll`` over the pidfds of the peers; nothing is spent until one ends. A peer that ends before it
has finalized is declared dead in the arena, which wakes all who wait for it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence

from ncclx_mpi.bootstrap.pidfd import open_pidfd
from transports.shm.arena import Arena, start_time
from transports.shm.layout import DEAD, FINALIZED
from transports.virtual.network import Network

_RETRY_MS = 1000
_AGENT = -1
"""In the place of a rank: the agent of this host."""


class Watch:
    """The thread that watches over the peers of one rank, on its node and, if these are on this machine, on others.

    Parameters
    ----------
    arena, rank
        Of the rank.
    network
        Between simulated nodes.
    agent
        The process that hears of other hosts, where there are any: without it, nobody knows of their ranks any more.
    """

    def __init__(self, arena: Arena, rank: int, network: Network | None = None, agent: int = 0) -> None:
        self._arena = arena
        self._rank = rank
        self._network = network
        self._agent = agent
        self._owner = os.getpid()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="ncclx_mpi-watch", daemon=True)

    def start(self) -> None:
        """Begin; a child that the user forks has no such thread, and is no rank."""
        if self._arena.plan.world_size > 1:
            self._arena.load_death_notice()
            self._thread.start()

    def close(self) -> None:
        """End the thread. Safe to call twice, and in a forked child."""
        if os.getpid() != self._owner or self._stop_write < 0:
            return
        os.close(self._stop_write)
        self._stop_write = -1
        if self._thread.is_alive():
            self._thread.join(1.0)
        os.close(self._stop_read)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN)
        watched: dict[int, int] = {}
        unwatched = {rank for rank in self._peers() if rank != self._rank}
        while watched or unwatched:
            for rank in sorted(unwatched):
                self._take_up(rank, poll, watched, unwatched)
            ready = [fd for fd, _ in poll.poll(_RETRY_MS if unwatched else None)]
            if self._stop_read in ready:
                break
            for fd in ready:
                poll.unregister(fd)
                os.close(fd)
                self._ended(watched.pop(fd))
        for fd in watched:
            os.close(fd)

    def _peers(self) -> Sequence[int]:
        """World ranks of those whose processes are here, and :data:`_AGENT`."""
        return [*self._arena.near, _AGENT] if self._agent else range(self._arena.plan.world_size)

    def _take_up(self, rank: int, poll: select.poll, watched: dict[int, int], unwatched: set[int]) -> None:
        """Watch over a rank, or see that it has ended; where neither can be told now, it stays among those to be tried again."""
        try:
            fd = open_pidfd(*self._process_of(rank))
        except OSError:
            return
        unwatched.discard(rank)
        if fd is None:
            self._ended(rank)
        else:
            watched[fd] = rank
            poll.register(fd, select.POLLIN)

    def _process_of(self, rank: int) -> tuple[int, int]:
        """The process of a rank, and when it was started."""
        if rank == _AGENT:
            return self._agent, start_time(self._agent)
        if rank in self._arena.near or self._network is None:
            local_rank = self._arena.near.index(rank)
            return self._arena.control_word(local_rank, "pid"), self._arena.control_word(local_rank, "start_time")
        return self._network.process_of(rank)

    def _ended(self, rank: int) -> None:
        if rank == _AGENT:
            for far in set(range(self._arena.plan.world_size)) - set(self._arena.near):
                self._arena.ended_elsewhere(far, DEAD)
            return
        if rank in self._arena.near or self._network is None:
            self._arena.declare_dead(self._arena.near.index(rank), "its process ended")
        else:
            self._arena.ended_elsewhere(rank, FINALIZED if self._network.has_left(rank) else DEAD)

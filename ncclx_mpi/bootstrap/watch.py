"""Notices the death of the other ranks where no launcher of ours does.

A peer that ends before it has finalized is declared dead in the arena, which wakes all who wait for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ncclx_mpi.bootstrap.process_watch import ProcessWatch
from transports.shm.arena import Arena
from transports.shm.layout import DEAD, FINALIZED

if TYPE_CHECKING:
    from transports.virtual.network import Network


class Watch(ProcessWatch):
    """Watches over the peers of one rank, on its node and, if these are on this machine, on others.

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
        super().__init__()
        self._arena = arena
        self._rank = rank
        self._network = network
        self._agent = agent

    def start(self) -> None:
        """Begin, as all ranks have joined; a child that the user forks has no such thread, and is no rank."""
        arena = self._arena
        if arena.plan.world_size == 1:
            return
        arena.load_death_notice()
        for local_rank, rank in enumerate(arena.near):
            if rank != self._rank:
                pid, started = arena.control_word(local_rank, "pid"), arena.control_word(local_rank, "start_time")
                self.add(pid, started, functools.partial(arena.declare_dead, local_rank, "its process ended"))
        if self._agent:
            self.add(self._agent, None, self._agent_ended)
        elif self._network is not None:
            for rank in self._elsewhere():
                self.add(*self._network.process_of(rank), functools.partial(self._ended_elsewhere, self._network, rank))

    def _elsewhere(self) -> list[int]:
        """World ranks that are on other nodes."""
        return sorted(set(range(self._arena.plan.world_size)) - set(self._arena.near))

    def _agent_ended(self) -> None:
        for rank in self._elsewhere():
            self._arena.ended_elsewhere(rank, DEAD)

    def _ended_elsewhere(self, network: Network, rank: int) -> None:
        self._arena.ended_elsewhere(rank, FINALIZED if network.has_left(rank) else DEAD)

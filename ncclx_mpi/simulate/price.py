"""What plans cost on a modelled network: each step takes its time as soon as it may and what it needs is free.

A rank sends one message at a time, receives one, and computes beside. A message that leaves a node, a rack or a zone takes its part of
what all ranks of that share, on both sides. Of its first messages that are ready a rank sends one whose receiver and links are free. A
large one is ready when its receiver awaits it, too, a small one when the rank that sends it comes to it.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from ncclx_mpi.algorithms import Algorithm
from ncclx_mpi.collectives.plan import COPY, JOIN, RECV, REDUCE, SEND
from ncclx_mpi.simulate import classes
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.classes import Classes
from ncclx_mpi.simulate.network import LEVELS, Network

_FIRST = 8
"""Messages of a rank that are looked at for one that can go."""
_BEGIN, _TRY, _FREED = range(3)
"""Events: a step begins; a rank may be able to send; a rank has received. Of those at one time, in this order."""


_Link = tuple[int, int, int]
"""Which kind of unit, 0 for out of it and 1 for into it, and its number."""


class Price(NamedTuple):
    """What a collective costs.

    Attributes
    ----------
    us
        Until the last rank is through.
    nbytes
        That all ranks together send, by how far they go: within a node, a rack, a zone, beyond.
    messages
        Of all ranks.
    looked_at
        Ranks that stand for all.
    """

    us: float
    nbytes: tuple[int, ...]
    messages: int
    looked_at: int


def price(row: Algorithm, call: Call, network: Network) -> Price:
    """Return what a call costs if it goes by a plan.

    Raises
    ------
    ValueError
        Its plans are too many steps to be looked at.
    """
    found = classes.of(row, call, network)
    times = call.size // len(found.plans)
    nbytes, messages = [0] * len(LEVELS), 0
    steps = np.concatenate([plan.steps for plan in found.plans])
    for index in np.flatnonzero(steps["kind"] == SEND).tolist():
        nbytes[found.levels[index]] += times * int(steps["nbytes"][index])
        messages += times
    return Price(_Run(found, network).last, tuple(nbytes), messages, len(found.plans))


class _Run:
    """Lets steps happen in the order of time.

    Attributes
    ----------
    last
        When the last step ends.
    """

    def __init__(self, found: Classes, network: Network) -> None:
        self._found, self._network = found, network
        self._load(found)
        ranks = range(len(found.plans))
        self._sending, self._receiving, self._computing = ([0.0] * len(ranks) for _ in range(3))
        self._links: dict[_Link, float] = {}
        self._tries: dict[int, float] = {}
        """When a rank that waits for a link looks again."""
        self._begun: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        self._pending: list[list[int]] = [[] for _ in ranks]
        self._held_up: list[set[int]] = [set() for _ in ranks]
        """Of each rank, those that could not send to it."""
        self._events = [(0.0, _BEGIN, index) for index, missing in enumerate(self._missing) if not missing]
        self.last = 0.0
        while self._events:
            now, event, which = heapq.heappop(self._events)
            if event == _BEGIN:
                self._begin(now, which)
            elif event == _TRY:
                self._send_next(now, which)
            else:
                self._freed(now, which)

    def _load(self, found: Classes) -> None:
        """Columns of all steps as lists, with dependencies counted through."""
        self._kind: list[int] = []
        self._nbytes: list[int] = []
        self._rank: list[int] = []
        self._missing: list[int] = []
        self._later: list[list[int]] = [[] for _ in found.partner]
        for rank, plan in enumerate(found.plans):
            base = len(self._kind)
            self._kind += plan.steps["kind"].tolist()
            self._nbytes += plan.steps["nbytes"].tolist()
            self._rank += [rank] * len(plan.steps)
            for index, waits in enumerate(zip(plan.steps["first"].tolist(), plan.steps["second"].tolist(), strict=True), base):
                self._missing.append(sum(step >= 0 for step in waits))
                for step in waits:
                    if step >= 0:
                        self._later[base + step].append(index)
        self._ready = [0.0] * len(self._kind)

    def _begin(self, now: float, index: int) -> None:
        kind, partner = self._kind[index], self._found.partner[index]
        if kind == SEND:
            if self._nbytes[index] <= self._network.eager or partner in self._begun:
                self._offer(now, index)
            else:
                self._begun[index] = now
        elif kind == RECV:
            self._begun[index] = now
            if index in self._arrived:
                self._end(max(now, self._arrived[index]), index)
            elif partner in self._begun:
                self._offer(now, partner)
        else:
            self._compute(now, index)

    def _compute(self, now: float, index: int) -> None:
        kind, rank = self._kind[index], self._rank[index]
        if kind == JOIN:
            self._end(now, index)
            return
        rate = {COPY: self._network.copy, REDUCE: self._network.reduce}[kind]
        done = max(now, self._computing[rank]) + self._nbytes[index] * rate
        self._computing[rank] = done
        self._end(done, index)

    def _offer(self, now: float, index: int) -> None:
        self._pending[self._rank[index]].append(index)
        heapq.heappush(self._events, (now, _TRY, self._rank[index]))

    def _freed(self, now: float, rank: int) -> None:
        """Let those try again that could not send to a rank."""
        sources, self._held_up[rank] = sorted(self._held_up[rank]), set()
        for source in sources:
            self._send_next(now, source)

    def _send_next(self, now: float, source: int) -> None:
        if self._tries.get(source, math.inf) <= now:
            del self._tries[source]
        if self._sending[source] > now:
            return
        for index in self._pending[source][:_FIRST]:
            partner = self._found.partner[index]
            target = self._rank[partner]
            if self._receiving[target] > now:
                self._held_up[target].add(source)
                continue
            links = [link for link in self._way(source, target, self._found.levels[index]) if link[1]]
            free = max((self._links.get(link, 0.0) for link, _ in links), default=0.0)
            if free > now:
                self._try_again(free, source)
                continue
            self._pending[source].remove(index)
            self._transfer(now, index, links)
            return

    def _try_again(self, at: float, source: int) -> None:
        """Unless the rank does so before."""
        if at < self._tries.get(source, math.inf):
            self._tries[source] = at
            heapq.heappush(self._events, (at, _TRY, source))

    def _transfer(self, now: float, index: int, links: list[tuple[_Link, float]]) -> None:
        """A message goes now: all that it needs is free."""
        network, nbytes, partner = self._network, self._nbytes[index], self._found.partner[index]
        source, target, level = self._rank[index], self._rank[partner], self._found.levels[index]
        done = now + network.message + nbytes * max(network.byte[level], *(byte for _, byte in links), 0.0)
        self._sending[source] = self._receiving[target] = done
        for link, byte in links:
            self._links[link] = now + nbytes * byte
        heapq.heappush(self._events, (done, _TRY, source))
        heapq.heappush(self._events, (done, _FREED, target))
        self._end(done, index)
        arrives = done + network.latency[level]
        if partner in self._begun:
            self._end(arrives, partner)
        else:
            self._arrived[partner] = arrives

    def _way(self, source: int, target: int, level: int) -> list[tuple[_Link, float]]:
        """The links that a message shares, out of what its sender is in, and into what its receiver is in, with their us a byte.

        Where few ranks stand for all, those of a rack are as busy as these, so each has its part of the link.
        """
        way, here = [], len(self._found.plans)
        for unit in range(level):
            ranks, byte = self._network.ranks[unit], self._network.uplink[unit]
            share = byte * max(1.0, ranks / here)
            way += [((unit, 0, source // ranks), share), ((unit, 1, target // ranks), share)]
        return way

    def _end(self, time: float, index: int) -> None:
        self.last = max(self.last, time)
        for later in self._later[index]:
            self._ready[later] = max(self._ready[later], time)
            self._missing[later] -= 1
            if not self._missing[later]:
                heapq.heappush(self._events, (self._ready[later], _BEGIN, later))

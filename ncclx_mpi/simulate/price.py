"""What plans cost on a modelled network: each step takes its time as soon as it may and what it needs is free.

A message is put through by the rank that sends it, by each link that it shares, out of a node, a rack, a zone and a data centre and into
others, and by the rank that receives it. Each of them puts through one at a time, in the order in which they come, and the next one begins
as soon as the first byte is there; what waits does not hold up others that go elsewhere. A large message starts when its receiver awaits
it, too, a small one when the rank that sends it comes to it. Beside that a rank computes, on its core, and where cores send and receive
themselves these do one thing at a time, for all ranks that share one.
"""

from __future__ import annotations

import heapq

import numpy as np

from ncclx_mpi.algorithms import Algorithm
from ncclx_mpi.collectives.plan import COPY, JOIN, RECV, REDUCE, SEND
from ncclx_mpi.locality.keys import LEVELS
from ncclx_mpi.nodes import nodes_of
from ncclx_mpi.simulate import classes
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.classes import Classes
from ncclx_mpi.simulate.network import Network
from numba_kernels.rows import NamedTuple

_BEGIN, _PASS = range(2)
"""Events: a step begins; a message comes to what it needs next. Of those at one time, in this order."""
_RANK, _CORE = -1, -2
_Port = tuple[int, int, int]
"""Which kind of unit, `_RANK`, `_CORE` or an index of `LEVELS`, 0 for out of it and 1 for into it, and its number; a core has one way."""
_OUT_AND_IN = 2
"""What a rank that moves a byte is charged for, in a formula, where a core does it: it sends as many as it receives."""


class Price(NamedTuple):
    """What a collective costs.

    Attributes
    ----------
    us
        Until the last rank is through.
    nbytes
        That all ranks together send, by how far they go: one number for each of `LEVELS`.
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


def estimate(row: Algorithm, call: Call, network: Network) -> float:
    """Return what the formulas of a row charge, in us: where there are too many steps.

    Every message that leaves a node goes as far as one can, and every byte by the slowest of a rank's own links and of its part of those
    that are shared.
    """
    far = network.level(0, call.size - 1)
    if call.nodes and row.by_node is not None:
        return _estimate_by_node(row, call, network, far)
    needs = row.figures(call.size, call.nbytes)
    shared = (ranks * byte for ranks, byte in zip(network.ranks[:far], network.uplink[:far], strict=True))
    rounds = needs.steps * (network.message + network.latency[far])
    on_core = _OUT_AND_IN * network.core_ranks * network.core[far]
    return rounds + needs.moved * max(network.byte[far], *shared, on_core) + needs.reduced * network.core_ranks * network.reduce


def _estimate_by_node(row: Algorithm, call: Call, network: Network, far: int) -> float:
    """The same of a plan that is told where ranks are, whose bytes out of a node are those of all its ranks."""
    nodes = nodes_of(call.nodes)
    needs, held = row.crossing(nodes, call.nbytes), network.ranks[0]
    shared = (ranks // held * byte for ranks, byte in zip(network.ranks[:far], network.uplink[:far], strict=True))
    messages = needs.near_messages * (network.message + network.latency[0])
    messages += needs.far_messages * (network.message + network.latency[far])
    near_on_core, far_on_core = (_OUT_AND_IN * network.core_ranks * network.core[level] for level in (0, far))
    moved = needs.near * max(network.byte[0], near_on_core)
    moved += needs.far * max(max(network.byte[far], far_on_core) / nodes.fewest, *shared)
    return messages + moved + needs.reduced * network.core_ranks * network.reduce


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
        self._free: dict[_Port, float] = {}
        self._ways: dict[int, list[tuple[_Port, float]]] = {}
        """Of a message that is under way, what it still needs, the last one first, with us that its bytes take there."""
        self._through: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        self._events = [(0.0, _BEGIN, index) for index, missing in enumerate(self._missing) if not missing]
        self.last = 0.0
        while self._events:
            now, event, index = heapq.heappop(self._events)
            if event == _BEGIN:
                self._begin(now, index)
            else:
                self._pass(now, index)

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
                self._start(now, index)
            else:
                self._begun[index] = now
        elif kind == RECV:
            self._begun[index] = now
            if index in self._arrived:
                self._end(max(now, self._arrived[index]), index)
            elif partner in self._begun:
                self._start(now, partner)
        else:
            self._compute(now, index)

    def _compute(self, now: float, index: int) -> None:
        kind, rank = self._kind[index], self._rank[index]
        if kind == JOIN:
            self._end(now, index)
            return
        rate = {COPY: self._network.copy, REDUCE: self._network.reduce}[kind]
        core = self._core(rank)
        done = self._free[core] = max(now, self._free.get(core, 0.0)) + self._nbytes[index] * rate
        self._end(done, index)

    def _start(self, now: float, index: int) -> None:
        """A message sets out."""
        source, target, level = self._rank[index], self._rank[self._found.partner[index]], self._found.levels[index]
        nbytes, bare = self._nbytes[index], self._network.byte[level]
        links = [(port, nbytes * byte) for port, byte in self._links(source, target, level) if byte]
        way = [((_RANK, 0, source), nbytes * bare), *links, ((_RANK, 1, target), nbytes * bare)]
        if byte := self._network.core[level]:
            way = [(self._core(source), nbytes * byte), *way, (self._core(target), nbytes * byte)]
        self._ways[index] = way[::-1]
        self._through[index] = now
        heapq.heappush(self._events, (now, _PASS, index))

    def _pass(self, now: float, index: int) -> None:
        """A message goes through the next thing that it needs, and to the one behind it with its first byte."""
        message, way = self._network.message, self._ways[index]
        port, us = way.pop()
        begin = max(now, self._free.get(port, 0.0))
        done = begin + message + us
        self._free[port] = done if port[0] in (_RANK, _CORE) else begin + us
        self._through[index] = max(self._through[index], done)
        if port[:2] == (_RANK, 0) and self._nbytes[index] <= self._network.eager:
            self._end(self._through[index], index)
        if way:
            heapq.heappush(self._events, (begin, _PASS, index))
        else:
            self._arrive(index)

    def _arrive(self, index: int) -> None:
        """A message is through; if it is a large one, what sent it is complete with that."""
        del self._ways[index]
        done, partner = self._through.pop(index), self._found.partner[index]
        if self._nbytes[index] > self._network.eager:
            self._end(done, index)
        arrives = done + self._network.latency[self._found.levels[index]]
        if partner in self._begun:
            self._end(arrives, partner)
        else:
            self._arrived[partner] = arrives

    def _core(self, rank: int) -> _Port:
        return _CORE, 0, rank // self._network.core_ranks

    def _links(self, source: int, target: int, level: int) -> list[tuple[_Port, float]]:
        """The links that a message shares, out of what its sender is in, and into what its receiver is in, with their us a byte.

        Where few ranks stand for all, those of a rack are as busy as these, so each has its part of the link.
        """
        out, into, here = [], [], len(self._found.plans)
        for unit in range(level):
            ranks, byte = self._network.ranks[unit], self._network.uplink[unit]
            share = byte * max(1.0, ranks / here)
            out.append(((unit, 0, source // ranks), share))
            into.append(((unit, 1, target // ranks), share))
        return [*out, *reversed(into)]

    def _end(self, time: float, index: int) -> None:
        self.last = max(self.last, time)
        for later in self._later[index]:
            self._ready[later] = max(self._ready[later], time)
            self._missing[later] -= 1
            if not self._missing[later]:
                heapq.heappush(self._events, (self._ready[later], _BEGIN, later))

"""Reduce_scatter by node: what goes to another node is reduced before, and every rank of a node brings its part of it there.

::

    nodes A, B of two ranks    on a node:       A0 <-> A1, B0 <-> B1    A0 gets what the node has for A0 and for B0, A1 the rest
                               in each column:  A0 <-> B0, A1 <-> B1    of which A0 keeps its block, and gives B0 the other one

Described by Traeff and Hunold (2020). Only (k - 1) / k * m bytes leave a node, of k nodes, however many ranks p it has. Ranks without a
column, on nodes that have more ranks than the smallest, get their block from one of the node that has. A block is reduced by one rank of
each node, then by one rank of its column, node by node. T = k (p - 1) * alpha + (p - 1) / p * m * (beta + gamma) on a node, and
(k - 1) * (alpha' + m / n * (beta' + gamma)) for each rank between nodes.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Place, Plan, as_numbers
from ncclx_mpi.nodes import NodeMap, one_node


def plan(rank: int, size: int, counts: Counts, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    return _plan(rank, tuple(as_numbers(counts)), nodes or one_node(size))


@functools.lru_cache(maxsize=32)
def _plan(rank: int, counts: tuple[int, ...], nodes: NodeMap) -> Plan:
    steps = _Steps(rank, counts, nodes)
    sums = [steps.reduce_on_node((steps.node + turn) % nodes.number) for turn in range(1, nodes.number + 1)]
    steps.exchange(dict(block for found in sums for block in found))
    return steps.build()


class _Steps(Builder):
    """Writes the steps of one rank."""

    def __init__(self, rank: int, counts: tuple[int, ...], nodes: NodeMap) -> None:
        super().__init__()
        self._rank, self._counts, self._nodes = rank, counts, nodes
        self._offsets = [sum(counts[:block]) for block in range(len(counts))]
        self.node, self._index = nodes.place[rank]
        self._mates = nodes.ranks[self.node]
        self._read: list[int] = []
        """The steps after which INPUT is not read any more."""

    def _blocks(self, node: int, lane: int) -> tuple[int, ...]:
        """Ranks of a node whose blocks a lane has."""
        return self._nodes.ranks[node][lane :: self._nodes.fewest]

    def reduce_on_node(self, node: int) -> list[tuple[int, tuple[Place, int]]]:
        """Reduce what this node has for a node; returns the blocks of the own lane, with where each is, and after which step."""
        lanes, size = self._nodes.fewest, len(self._mates)
        own = self._blocks(node, self._index) if self._index < lanes else ()
        parts = {block: [(INPUT, self._offsets[block])] * size for block in own}
        ready = {block: [-1] * size for block in own}
        for turn in range(1, size):
            origin, target = (self._index - turn) % size, (self._index + turn) % size
            for block in own:
                parts[block][origin] = (TEMP, self.temp(self._counts[block]))
                ready[block][origin] = self.recv(self._mates[origin], parts[block][origin], self._counts[block])
            if target < lanes:
                for block in self._blocks(node, target):
                    place = (INPUT, self._offsets[block])
                    self._read.append(self.send(self._mates[target], place, self._counts[block]))
        return [(block, self._reduced(block, parts[block], ready[block])) for block in own]

    def _reduced(self, block: int, parts: list[Place], ready: list[int]) -> tuple[Place, int]:
        """Where the reduction of some parts of a block is, and after which step. It takes the place of one that is not in INPUT."""
        if len(parts) == 1:
            return parts[0], ready[0]
        low, done = parts[0], ready[0]
        target = low if low[0] == TEMP else parts[1]  # at most one of them is in INPUT
        for high, there in zip(parts[1:], ready[1:], strict=True):
            done = self.reduce(target, low, high, self._counts[block], [done, there])
            low = target
        self._read.append(done)
        return target, done

    def exchange(self, sums: dict[int, tuple[Place, int]]) -> None:
        """Give each node what this one has for it, reduce what comes, and bring it to its rank."""
        nodes = self._nodes
        finished: dict[int, tuple[Place, int]] = {}
        if self._index < nodes.fewest:
            column = nodes.column(self._index)
            for turn in range(1, nodes.number):
                target = (self.node + turn) % nodes.number
                for block in self._blocks(target, self._index):
                    place, done = sums[block]
                    self._read.append(self.send(column[target], place, self._counts[block], [done]))
            for block in self._blocks(self.node, self._index):
                parts, ready = [sums[block][0]] * nodes.number, [sums[block][1]] * nodes.number
                for turn in range(1, nodes.number):
                    origin = (self.node - turn) % nodes.number
                    parts[origin] = (TEMP, self.temp(self._counts[block]))
                    ready[origin] = self.recv(column[origin], parts[origin], self._counts[block])
                finished[block] = self._reduced(block, parts, ready)
        for block, (place, done) in finished.items():
            if block != self._rank:
                self.send(block, place, self._counts[block], [done])
        if self._rank in finished:
            place, done = finished[self._rank]
            self.copy((OUTPUT, 0), place, self._counts[self._rank], [done, *self._read])
        else:
            self.recv(self._mates[self._index % nodes.fewest], (OUTPUT, 0), self._counts[self._rank], self._read)

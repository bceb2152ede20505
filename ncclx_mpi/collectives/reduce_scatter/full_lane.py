"""Reduce_scatter by node: what goes to another node is reduced before, and every rank of a node brings its part of it there.

::

    nodes A, B of two ranks    on a node:       A0 <-> A1, B0 <-> B1    A0 gets what the node has for A0 and for B0, A1 the rest
                               in each column:  A0 <-> B0, A1 <-> B1    of which A0 keeps its block, and gives B0 the other one

Described by Traeff and Hunold (2020). Only (k - 1) / k * m bytes leave a node, of k nodes, however many ranks p it has. Ranks without a
column, on nodes that have more ranks than the smallest, get their block from one of the node that has. Blocks go in chunks, so that one
crosses while the next one is reduced on the node. A block is reduced by one rank of each node, then by one rank of its column, node by node.
T = k (p - 1) * alpha + (p - 1) / p * m * (beta + gamma) on a node, and (k - 1) * (alpha' + m / n * (beta' + gamma)) for each rank between
nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ncclx_mpi.collectives.full_lane import Piece
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Place, Plan, as_numbers, offsets_of
from ncclx_mpi.nodes import NodeMap, one_node

CHUNK = 256 << 10


def plan(rank: int, size: int, counts: Counts, itemsize: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    return _plan(rank, tuple(as_numbers(counts)), itemsize, nodes or one_node(size))


@functools.lru_cache(maxsize=32)
def _plan(rank: int, counts: tuple[int, ...], itemsize: int, nodes: NodeMap) -> Plan:
    steps, nbytes = Builder(), counts[rank]
    if nodes.size == 1:
        steps.copy((OUTPUT, 0), (INPUT, 0), nbytes)
        return steps.build()
    chunks = max(1, -(-max(counts) // max(CHUNK, itemsize)))
    blocks = [Piece(*block).cut(chunks, itemsize) for block in zip(offsets_of(counts), counts, strict=False)]
    way = _Way(steps, rank, nodes, blocks)
    done = [way.reduce(use) for use in range(chunks)]
    steps.copy((OUTPUT, 0), way.result(0), nbytes, [*done, *way.read])
    return steps.build()


class _Way:
    """Writes the steps of one rank, whose block of each rank is cut into chunks, as many of each.

    Attributes
    ----------
    read : list of int
        The steps after which INPUT is not read any more.
    """

    def __init__(self, steps: Builder, rank: int, nodes: NodeMap, blocks: Sequence[Sequence[Piece]]) -> None:
        self._steps, self._rank, self._nodes, self._blocks = steps, rank, nodes, blocks
        self._node, self._index = nodes.place[rank]
        self._mates = nodes.ranks[self._node]
        self._result = steps.temp(sum(piece.length for piece in blocks[rank]))
        self._rooms: list[list[int]] = [[], []]
        self._through = [-1, -1]
        self._use = self._taken = 0
        self._sent: list[int] = []
        """Of this chunk, the steps after which what is in rooms has been sent."""
        self.read: list[int] = []

    def result(self, use: int) -> Place:
        """Where a chunk of the own block is in the end, in TEMP: OUTPUT may be what is still to be sent."""
        pieces = self._blocks[self._rank]
        return TEMP, self._result + pieces[use].start - pieces[0].start

    def reduce(self, use: int) -> int:
        """Add the steps for a chunk of all blocks; returns the one after which that of the own block is reduced."""
        self._use, self._taken, self._sent = use, 0, []
        number, sums = self._nodes.number, {}
        for turn in range(1, number + 1):
            sums.update(self._reduce_on_node((self._node + turn) % number))
        done = self._exchange(sums)
        self._through[use % 2] = self._steps.join([done, *self._sent])
        return done

    def _lane(self, node: int, lane: int) -> tuple[int, ...]:
        """Ranks of a node whose blocks a lane has."""
        return self._nodes.ranks[node][lane :: self._nodes.fewest]

    def _piece(self, block: int) -> Piece:
        return self._blocks[block][self._use]

    def _receive(self, origin: int, block: int) -> tuple[Place, int]:
        """Receive what another rank has of a block; returns where to, and the step. Two sets of rooms take turns."""
        rooms = self._rooms[self._use % 2]
        if self._taken == len(rooms):
            rooms.append(self._steps.temp(max(piece.length for piece in self._blocks[block])))
        place = (TEMP, rooms[self._taken])
        self._taken += 1
        return place, self._steps.recv(origin, place, self._piece(block).length, [self._through[self._use % 2]])

    def _reduce_on_node(self, node: int) -> dict[int, tuple[Place, int]]:
        """Reduce what this node has for a node: of each block of the own lane, where it is, and after which step."""
        lanes, size = self._nodes.fewest, len(self._mates)
        own = self._lane(node, self._index) if self._index < lanes else ()
        parts = {block: [((INPUT, self._piece(block).start), -1)] * size for block in own}
        for turn in range(1, size):
            origin, target = (self._index - turn) % size, (self._index + turn) % size
            for block in own:
                parts[block][origin] = self._receive(self._mates[origin], block)
            for block in self._lane(node, target) if target < lanes else ():
                piece = self._piece(block)
                self.read.append(self._steps.send(self._mates[target], (INPUT, piece.start), piece.length))
        is_last = self._nodes.number == 1
        return {block: self._reduced(block, parts[block], is_last) for block in own}

    def _reduced(self, block: int, parts: list[tuple[Place, int]], is_last: bool) -> tuple[Place, int]:
        """Where the reduction of some parts of a block is, and after which step: that of the own block in the end where it has its place."""
        (low, done), *others = parts
        if not others:
            return low, done
        target = low if low[0] == TEMP else others[0][0]  # at most one of them is in INPUT
        if is_last and block == self._rank:
            target = self.result(self._use)
        for high, there in others:
            done = self._steps.reduce(target, low, high, self._piece(block).length, [done, there])
            low = target
        self.read.append(done)
        return target, done

    def _exchange(self, sums: dict[int, tuple[Place, int]]) -> int:
        """Give each node what this one has for it, reduce what comes, and bring it to its rank; returns when the own block is there."""
        steps, nodes, finished = self._steps, self._nodes, {}
        if self._index < nodes.fewest:
            column = nodes.column(self._index)
            for turn in range(1, nodes.number):
                target = (self._node + turn) % nodes.number
                for block in self._lane(target, self._index):
                    self._send(column[target], block, *sums[block])
            for block in self._lane(self._node, self._index):
                parts = [sums[block]] * nodes.number
                for turn in range(1, nodes.number):
                    origin = (self._node - turn) % nodes.number
                    parts[origin] = self._receive(column[origin], block)
                finished[block] = self._reduced(block, parts, is_last=True)
        for block, (place, done) in finished.items():
            if block != self._rank:
                self._send(block, block, place, done)
        if self._rank in finished:
            return finished[self._rank][1]
        return steps.recv(self._mates[self._index % nodes.fewest], self.result(self._use), self._piece(self._rank).length)

    def _send(self, target: int, block: int, place: Place, done: int) -> None:
        sent = self._steps.send(target, place, self._piece(block).length, [done])
        (self.read if place[0] == INPUT else self._sent).append(sent)

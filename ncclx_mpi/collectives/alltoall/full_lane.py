"""Alltoall by node: what goes to another node is brought together on this one, in few messages.

::

    nodes A, B of two ranks    on a node:       A0 > A1   blocks of A0 for B1        A1 > A0   blocks of A1 for B0
                               between nodes:   A0 <> B0  blocks of all of A for B0, and of all of B for A0
                                                A1 <> B1  the same for the other column
                               beside that:     A0 <> A1  blocks for each other      B0 <> B1

Described by Traeff and Hunold (2020). A rank sends one message to each other node in the place of one to each rank there; each block goes
once more over its node. So it is for small blocks. Where nodes have unequal numbers of ranks, there are as many columns as the smallest has
ranks, and blocks for a rank without one come by way of a rank that has. All blocks have one size, as the ranks in between must know it.
T = (k - 1) * (alpha' + p * p * m / n * beta') between k nodes of p ranks, and (p - 1) * (2 * alpha + k * m / n * beta) on each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Place, Plan, Shape, columns, multiples
from ncclx_mpi.nodes import NodeMap, one_node


def plan(
    rank: int,
    size: int,
    send_counts: Counts,
    send_offsets: Counts,
    counts: Counts,
    offsets: Counts,
    in_place: bool,
    nodes: NodeMap | None = None,
) -> Plan:
    """Steps of `rank`; all in bytes, one entry for each peer, and all counts are the same. In place, OUTPUT holds what is sent too."""
    shape, rooms = _shape(rank, nodes or one_node(size), in_place)
    sizes, temp = multiples(counts, rooms)
    return shape.fill(offsets if in_place else send_offsets, offsets, sizes, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, nodes: NodeMap, in_place: bool) -> tuple[Shape, int]:
    """The steps, and how many blocks their temporary memory holds."""
    writer = _Writer(rank, nodes, in_place)
    here = writer.gather()
    writer.read_all()
    came = writer.exchange(here)
    writer.exchange_on_node()
    writer.spread(came)
    return writer.steps.shape(), writer.rooms


def _is_run(ranks: tuple[int, ...]) -> bool:
    """Whether ranks follow each other, so that blocks in the order of ranks are one piece of memory."""
    return ranks[-1] - ranks[0] == len(ranks) - 1


class _Writer:
    """Writes the steps of one rank. Sizes and offsets in TEMP are blocks, which the values of the shape make bytes.

    Attributes
    ----------
    steps : Builder
        The steps.
    rooms : int
        Blocks of temporary memory.
    """

    def __init__(self, rank: int, nodes: NodeMap, in_place: bool) -> None:
        self.steps, self.rooms = Builder(), 0
        self._rank, self._nodes, self._in_place = rank, nodes, in_place
        self._node, self._index = nodes.place[rank]
        self._mates, self._lanes = nodes.ranks[self._node], nodes.fewest
        self._send_offsets, self._offsets, (self._first,) = columns(nodes.size, nodes.size, 1)
        self._reads: list[int] = []
        self._aside: dict[int, Place] = {}
        self._read = -1

    @property
    def _others(self) -> list[int]:
        """The other nodes, the next one first."""
        return [(self._node + turn) % self._nodes.number for turn in range(1, self._nodes.number)]

    def _lane(self, node: int, index: int) -> tuple[int, ...]:
        """The ranks of a node whose blocks come there by the column of this index."""
        return self._nodes.ranks[node][index :: self._lanes]

    def _room(self, blocks: int) -> int:
        self.rooms += blocks
        return self.rooms - blocks

    def _bytes(self, blocks: int) -> int:
        """The number of the value that is so many blocks."""
        return self._first + blocks

    def _at(self, room: int) -> Place:
        return TEMP, self._bytes(room)

    def _copy(self, target: Place, source: Place, blocks: int = 1, after: Iterable[int] = ()) -> int:
        return self.steps.copy(target, source, self._bytes(blocks), after)

    def _given(self, peer: int) -> Place:
        """Where the own block for a rank is given."""
        return (OUTPUT if self._in_place else INPUT), self._send_offsets[peer]

    def _pack(self, room: int, peers: Iterable[int]) -> list[int]:
        """Copy the own blocks for some ranks to a room; returns the steps."""
        copies = [self._copy(self._at(room + number), self._given(peer)) for number, peer in enumerate(peers)]
        self._reads += copies
        return copies

    def gather(self) -> dict[int, tuple[int, int]]:
        """Bring blocks for other nodes to their columns on this one.

        Returns, of each other node, the room from which the blocks of this rank's column go there, and the step after which they are there.
        """
        own = self._index if self._index < self._lanes else -1
        there = {node: self._room(len(self._mates) * len(self._lane(node, own))) for node in self._others} if own >= 0 else {}
        ready: dict[int, list[int]] = {
            node: self._pack(room + own * len(self._lane(node, own)), self._lane(node, own)) for node, room in there.items()
        }
        for turn in range(1, len(self._mates)):
            origin, target = ((self._index + step) % len(self._mates) for step in (-turn, turn))
            peers = [peer for node in self._others for peer in self._lane(node, target)] if target < self._lanes else []
            if peers:
                room = self._room(len(peers))
                copies = self._pack(room, peers)
                self.steps.send(self._mates[target], self._at(room), self._bytes(len(peers)), copies)
            if there:
                self._collect(origin, there, ready)
        return {node: (room, self.steps.join(ready[node])) for node, room in there.items()}

    def _collect(self, origin: int, there: dict[int, int], ready: dict[int, list[int]]) -> None:
        """Receive what a mate gives to this rank's column, and put its blocks in front of those for the same node."""
        lanes = {node: len(self._lane(node, self._index)) for node in there}
        places = {node: room + origin * lanes[node] for node, room in there.items()}
        # Of one other node they come to where they belong.
        room = self._room(sum(lanes.values())) if len(there) > 1 else next(iter(places.values()))
        came = self.steps.recv(self._mates[origin], self._at(room), self._bytes(sum(lanes.values())))
        for node, place in places.items():
            ready[node].append(self._copy(self._at(place), self._at(room), lanes[node], [came]))
            room += lanes[node]

    def read_all(self) -> None:
        """In place, put aside what goes to ranks of this node; from now on OUTPUT may be written when all that is given has been read."""
        if not self._in_place:
            return
        for peer in self._mates:
            if peer != self._rank:
                self._aside[peer] = self._at(room := self._room(1))
                self._pack(room, [peer])
        self._read = self.steps.join(self._reads)

    def exchange(self, here: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Exchange blocks with the column; returns the room of those that come from each node, and the step by which they do.

        Of ranks that follow each other, those for this rank alone come to where they belong.
        """
        came, own = {}, len(self._lane(self._node, self._index)) if here else 0
        for turn in range(1, self._nodes.number if here else 1):
            origin, target = ((self._node + step) % self._nodes.number for step in (-turn, turn))
            room, ready = here[target]
            blocks = len(self._mates) * len(self._lane(target, self._index))
            self.steps.send(self._nodes.ranks[target][self._index], self._at(room), self._bytes(blocks), [ready])
            blocks, sources = len(self._nodes.ranks[origin]) * own, self._nodes.ranks[origin]
            if own == 1 and _is_run(sources):
                self.steps.recv(sources[self._index], (OUTPUT, self._offsets[sources[0]]), self._bytes(blocks), [self._read])
                continue
            room = self._room(blocks)
            received = self.steps.recv(sources[self._index], self._at(room), self._bytes(blocks))
            came[origin] = room, received
        return came

    def exchange_on_node(self) -> None:
        """Give ranks of this node their blocks, and take those that they have for this one."""
        one = self._bytes(1)
        for turn in range(1, len(self._mates)):
            origin, target = (self._mates[(self._index + step) % len(self._mates)] for step in (-turn, turn))
            self.steps.recv(origin, (OUTPUT, self._offsets[origin]), one, [self._read])
            self.steps.send(target, self._aside.get(target, self._given(target)), one, [self._read])
        if not self._in_place:
            self._copy((OUTPUT, self._offsets[self._rank]), self._given(self._rank))

    def spread(self, came: dict[int, tuple[int, int]]) -> None:
        """Copy blocks from other nodes to where they belong, here or, for a rank that has no column, by way of a message to it."""
        strangers = [peer for node in self._others for peer in self._nodes.ranks[node]]
        if self._index >= self._lanes and strangers:
            room = self._room(len(strangers))
            got = self.steps.recv(self._mates[self._index % self._lanes], self._at(room), self._bytes(len(strangers)))
            for number, peer in enumerate(strangers):
                self._copy((OUTPUT, self._offsets[peer]), self._at(room + number), 1, [got, self._read])
        served = self._lane(self._node, self._index) if came else ()
        for place, mate in enumerate(served):
            room = self._room(len(strangers)) if mate != self._rank else 0
            copies = []
            for number, peer in enumerate(strangers):
                node, index = self._nodes.place[peer]
                if node not in came:
                    continue
                source, received = came[node]
                target = self._at(room + number) if mate != self._rank else (OUTPUT, self._offsets[peer])
                after = [received] if mate != self._rank else [received, self._read]
                copies.append(self._copy(target, self._at(source + index * len(served) + place), 1, after))
            if mate != self._rank:
                self.steps.send(mate, self._at(room), self._bytes(len(strangers)), copies)

"""What the full-lane algorithms have in common: a node's ranks share the way between nodes among them.

Rank i of each node is in column i, which has a part of the bytes to itself, its lane. There are as many columns as the smallest node has
ranks. What all ranks give is cut into lanes, and these into chunks, which follow each other through two sets of rooms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder
from ncclx_mpi.nodes import NodeMap
from numba_kernels.rows import NamedTuple


class Piece(NamedTuple):
    """Bytes of a buffer."""

    start: int
    length: int

    def cut(self, parts: int, itemsize: int) -> list[Piece]:
        """Cut it into nearly equal parts of whole elements."""
        count = self.length // itemsize
        edges = [self.start + count * part // parts * itemsize for part in range(parts + 1)]
        return [Piece(start, end - start) for start, end in itertools.pairwise(edges)]


class Rooms:
    """Temporary memory for so many pieces of `nbytes`, twice if there are several uses, which take turns: one waits for the last but one."""

    def __init__(self, steps: Builder, pieces: int, nbytes: int, uses: int) -> None:
        self._sets = [[steps.temp(nbytes) for _ in range(pieces)] for _ in range(min(2, uses))]
        self._through = [-1, -1]

    def of(self, use: int) -> tuple[list[int], int]:
        """Where the pieces of a use lie, and after which step."""
        return self._sets[use % len(self._sets)], self._through[use % 2]

    def leave(self, use: int, through: int) -> None:
        """Say after which step a use needs them no more."""
        self._through[use % 2] = through


class FullLane:
    """Writes the steps of one rank.

    Parameters
    ----------
    steps
        Where to.
    rank, nodes
        Whose, and where all are.
    lanes
        Of each lane its chunks, one after the other, as many of each; a chunk may be empty.
    itemsize
        Bytes of an element, which is never cut.

    Attributes
    ----------
    node, index : int
        The rank's node, and its place there.
    mates : tuple of int
        The ranks of the node.
    column : tuple of int
        The ranks of the own column, node by node; empty for a rank that has no lane.
    """

    def __init__(self, steps: Builder, rank: int, nodes: NodeMap, lanes: Sequence[Sequence[Piece]], itemsize: int) -> None:
        self.steps, self.lanes, self._itemsize = steps, lanes, itemsize
        self.node, self.index = nodes.place[rank]
        self.mates = nodes.ranks[self.node]
        self.column = nodes.column(self.index) if self.index < nodes.fewest else ()
        own, uses = (lanes[self.index] if self.column else []), len(lanes[0])
        longest = max((piece.length for piece in own), default=0)
        part = max((piece.cut(nodes.number, itemsize)[self.node].length for piece in own), default=0)
        self._on_node = Rooms(steps, _rooms_for(len(self.mates)), longest, uses)
        self._in_column = Rooms(steps, _rooms_for(len(self.column)), part, uses)

    def reduce_on_node(self, use: int) -> tuple[dict[int, int], int]:
        """Reduce a chunk of the own lane to its place in OUTPUT, and give the others theirs.

        Returns the step after which the chunk of each lane in INPUT has been sent, and that after which the own one is there.
        """
        steps, sent, size = self.steps, {}, len(self.mates)
        parts, ready = [(INPUT, 0)] * size, [-1] * size
        rooms, after = self._on_node.of(use)
        if self.column:
            own = self.lanes[self.index][use]
            parts[self.index] = (INPUT, own.start)
        for turn in range(1, size):
            origin, target = (self.index - turn) % size, (self.index + turn) % size
            if self.column:
                parts[origin] = (TEMP, rooms[turn - 1])
                ready[origin] = steps.recv(self.mates[origin], parts[origin], own.length, [after])
            if target < len(self.lanes):
                piece = self.lanes[target][use]
                sent[target] = steps.send(self.mates[target], (INPUT, piece.start), piece.length)
        if not self.column:
            return sent, -1
        done = steps.reduce_in_order((OUTPUT, own.start), parts, ready, rooms[-1] if rooms else 0, own.length)
        self._on_node.leave(use, done)
        return sent, done

    def reduce_in_column(self, use: int, there: int) -> int:
        """Reduce a chunk of the own lane, which `there` makes in OUTPUT, to the part of it that is this node's; returns the last step."""
        steps, size = self.steps, len(self.column)
        pieces = self.parts(use)
        own = pieces[self.node]
        parts, ready = [(OUTPUT, own.start)] * size, [there] * size
        rooms, after = self._in_column.of(use)
        for turn in range(1, size):
            origin, target = (self.node - turn) % size, (self.node + turn) % size
            parts[origin] = (TEMP, rooms[turn - 1])
            ready[origin] = steps.recv(self.column[origin], parts[origin], own.length, [after])
            steps.send(self.column[target], (OUTPUT, pieces[target].start), pieces[target].length, [there])
        done = steps.reduce_in_order((OUTPUT, own.start), parts, ready, rooms[-1] if rooms else 0, own.length)
        self._in_column.leave(use, done)
        return done

    def parts(self, use: int) -> list[Piece]:
        """A chunk of the own lane, cut into a part for each node."""
        return self.lanes[self.index][use].cut(len(self.column), self._itemsize)


def _rooms_for(size: int) -> int:
    """What a rank gets of the others, and a partial result if there is more than one."""
    return size - 1 + (size > 2) if size else 0


def lanes_of(count: int, itemsize: int, number: int, chunk: int) -> list[list[Piece]]:
    """Cut so many elements into lanes, and these into chunks of up to `chunk` bytes, as many each."""
    lanes = Piece(0, count * itemsize).cut(number, itemsize)
    chunks = max(1, max(-(-lane.length // max(chunk, itemsize)) for lane in lanes))
    return [lane.cut(chunks, itemsize) for lane in lanes]

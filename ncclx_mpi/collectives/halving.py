"""What the algorithms by recursive halving have in common: a vector is reduced by halves, and each group of ranks ends with a part of it.

::

    groups 0 to 3, parts A to D    round 0:  0 <> 2   1 <> 3     0 and 1 keep A B, 2 and 3 keep C D, and reduce what comes of it
                                   round 1:  0 <> 1   2 <> 3     0 keeps A, 1 keeps B, 2 keeps C, 3 keeps D

What was halved can be doubled again, by the same partners in the opposite order: :meth:`Halving.spread` brings all parts to all, and
:meth:`Halving.gather` to one. What is exchanged goes in pieces that follow each other, to a few rooms in turn, so that one is reduced while
the next ones come.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

from ncclx_mpi import costs
from ncclx_mpi.collectives.groups import Groups
from ncclx_mpi.collectives.plan import INPUT, TEMP, Builder, Place
from numba_kernels.rows import NamedTuple

CHUNK = costs.HALVES_CHUNK


class Moved(NamedTuple):
    """Bytes of the vector, and a step after which they are there, or have been sent."""

    start: int
    length: int
    step: int


class Halving:
    """Writes the steps of a rank that speaks for its group.

    Parameters
    ----------
    steps
        Where to.
    groups, rank
        The groups, and who writes.
    edges
        Where the part of each group begins in the vector, in bytes, and where the last one ends.
    itemsize
        Bytes of an element.
    sums
        Where the vector is reduced, the place of its first byte; None: in temporary memory.

    Attributes
    ----------
    read : list of int
        The steps after which INPUT is not read any more.
    """

    def __init__(
        self, steps: Builder, groups: Groups, rank: int, edges: Sequence[int], itemsize: int, sums: Place | None = None
    ) -> None:
        self._steps, self._groups, self._edges, self._itemsize, self._sums = steps, groups, edges, itemsize, sums
        self._group = groups.group_of(rank)
        self._have: Place = (INPUT, 0)
        self._there: list[Moved] = []
        self._given: dict[int, list[Moved]] = {}
        taken = [self._cut(*self._ranges(turn)[0]) for turn in range(groups.rounds)]
        taken += [self._all()] if groups.mate_of(rank) >= 0 else []
        lengths = [length for pieces in taken for _, length in pieces]
        self._rooms = [((TEMP, steps.temp(max(lengths))), -1) for _ in lengths[: costs.HALVES_ROOMS]] if groups.speaks(rank) else []
        """For what comes, and a step after which each of them is free."""
        self.read: list[int] = []

    def give(self, mate: int) -> None:
        """Send all that there is to the other rank of a pair."""
        for start, length in self._all():
            self.read.append(self._steps.send(mate, self.place(start), length, self.after(start, length)))

    def take(self, mate: int, place: Place) -> None:
        """Receive all that the other rank of a pair has, after what was given to it."""
        for (start, length), given in zip(self._all(), self.read, strict=True):
            self._steps.recv(mate, (place[0], place[1] + start), length, [given])

    def fold(self, mate: int) -> None:
        """Reduce what the other rank of a pair has."""
        self._exchange(-1, mate, [], self._all())

    def halve(self) -> None:
        """Exchange and reduce, until the part of the group is reduced."""
        for turn in reversed(range(self._groups.rounds)):
            own, theirs = self._ranges(turn)
            self._exchange(turn, self._partner(turn), self._cut(*theirs), self._cut(*own))

    def spread(self) -> None:
        """Bring all parts to all groups: each gives what it has, and has twice as much."""
        for turn in range(self._groups.rounds):
            self._double(turn, is_sent=True, is_received=True)

    def gather(self, root: int) -> None:
        """Bring all parts to a group."""
        for turn in range(self._groups.rounds):
            is_sent = bool((self._group ^ root) >> turn & 1)
            self._double(turn, is_sent, not is_sent)
            if is_sent:
                return

    def place(self, start: int) -> Place:
        """Where a byte of the vector is."""
        buffer, offset = self._have
        return buffer, offset + start

    def after(self, start: int, length: int) -> list[int]:
        """The steps after which so many bytes from `start` on are there."""
        first = max(0, bisect_right(self._there, (start, math.inf)) - 1)
        covering = itertools.takewhile(lambda piece: piece.start < start + length, itertools.islice(self._there, first, None))
        return [piece.step for piece in covering]

    def _partner(self, turn: int) -> int:
        return self._groups.speaker_of(self._group ^ 1 << turn)

    def _ranges(self, turn: int) -> list[tuple[int, int]]:
        """First byte and end of what this rank keeps in a round, and of what its partner keeps."""
        return [(self._edges[groups.start], self._edges[groups.stop]) for groups in self._groups.halves(self._group, turn)]

    def _all(self) -> list[tuple[int, int]]:
        return self._cut(self._edges[0], self._edges[-1])

    def _cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """First byte and bytes of the pieces of a range, of whole elements."""
        length = max(1, CHUNK // self._itemsize) * self._itemsize
        return [(each, min(length, end - each)) for each in range(start, end, length)]

    def _exchange(self, turn: int, partner: int, given: list[tuple[int, int]], kept: list[tuple[int, int]]) -> None:
        """Give pieces to a partner, and reduce what it has of others: after as many were given in the round before, as they come later."""
        steps, sent, reduced, before = self._steps, [], [], self._given.get(turn + 1, [])
        if self._sums is None:
            self._sums = (TEMP, steps.temp(sum(length for _, length in kept)) - (kept[0][0] if kept else 0))
        for index, (giving, keeping) in enumerate(itertools.zip_longest(given, kept)):
            if giving:
                start, length = giving
                sent.append(Moved(start, length, steps.send(partner, self.place(start), length, self.after(start, length))))
            if keeping:
                start, length = keeping
                room, free = self._rooms.pop(0)
                came = steps.recv(partner, room, length, [free, before[min(index, len(before) - 1)].step if before else -1])
                target = (self._sums[0], self._sums[1] + start)
                done = steps.reduce(target, room, self.place(start), length, [came, *self.after(start, length)])
                self._rooms.append((room, done))
                reduced.append(Moved(start, length, done))
        if self._have[0] == INPUT:
            self.read += [piece.step for piece in (*sent, *reduced)]
        self._given[turn] = sent
        self._have, self._there = self._sums, reduced

    def _double(self, turn: int, is_sent: bool, is_received: bool) -> None:
        """Give what there is to the partner of a round, take what it has, or both: where that goes, what was given before has been sent."""
        steps, partner, came = self._steps, self._partner(turn), []
        (start, end), _ = self._ranges(turn)
        given = self._cut(start, end) if is_sent else []
        taken = self._given[turn] if is_received else []
        for giving, taking in itertools.zip_longest(given, taken):
            if giving:
                start, length = giving
                steps.send(partner, self.place(start), length, self.after(start, length))
            if taking:
                step = steps.recv(partner, self.place(taking.start), taking.length, [taking.step])
                came.append(taking._replace(step=step))
        self._there = sorted([*self._there, *came])

"""Reduce_scatter: every rank sends each block to its owner, which reduces what it gets in rank order.

::

    rank r -- block b of its input --> rank b: ((0 op 1) op 2) op ...  ->  OUTPUT of rank b

Blocks go in chunks, so that one is reduced, while it is in the cache, as the next one comes.
T = (n - 1) * alpha + (n - 1) / n * m * (beta + gamma); a block and two sets of n chunks of temporary memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Place, Plan, Shape, as_numbers, columns, offsets_of

CHUNK = 256 << 10


def plan(rank: int, size: int, counts: Counts, itemsize: int) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    nbytes = int(counts[rank])
    chunks, values, temp = in_chunks(offsets_of(as_numbers(counts)), itemsize, rank)
    edges = [temp + values[2 * use + 1][rank] - values[1][rank] for use in range(chunks)]
    return _shape(rank, size, chunks).fill([nbytes], edges, *values, temp=temp + nbytes)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, chunks: int) -> Shape:
    steps = Builder()
    (nbytes,), results, *values = columns(1, chunks, *lengths(size, chunks))
    done: list[int] = []
    for result, exchange in zip(results, exchanges(steps, rank, chunks, values), strict=True):
        reduced, sent = exchange.reduce((TEMP, result))
        done += [reduced, *sent.values()]
    steps.copy((OUTPUT, 0), (TEMP, results[0]), nbytes, done)
    return steps.shape()


class Exchange:
    """Writes the steps of one rank for one chunk of all blocks.

    Parameters
    ----------
    steps
        Where to.
    rank
        Who writes.
    counts, offsets
        Bytes of the chunk of each rank's block, and where it begins in INPUT.
    rooms
        Offsets in TEMP of rooms for a chunk, as many as there are ranks: one for partial results, and for what comes from the others.
    after
        A step after which the rooms may be written.
    """

    def __init__(
        self, steps: Builder, rank: int, counts: Sequence[int], offsets: Sequence[int], rooms: Sequence[int], after: int = -1
    ) -> None:
        self.counts, self.offsets = counts, offsets
        self._steps, self._rank, self._rooms, self._after = steps, rank, rooms, after
        self.last = -1
        """A step after which the rooms are not read any more."""

    @property
    def scratch(self) -> Place:
        """The room for partial results, where the last one may be, too."""
        return TEMP, self._rooms[0]

    def reduce(self, target: Place) -> tuple[int, dict[int, int]]:
        """Add steps after the first of which, that is returned, `target` holds the reduction of the chunk of the own block.

        The others are those after which messages do not read the chunk of each other rank's block in INPUT any more.
        """
        steps, rank, size, nbytes = self._steps, self._rank, len(self.counts), self.counts[self._rank]
        parts, ready, sent = [(INPUT, self.offsets[rank])] * size, [-1] * size, {}
        for turn in range(1, size):
            origin, owner = (rank - turn) % size, (rank + turn) % size
            parts[origin] = (TEMP, self._rooms[turn])
            ready[origin] = steps.recv(origin, parts[origin], nbytes, [self._after])
            sent[owner] = steps.send(owner, (INPUT, self.offsets[owner]), self.counts[owner])
        self.last = steps.reduce_in_order(target, parts, ready, self._rooms[0], nbytes, [self._after])
        return self.last, sent


def exchanges(steps: Builder, rank: int, chunks: int, values: Sequence[Sequence[int]]) -> Iterator[Exchange]:
    """All chunks, one after the other, of values as :func:`in_chunks` has them. Two sets of rooms take turns."""
    after = [-1, -1]
    for use in range(chunks):
        exchange = Exchange(steps, rank, values[2 * use], values[2 * use + 1], values[2 * chunks + use % 2], after[use % 2])
        yield exchange
        after[use % 2] = exchange.last


def lengths(size: int, chunks: int) -> list[int]:
    """How many values of a shape each vector of :func:`in_chunks` has."""
    return [size] * (2 * chunks + min(2, chunks))


def in_chunks(edges: Sequence[int], itemsize: int, rank: int) -> tuple[int, list[Sequence[int]], int]:
    """How many chunks blocks have which begin at `edges`, where the last one ends; values of a shape, and bytes in TEMP.

    Values: of each chunk the bytes of each rank's block and where they begin; then one set of rooms in TEMP, or two, for those of `rank`.
    """
    counts, size = lengths_between(edges), len(edges) - 1
    chunks = max(1, -(-max(counts) // max(CHUNK, itemsize)))
    cuts = [[first + nbytes // itemsize * use // chunks * itemsize for first, nbytes in zip(edges, counts, strict=False)]
            for use in range(chunks + 1)]  # fmt: skip
    values: list[Sequence[int]] = []
    for starts, ends in itertools.pairwise(cuts):
        values += [end - start for start, end in zip(starts, ends, strict=True)], starts
    room = (max(pieces[rank] for pieces in values[::2]) + 63) // 64 * 64
    sets = min(2, chunks)
    values += [[room * (first + index) for index in range(size)] for first in range(0, sets * size, size)]
    return chunks, values, sets * size * room


def even_edges(count: int, itemsize: int, size: int) -> list[int]:
    """Where `size` nearly equal blocks of `count` elements begin, in bytes, and where the last one ends."""
    return [count * block // size * itemsize for block in range(size + 1)]


def lengths_between(edges: Sequence[int]) -> list[int]:
    """Bytes of blocks between their edges."""
    return [end - first for first, end in itertools.pairwise(edges)]

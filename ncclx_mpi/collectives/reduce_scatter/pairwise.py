"""Reduce_scatter: every rank sends each block to its owner, which reduces what it gets in rank order.

::

    rank r -- block b of its input --> rank b: ((0 op 1) op 2) op ...  ->  OUTPUT of rank b

T = (n - 1) * alpha + (n - 1) / n * m * (beta + gamma), n blocks of temporary memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Plan, Shape, as_numbers, columns, offsets_of


def plan(rank: int, size: int, counts: Counts) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    blocks = as_numbers(counts)
    rooms, temp = _rooms(size, blocks[rank])
    return _shape(rank, size).fill(blocks, offsets_of(blocks)[:-1], rooms, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int) -> Shape:
    steps = Builder()
    counts, offsets, rooms = columns(size, size, rooms_of(size))
    done, sent = exchange_and_reduce(steps, rank, counts, offsets, rooms)
    steps.copy((OUTPUT, 0), (TEMP, rooms[0]), counts[rank], [done, sent])
    return steps.shape()


def rooms_of(size: int) -> int:
    """How many blocks in TEMP :func:`exchange_and_reduce` needs: the result, what comes from the others, and partial results."""
    return size + 1


def exchange_and_reduce(
    steps: Builder, rank: int, counts: Sequence[int], offsets: Sequence[int], rooms: Sequence[int]
) -> tuple[int, int]:
    """Add the steps after which the first of `rooms`, which are offsets in TEMP, holds the reduction of block `rank`.

    Returns the last of them, and one after which messages do not read INPUT any more.
    """
    size, nbytes = len(counts), counts[rank]
    parts, ready, sends = [(INPUT, offsets[rank])] * size, [-1] * size, []
    for turn in range(1, size):
        origin, owner = (rank - turn) % size, (rank + turn) % size
        parts[origin] = (TEMP, rooms[turn])
        ready[origin] = steps.recv(origin, parts[origin], nbytes)
        sends.append(steps.send(owner, (INPUT, offsets[owner]), counts[owner]))
    done = steps.reduce_in_order((TEMP, rooms[0]), parts, ready, rooms[size], nbytes)
    return done, steps.join(sends)


def _rooms(size: int, nbytes: int) -> tuple[list[int], int]:
    """Offsets in TEMP of so many rooms for a block of `nbytes`, and the bytes of all."""
    aligned = (nbytes + 63) // 64 * 64
    return [room * aligned for room in range(rooms_of(size))], rooms_of(size) * aligned


def even_edges(count: int, itemsize: int, size: int) -> list[int]:
    """Where `size` nearly equal blocks of `count` elements begin, in bytes, and where the last one ends."""
    return [count * block // size * itemsize for block in range(size + 1)]


def lengths_between(edges: Sequence[int]) -> list[int]:
    """Bytes of blocks between their edges."""
    return [end - first for first, end in itertools.pairwise(edges)]


def even_blocks(count: int, itemsize: int, size: int, rank: int) -> tuple[list[list[int]], int]:
    """Values of a shape for `count` elements cut into `size` nearly equal blocks, and bytes in TEMP.

    Values: bytes and byte offset of each block, and the rooms for that of `rank`.
    """
    edges = even_edges(count, itemsize, size)
    rooms, temp = _rooms(size, edges[rank + 1] - edges[rank])
    return [lengths_between(edges), edges[:-1], rooms], temp

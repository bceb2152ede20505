"""Allreduce around a ring: every block is reduced on its way around, and its result goes around once more.

::

    reduce-scatter, n - 1 turns:  block b:  b  -->  b + 1  -->  ...  -->  b - 1      each rank adds its own block
    allgather, n - 1 turns:       result b: b - 1  -->  b  -->  ...  -->  b - 2

Blocks go in chunks, so that a rank reduces one while the next one comes. Each rank talks to its two neighbours only and sends no more bytes
than it must: the algorithm for large arrays on a network. Each block is reduced from another rank on, ((b op b + 1) op b + 2) ..., by one
rank after the other: all ranks get the same bits, but the operation has to commute.
T = 2 (n - 1) * alpha + (n - 1) / n * m * (2 beta + gamma); 2 m / n bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan

CHUNK = 1 << 20


@functools.lru_cache(maxsize=32)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT.

    Where a result arrives, nothing is to be sent any more: it is made of what was there.
    """
    steps = Builder()
    if size == 1:
        steps.copy((OUTPUT, 0), (INPUT, 0), count * itemsize)
        return steps.build()
    blocks = [_chunks(count * index // size, count * (index + 1) // size, itemsize) for index in range(size)]
    done = _reduce_scatter(steps, rank, blocks)
    for turn in range(size - 1):
        passed, coming = blocks[(rank + 1 - turn) % size], blocks[(rank - turn) % size]
        for start, length in passed:
            steps.send((rank + 1) % size, (OUTPUT, start), length, [done[start]])
        for start, length in coming:
            done[start] = steps.recv((rank - 1) % size, (OUTPUT, start), length)
    return steps.build()


_Block = list[tuple[int, int]]
"""(first byte, bytes) of its chunks."""


def _reduce_scatter(steps: Builder, rank: int, blocks: list[_Block]) -> dict[int, int]:
    """Add the steps after which block rank + 1 is reduced in OUTPUT; returns, for each chunk by its first byte, the step that reduces it."""
    size = len(blocks)
    largest = max(sum(length for _, length in block) for block in blocks)
    rooms = [steps.temp(largest), steps.temp(largest)]
    done: dict[int, int] = {}
    last = [[-1] * max(map(len, blocks)) for _ in rooms]
    for turn in range(size - 1):
        passed, coming = blocks[(rank - turn) % size], blocks[(rank - turn - 1) % size]
        for start, length in passed:
            steps.send((rank + 1) % size, (INPUT if turn == 0 else OUTPUT, start), length, [done.get(start, -1)])
        for index, (start, length) in enumerate(coming):
            place = (TEMP, rooms[turn % 2] + start - coming[0][0])
            came = steps.recv((rank - 1) % size, place, length, [last[turn % 2][index]])
            done[start] = last[turn % 2][index] = steps.reduce((OUTPUT, start), place, (INPUT, start), length, [came])
    return done


def _chunks(first: int, end: int, itemsize: int) -> _Block:
    """The elements from `first` to `end`, cut into chunks of whole ones."""
    length = max(1, CHUNK // itemsize)
    return [(start * itemsize, min(length, end - start) * itemsize) for start in range(first, end, length)]

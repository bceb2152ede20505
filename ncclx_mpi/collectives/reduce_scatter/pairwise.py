"""Reduce_scatter: every rank sends each block to its owner, which reduces what it gets in rank order.

::

    rank r -- block b of its input --> rank b: ((0 op 1) op 2) op ...  ->  OUTPUT of rank b

T = (n - 1) * alpha + (n - 1) / n * m * (beta + gamma), n blocks of temporary memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Place, Plan, block_range


@functools.lru_cache(maxsize=64)
def plan(rank: int, counts: tuple[int, ...]) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    steps = Builder()
    offsets = [0, *accumulate(counts)][:-1]
    place = (TEMP, steps.temp(counts[rank]))
    done, sent = exchange_and_reduce(steps, rank, counts, offsets, place)
    steps.copy((OUTPUT, 0), place, counts[rank], [done, sent])
    return steps.build()


def exchange_and_reduce(steps: Builder, rank: int, counts: Sequence[int], offsets: Sequence[int], target: Place) -> tuple[int, int]:
    """Add the steps after which `target` holds the reduction of block `rank`.

    Returns the last of them, and one after which messages do not read INPUT any more.
    """
    size, nbytes = len(counts), counts[rank]
    parts, ready, sends = [(INPUT, offsets[rank])] * size, [-1] * size, []
    for turn in range(1, size):
        origin, owner = (rank - turn) % size, (rank + turn) % size
        parts[origin] = (TEMP, steps.temp(nbytes))
        ready[origin] = steps.recv(origin, parts[origin], nbytes)
        sends.append(steps.send(owner, (INPUT, offsets[owner]), counts[owner]))
    done = steps.reduce_in_order(target, parts, ready, steps.temp(nbytes), nbytes)
    return done, steps.join(sends)


def even_blocks(count: int, itemsize: int, size: int) -> tuple[list[int], list[int]]:
    """Bytes and byte offsets of `count` elements cut into `size` nearly equal blocks."""
    ranges = [block_range(count, size, index) for index in range(size)]
    return [(end - first) * itemsize for first, end in ranges], [first * itemsize for first, _ in ranges]

"""Allgather(v) in ceil(log2 n) rounds, after Bruck: in each, every rank passes on all that it has, and has twice as much.

::

    n = 5   rank r has r               round 0: r > r - 1    {r, r + 1}
                                       round 1: r > r - 2    {r, r + 1, r + 2, r + 3}
                                       round 2: r > r - 4    only the first block; {r, ..., r + 4}

What a rank has lies in temporary memory, beginning with its own block, and is put in the order of ranks at the end: one more copy than
around the ring, and log2 n messages instead of n - 1. T = ceil(log2 n) * alpha + (n - 1) * m * beta; n * m bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Plan, Shape, as_numbers, columns, offsets_of


def plan(rank: int, size: int, counts: Counts, offsets: Counts, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes of each rank's block in OUTPUT."""
    blocks, places = as_numbers(counts), as_numbers(offsets)
    turned = blocks[rank:] + blocks[:rank]
    starts, moved = offsets_of(turned), _moved(size)
    sent = [starts[many] for _, many in moved]
    received = [starts[first + many] - starts[first] for first, many in moved]
    values = turned, places[rank:] + places[:rank], starts[:-1], sent, received
    return _shape(rank, size, in_place).fill(*values, temp=starts[-1])


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps, moved = Builder(), _moved(size)
    counts, offsets, starts, sent, received = columns(size, size, size, len(moved), len(moved))
    have = steps.copy((TEMP, starts[0]), (OUTPUT, offsets[0]) if in_place else (INPUT, 0), counts[0])
    came = [have]
    for turn, (first, blocks) in enumerate(moved):
        steps.send((rank - first) % size, (TEMP, starts[0]), sent[turn], [have])
        arrived = steps.recv((rank + first) % size, (TEMP, starts[first]), received[turn])
        came += [arrived] * blocks
        have = steps.join([have, arrived])
    for index in range(1 if in_place else 0, size):
        steps.copy((OUTPUT, offsets[index]), (TEMP, starts[index]), counts[index], [came[index]])
    return steps.shape()


def _moved(size: int) -> list[tuple[int, int]]:
    """For each round, how many blocks a rank has, and how many of them it passes on."""
    return [(1 << turn, min(1 << turn, size - (1 << turn))) for turn in range((size - 1).bit_length())]

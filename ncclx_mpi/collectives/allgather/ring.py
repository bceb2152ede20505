"""Allgather(v) around a ring: each block travels from neighbour to neighbour.

::

    step 0:  rank r sends block r to r + 1      step 1: sends on block r - 1      ...      n - 1 steps

Each rank sends and receives (n - 1) * m bytes, to and from one neighbour. T = (n - 1) * (alpha + m * beta).
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Counts, Plan, Shape, columns


def plan(rank: int, size: int, counts: Counts, offsets: Counts, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes of each rank's block in OUTPUT."""
    return _shape(rank, size, in_place).fill(counts, offsets)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps, have = Builder(), -1
    counts, offsets = columns(size, size)
    if not in_place:
        have = steps.copy((OUTPUT, offsets[rank]), (INPUT, 0), counts[rank])
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        passed, coming = (rank - step) % size, (rank - step - 1) % size
        steps.send(right, (OUTPUT, offsets[passed]), counts[passed], [have])
        have = steps.recv(left, (OUTPUT, offsets[coming]), counts[coming])
    return steps.shape()

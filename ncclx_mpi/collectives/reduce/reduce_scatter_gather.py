"""Reduce for large arrays: each rank reduces one block of all contributions in rank order and sends the result to the root.

::

    phase 1:  rank r -- block b --> rank b, which computes ((0 op 1) op 2) op ...
    phase 2:  rank b -- result b --> root

The work is shared by all ranks: T = 2 (n - 1) * alpha + 2 m * beta + m * gamma, instead of (n - 1) * m * (beta + gamma) at the root.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, TEMP, Builder, Plan
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_blocks, exchange_and_reduce


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int, root: int) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT."""
    steps = Builder()
    counts, offsets = even_blocks(count, itemsize, size)
    place = (TEMP, steps.temp(counts[rank]))
    done, sent = exchange_and_reduce(steps, rank, counts, offsets, place)
    if rank != root:
        steps.send(root, place, counts[rank], [done])
        return steps.build()
    for other in range(size):
        if other != root:
            steps.recv(other, (OUTPUT, offsets[other]), counts[other], [sent])
    steps.copy((OUTPUT, offsets[rank]), place, counts[rank], [done, sent])
    return steps.build()

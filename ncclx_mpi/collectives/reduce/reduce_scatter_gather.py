"""Reduce for large arrays: each rank reduces one block of all contributions in rank order and sends the result to the root.

::

    phase 1:  rank r -- block b --> rank b, which computes ((0 op 1) op 2) op ...
    phase 2:  rank b -- result b --> root

The work is shared by all ranks: T = 2 (n - 1) * alpha + 2 m * beta + m * gamma, instead of (n - 1) * m * (beta + gamma) at the root.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, TEMP, Builder, Plan, Shape, columns
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_blocks, exchange_and_reduce, rooms_of


@functools.lru_cache(maxsize=16)
def plan(rank: int, size: int, count: int, itemsize: int, root: int) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT."""
    values, temp = even_blocks(count, itemsize, size, rank)
    return _shape(rank, size, root).fill(*values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, root: int) -> Shape:
    steps = Builder()
    counts, offsets, rooms = columns(size, size, rooms_of(size))
    done, sent = exchange_and_reduce(steps, rank, counts, offsets, rooms)
    place = (TEMP, rooms[0])
    if rank != root:
        steps.send(root, place, counts[rank], [done])
        return steps.shape()
    for other in range(size):
        if other != root:
            steps.recv(other, (OUTPUT, offsets[other]), counts[other], [sent])
    steps.copy((OUTPUT, offsets[rank]), place, counts[rank], [done, sent])
    return steps.shape()

"""Allreduce for large arrays: reduce-scatter, then everyone sends its reduced block to everyone.

::

    phase 1:  rank r -- block b --> rank b, which computes ((0 op 1) op 2) op ...
    phase 2:  rank b -- result b --> every rank

T = 2 (n - 1) * alpha + 2 (n - 1) / n * m * beta + (n - 1) / n * m * gamma; m temporary bytes.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, TEMP, Builder, Plan, Shape, columns
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_blocks, exchange_and_reduce, rooms_of


@functools.lru_cache(maxsize=16)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: blocks of it are written after they have been sent."""
    values, temp = even_blocks(count, itemsize, size, rank)
    return _shape(rank, size).fill(*values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int) -> Shape:
    steps = Builder()
    counts, offsets, rooms = columns(size, size, rooms_of(size))
    done, sent = exchange_and_reduce(steps, rank, counts, offsets, rooms)
    place = (TEMP, rooms[0])
    for turn in range(1, size):
        origin, target = (rank - turn) % size, (rank + turn) % size
        steps.recv(origin, (OUTPUT, offsets[origin]), counts[origin], [sent])
        steps.send(target, place, counts[rank], [done])
    steps.copy((OUTPUT, offsets[rank]), place, counts[rank], [done, sent])
    return steps.shape()

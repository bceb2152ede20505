"""Allreduce for large arrays: reduce-scatter, then everyone sends its reduced block to everyone.

::

    phase 1:  rank r -- block b --> rank b, which computes ((0 op 1) op 2) op ...
    phase 2:  rank b -- result b --> every rank

Blocks go in chunks, whose results are sent while the next ones are reduced.
T = 2 (n - 1) * alpha + 2 (n - 1) / n * m * beta + (n - 1) / n * m * gamma; two sets of n chunks of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan, Shape, columns
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_edges, exchanges, in_chunks, lengths


@functools.lru_cache(maxsize=16)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: blocks of it are written after they have been sent."""
    chunks, values, temp = in_chunks(even_edges(count, itemsize, size), itemsize, rank)
    return _shape(rank, size, chunks).fill(*values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, chunks: int) -> Shape:
    steps = Builder()
    for exchange in exchanges(steps, rank, chunks, columns(*lengths(size, chunks))):
        counts, offsets = exchange.counts, exchange.offsets
        done, sent = exchange.reduce((OUTPUT, offsets[rank]))
        for turn in range(1, size):
            origin, target = (rank - turn) % size, (rank + turn) % size
            steps.recv(origin, (OUTPUT, offsets[origin]), counts[origin], [sent[origin]])
            steps.send(target, (OUTPUT, offsets[rank]), counts[rank], [done])
    return steps.shape()

"""Reduce for large arrays: each rank reduces one block of all contributions in rank order and sends the result to the root.

::

    phase 1:  rank r -- block b --> rank b, which computes ((0 op 1) op 2) op ...
    phase 2:  rank b -- result b --> root

Blocks go in chunks, whose results are sent while the next ones are reduced. The work is shared by all ranks:
T = 2 (n - 1) * alpha + 2 m * beta + m * gamma, instead of (n - 1) * m * (beta + gamma) at the root.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan, Shape, columns
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_edges, exchanges, in_chunks, lengths


@functools.lru_cache(maxsize=16)
def plan(rank: int, size: int, count: int, itemsize: int, root: int) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT."""
    chunks, values, temp = in_chunks(even_edges(count, itemsize, size), itemsize, rank)
    return _shape(rank, size, root, chunks).fill(*values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, root: int, chunks: int) -> Shape:
    steps = Builder()
    for exchange in exchanges(steps, rank, chunks, columns(*lengths(size, chunks))):
        counts, offsets = exchange.counts, exchange.offsets
        if rank != root:
            done, _ = exchange.reduce(exchange.scratch)
            exchange.last = steps.send(root, exchange.scratch, counts[rank], [done])
            continue
        _, sent = exchange.reduce((OUTPUT, offsets[rank]))
        for other, through in sent.items():
            steps.recv(other, (OUTPUT, offsets[other]), counts[other], [through])
    return steps.shape()

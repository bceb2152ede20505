"""Gather(v): everyone sends to the root, which has all receives open at once.

T = alpha + (n - 1) * m * beta: the root's memory is the limit, which no tree could help.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Counts, Plan, Shape, columns


def plan(rank: int, size: int, counts: Counts, offsets: Counts, root: int, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes in the root's OUTPUT; elsewhere only ``counts[rank]`` is read.

    In place, the root's own block is in OUTPUT already.
    """
    return _shape(rank, size, root, in_place).fill(counts, offsets)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, root: int, in_place: bool) -> Shape:
    steps = Builder()
    counts, offsets = columns(size, size)
    if rank != root:
        steps.send(root, (INPUT, 0), counts[rank])
        return steps.shape()
    for other in range(size):
        if other != root:
            steps.recv(other, (OUTPUT, offsets[other]), counts[other])
    if not in_place:
        steps.copy((OUTPUT, offsets[root]), (INPUT, 0), counts[root])
    return steps.shape()

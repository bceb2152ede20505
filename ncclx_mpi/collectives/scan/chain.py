"""Scan and exscan along the chain of ranks, in segments that follow each other.

::

    0 -- x0 -->  1 -- x0 op x1 -->  2 -- (x0 op x1) op x2 -->  ...

T = (n - 1) * (alpha + s * (beta + gamma)) + (m - s) * (beta + gamma) for segments of s bytes: a pipe, once it is full.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan

SEGMENT = 128 << 10


@functools.lru_cache(maxsize=128)
def scan_plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT."""
    steps = Builder()
    for start, length in _segments(count, itemsize):
        if rank == 0:
            have = steps.copy((OUTPUT, start), (INPUT, start), length)
        else:
            prefix = (TEMP, steps.temp(length))
            came = steps.recv(rank - 1, prefix, length)
            have = steps.reduce((OUTPUT, start), prefix, (INPUT, start), length, [came])
        if rank < size - 1:
            steps.send(rank + 1, (OUTPUT, start), length, [have])
    return steps.build()


@functools.lru_cache(maxsize=128)
def exscan_plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`: OUTPUT of rank 0 is left as it is. In place, INPUT is OUTPUT."""
    steps = Builder()
    for start, length in _segments(count, itemsize):
        place, have = (INPUT, start), -1
        came, prefix = -1, (OUTPUT, start)
        if rank > 0:
            prefix = (TEMP, steps.temp(length))
            came = steps.recv(rank - 1, prefix, length)
            if rank < size - 1:
                place = (TEMP, steps.temp(length))
                have = steps.reduce(place, prefix, (INPUT, start), length, [came])
        if rank < size - 1:
            steps.send(rank + 1, place, length, [have])
        if rank > 0:
            steps.copy((OUTPUT, start), prefix, length, [came, have])
    return steps.build()


def _segments(count: int, itemsize: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of segments of whole elements."""
    total, length = count * itemsize, max(1, SEGMENT // itemsize) * itemsize
    return [(start, min(length, total - start)) for start in range(0, total, length)]

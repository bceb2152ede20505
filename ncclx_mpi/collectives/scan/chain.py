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
def plan(rank: int, size: int, count: int, itemsize: int, is_exclusive: bool) -> Plan:
    """Steps of `rank` of a scan or exscan, which leaves OUTPUT of rank 0 as it is. In place, INPUT is OUTPUT."""
    steps, segments = Builder(), _segments(count, itemsize)
    if is_exclusive:
        _exscan(steps, rank, size, segments)
    else:
        _scan(steps, rank, size, segments)
    return steps.build()


_Segments = list[tuple[int, int]]
"""(first byte, bytes)."""


def _scan(steps: Builder, rank: int, size: int, segments: _Segments) -> None:
    for start, length in segments:
        if rank == 0:
            have = steps.copy((OUTPUT, start), (INPUT, start), length)
        else:
            prefix = (TEMP, steps.temp(length))
            came = steps.recv(rank - 1, prefix, length)
            have = steps.reduce((OUTPUT, start), prefix, (INPUT, start), length, [came])
        if rank < size - 1:
            steps.send(rank + 1, (OUTPUT, start), length, [have])


def _exscan(steps: Builder, rank: int, size: int, segments: _Segments) -> None:
    for start, length in segments:
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


def _segments(count: int, itemsize: int) -> _Segments:
    """Segments of whole elements."""
    total, length = count * itemsize, max(1, SEGMENT // itemsize) * itemsize
    return [(start, min(length, total - start)) for start in range(0, total, length)]

"""Barrier by dissemination: in round k rank r signals rank r + 2^k and awaits rank r - 2^k.

::

    n = 4   round 0: 0>1 1>2 2>3 3>0     round 1: 0>2 1>3 2>0 3>1

T = ceil(log2 n) * alpha.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ncclx_mpi.collectives.plan import Builder, Plan


@functools.lru_cache(maxsize=64)
def plan(rank: int, size: int) -> Plan:
    """Steps of `rank`."""
    steps = Builder()
    disseminate(steps, range(size), rank, -1)
    return steps.build()


def disseminate(steps: Builder, ranks: Sequence[int], index: int, heard: int) -> int:
    """Add the steps of ``ranks[index]`` in a barrier among `ranks`, which it enters after the step `heard`; returns the last one."""
    distance, size = 1, len(ranks)
    while distance < size:
        steps.signal(ranks[(index + distance) % size], [heard])
        heard = steps.join([heard, steps.await_signal(ranks[(index - distance) % size])])
        distance *= 2
    return heard

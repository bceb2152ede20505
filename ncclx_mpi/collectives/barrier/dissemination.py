"""Barrier by dissemination: in round k rank r signals rank r + 2^k and awaits rank r - 2^k.

::

    n = 4   round 0: 0>1 1>2 2>3 3>0     round 1: 0>2 1>3 2>0 3>1

T = ceil(log2 n) * alpha.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import Builder, Plan


@functools.lru_cache(maxsize=64)
def plan(rank: int, size: int) -> Plan:
    """Steps of `rank`."""
    steps, heard, distance = Builder(), -1, 1
    while distance < size:
        steps.signal((rank + distance) % size, [heard])
        heard = steps.join([heard, steps.await_signal((rank - distance) % size)])
        distance *= 2
    return steps.build()

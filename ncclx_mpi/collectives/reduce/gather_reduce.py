"""Reduce: the root gathers all contributions and reduces them in rank order.

::

    rank r  -- m bytes -->  root: ((0 op 1) op 2) op ...

A tree would associate differently for every size and root. T = alpha + (n - 1) * m * (beta + gamma) at the root, n * m temporary bytes.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int, root: int) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT."""
    steps, nbytes = Builder(), count * itemsize
    if rank != root:
        steps.send(root, (INPUT, 0), nbytes)
        return steps.build()
    parts, ready = [(INPUT, 0)] * size, [-1] * size
    for other in range(size):
        if other != root:
            parts[other] = (TEMP, steps.temp(nbytes))
            ready[other] = steps.recv(other, parts[other], nbytes)
    steps.reduce_in_order((OUTPUT, 0), parts, ready, steps.temp(nbytes), nbytes)
    return steps.build()

"""Allreduce for small arrays: everyone sends everything to everyone, and reduces in rank order itself.

One message time instead of two; (n - 1) * m bytes from each rank. T = (n - 1) * (alpha + m * (beta + gamma)).
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: it is written after everything in it has been sent."""
    steps, nbytes = Builder(), count * itemsize
    parts, ready, sends = [(INPUT, 0)] * size, [-1] * size, []
    for turn in range(1, size):
        origin, target = (rank - turn) % size, (rank + turn) % size
        parts[origin] = (TEMP, steps.temp(nbytes))
        ready[origin] = steps.recv(origin, parts[origin], nbytes)
        sends.append(steps.send(target, (INPUT, 0), nbytes))
    steps.reduce_in_order((OUTPUT, 0), parts, ready, steps.temp(nbytes), nbytes, sends)
    return steps.build()

"""Reduce by recursive halving, as Rabenseifner describes it: halves are exchanged and reduced, and the parts gathered by the same way.

::

    n = 4, parts A to D    halving:    0 <> 2   1 <> 3    0 and 1 reduce A B, 2 and 3 reduce C D
                                       0 <> 1   2 <> 3    0 has A, 1 has B, 2 has C, 3 has D
                           gathering:  1 > 0    3 > 2     0 has A B, 2 has C D
                                       2 > 0              the root has all

Where n is no power of two, the ranks of the first pairs act as one, for which the root speaks if it is among them. The operation has to
commute. T = 2 log2 n * alpha + (n - 1) / n * m * (2 beta + gamma), and alpha + m * (beta + gamma) more where n is no power of two; m bytes
of temporary memory, twice that for pairs.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.groups import Groups
from ncclx_mpi.collectives.halving import Halving
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Plan
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_edges


@functools.lru_cache(maxsize=32)
def plan(rank: int, size: int, count: int, itemsize: int, root: int) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT: what arrives there comes after what was there has been sent."""
    steps, groups, nbytes = Builder(), Groups(size, root), count * itemsize
    if size == 1:
        steps.copy((OUTPUT, 0), (INPUT, 0), nbytes)
        return steps.build()
    mate, sums = groups.mate_of(rank), (OUTPUT, 0) if rank == root else None
    way = Halving(steps, groups, rank, even_edges(count, itemsize, groups.number), itemsize, sums)
    if not groups.speaks(rank):
        way.give(mate)
        return steps.build()
    if mate >= 0:
        way.fold(mate)
    way.halve()
    way.gather(groups.group_of(root))
    return steps.build()

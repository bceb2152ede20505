"""Allreduce by recursive halving and doubling, as Rabenseifner describes it: halves are exchanged and reduced, and come back by the same way.

::

    n = 4, parts A to D    halving:   0 <> 2   1 <> 3    0 and 1 reduce A B, 2 and 3 reduce C D
                                      0 <> 1   2 <> 3    0 has A, 1 has B, 2 has C, 3 has D
                           doubling:  0 <> 1   2 <> 3    0 and 1 have A B, 2 and 3 have C D
                                      0 <> 2   1 <> 3    all have all

Where n is no power of two, the ranks of the first pairs act as one. Each part is reduced by one rank, so all get the same bits, but ranks are
not combined in their order: the operation has to commute. T = 2 log2 n * alpha + (n - 1) / n * m * (2 beta + gamma), and
2 (alpha + m * beta) + m * gamma more where n is no power of two; m bytes of temporary memory, twice that for pairs.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.groups import Groups
from ncclx_mpi.collectives.halving import Halving
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Plan
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_edges


@functools.lru_cache(maxsize=32)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: what arrives there comes after what was there has been sent."""
    steps, groups, nbytes = Builder(), Groups(size), count * itemsize
    if size == 1:
        steps.copy((OUTPUT, 0), (INPUT, 0), nbytes)
        return steps.build()
    mate = groups.mate_of(rank)
    way = Halving(steps, groups, rank, even_edges(count, itemsize, groups.number), itemsize, sums=(OUTPUT, 0))
    if not groups.speaks(rank):
        way.give(mate)
        way.take(mate, (OUTPUT, 0))
        return steps.build()
    if mate >= 0:
        way.fold(mate)
    way.halve()
    way.spread()
    if mate >= 0:
        way.give(mate)
    return steps.build()

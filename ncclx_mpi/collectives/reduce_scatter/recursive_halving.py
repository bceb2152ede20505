"""Reduce_scatter by recursive halving: what a rank keeps is halved in each round, until it is its own block.

::

    n = 4, blocks 0 to 3    round 0:  0 <> 2   1 <> 3    0 and 1 reduce the blocks 0 and 1, 2 and 3 the blocks 2 and 3
                            round 1:  0 <> 1   2 <> 3    each reduces its own

As Thakur, Rabenseifner and Gropp (2005) describe it. Where n is no power of two, the ranks of the first pairs act as one, which gives each
its block in the end. The operation has to commute. T = log2 n * alpha + (n - 1) / n * m * (beta + gamma), and
2 alpha + (1 + 1 / n) * m * beta + m * gamma more where n is no power of two; m bytes of temporary memory, twice that for pairs.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.groups import Groups
from ncclx_mpi.collectives.halving import Halving
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Counts, Plan, as_numbers, offsets_of


def plan(rank: int, size: int, counts: Counts, itemsize: int) -> Plan:
    """Steps of `rank`; `counts` are the bytes of each rank's block. In place, INPUT is OUTPUT: the result goes to its start."""
    return _plan(rank, size, tuple(as_numbers(counts)), itemsize)


@functools.lru_cache(maxsize=32)
def _plan(rank: int, size: int, counts: tuple[int, ...], itemsize: int) -> Plan:
    steps, groups, offsets = Builder(), Groups(size), offsets_of(counts)
    mate = groups.mate_of(rank)
    edges = [offsets[groups.first_rank_of(group)] for group in range(groups.number + 1)]
    way = Halving(steps, groups, rank, edges, itemsize)
    if not groups.speaks(rank):
        way.give(mate)
        steps.recv(mate, (OUTPUT, 0), counts[rank], way.read)
        return steps.build()
    if mate >= 0:
        way.fold(mate)
    way.halve()
    if mate >= 0:
        steps.send(mate, way.place(offsets[mate]), counts[mate], way.after(offsets[mate], counts[mate]))
    own = offsets[rank], counts[rank]
    steps.copy((OUTPUT, 0), way.place(own[0]), own[1], [*way.after(*own), *way.read])
    return steps.build()

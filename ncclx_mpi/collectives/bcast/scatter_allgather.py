"""Bcast for large messages: the root scatters the message by halves, and around a ring every rank gets the parts that it lacks.

::

    n = 4, parts A to D    scatter, a binomial tree:    0 -- C D --> 2 -- D --> 3    0 -- B --> 1
                           allgather, around a ring:    each passes on what came last, but what its neighbor has had from the start

As Barnett et al. (1994) describe it. The root sends 2 m bytes instead of m * log2 n.
T = (ceil(log2 n) + n - 1) * alpha + 2 (n - 1) / n * m * beta.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.collectives.reduce_scatter.pairwise import even_edges


@functools.lru_cache(maxsize=64)
def plan(rank: int, size: int, nbytes: int, root: int) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps, relative = Builder(), (rank - root) % size
    edges = even_edges(nbytes, 1, size)
    parent, children = family(relative, size)
    first, end = relative, end_of(relative, size)
    have = -1 if parent < 0 else steps.recv((parent + root) % size, (OUTPUT, edges[first]), edges[end] - edges[first])
    for child in children:
        its_end = end_of(child, size)
        steps.send((child + root) % size, (OUTPUT, edges[child]), edges[its_end] - edges[child], [have])
    right, there, last = (relative + 1) % size, [have] * size, have
    for turn in range(size - 1):
        passed, coming = (relative - turn) % size, (relative - turn - 1) % size
        if not right <= passed < end_of(right, size):
            # What is there from the start waits for its turn: it would be in the way of what others wait for.
            place = (OUTPUT, edges[passed])
            steps.send((right + root) % size, place, edges[passed + 1] - edges[passed], [there[passed], last])
        if not first <= coming < end:
            there[coming] = last = steps.recv((rank - 1) % size, (OUTPUT, edges[coming]), edges[coming + 1] - edges[coming])
    return steps.build()


def end_of(relative: int, size: int) -> int:
    """Where the subtree of a rank ends, all counted from the root; it begins with the rank."""
    return min(size, relative + (relative & -relative)) if relative else size

"""Allgather among neighbors, in half as many rounds as around a ring: pairs of ranks pass on two blocks at a time, to either side in turn.

::

    n = 6    round 0:  0 <> 1   2 <> 3   4 <> 5    own blocks; each pair has the same two
             round 1:  1 <> 2   3 <> 4   5 <> 0    the two of the pair
             round 2:  0 <> 1   2 <> 3   4 <> 5    the two that came last

As Chen et al. (2005) describe it, for even numbers of ranks; with an odd one, blocks go around the ring
(:mod:`ncclx_mpi.collectives.allgather.ring`). All blocks have one size, and lie one behind the other.
T = n / 2 * alpha + (n - 1) * m * beta.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.allgather import ring
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Counts, Plan, Shape, columns, multiples


def plan(rank: int, size: int, counts: Counts, offsets: Counts, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes of each rank's block in OUTPUT."""
    if size % 2:
        return ring.plan(rank, size, counts, offsets, in_place)
    values, _ = multiples(counts, 0)
    return _shape(rank, size, in_place).fill(values)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps = Builder()
    (blocks,) = columns(size + 1)
    mate, pairs, sign = rank ^ 1, size // 2, 1 - rank % 2 * 2
    outer = (rank - sign) % size
    have = -1 if in_place else steps.copy((OUTPUT, blocks[rank]), (INPUT, 0), blocks[1])
    steps.send(mate, (OUTPUT, blocks[rank]), blocks[1], [have])
    have = steps.join([have, steps.recv(mate, (OUTPUT, blocks[mate]), blocks[1])])
    passed = rank // 2
    for turn in range(1, pairs):
        partner, way = (outer, -sign) if turn % 2 else (mate, sign)
        coming = (rank // 2 + way * ((turn + 1) // 2)) % pairs
        steps.send(partner, (OUTPUT, blocks[2 * passed]), blocks[2], [have])
        have = steps.recv(partner, (OUTPUT, blocks[2 * coming]), blocks[2])
        passed = coming
    return steps.shape()

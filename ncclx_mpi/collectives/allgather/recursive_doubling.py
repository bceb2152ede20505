"""Allgather by recursive doubling: partners exchange all that they have, and have twice as much.

::

    n = 4, blocks 0 to 3    round 0:  0 <> 1   2 <> 3    0 and 1 have the blocks 0 and 1, 2 and 3 the blocks 2 and 3
                            round 1:  0 <> 2   1 <> 3    all have all

As many messages as after Bruck, and nothing is copied. Where n is no power of two, one rank of each of the first pairs gives its block to the
other one, and gets all blocks of it in the end. All blocks have one size, and lie one behind the other.
T = log2 n * alpha + (n - 1) * m * beta, and 2 alpha + (n + 1) * m * beta more where n is no power of two.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.groups import Groups
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Counts, Plan, Shape, columns, multiples


def plan(rank: int, size: int, counts: Counts, offsets: Counts, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes of each rank's block in OUTPUT."""
    values, _ = multiples(counts, 0)
    return _shape(rank, size, in_place).fill(values)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps, groups = Builder(), Groups(size)
    (blocks,) = columns(size + 1)
    group, mate = groups.group_of(rank), groups.mate_of(rank)
    have = -1 if in_place else steps.copy((OUTPUT, blocks[rank]), (INPUT, 0), blocks[1])
    if not groups.speaks(rank):
        sent = steps.send(mate, (OUTPUT, blocks[rank]), blocks[1], [have])
        steps.recv(mate, (OUTPUT, blocks[0]), blocks[size], [sent])
        return steps.shape()
    if mate >= 0:
        have = steps.join([have, steps.recv(mate, (OUTPUT, blocks[mate]), blocks[1])])
    for turn in range(groups.rounds):
        partner = groups.speaker_of(group ^ 1 << turn)
        own, theirs = ([groups.first_rank_of(edge) for edge in (each.start, each.stop)] for each in groups.halves(group, turn))
        steps.send(partner, (OUTPUT, blocks[own[0]]), blocks[own[1] - own[0]], [have])
        came = steps.recv(partner, (OUTPUT, blocks[theirs[0]]), blocks[theirs[1] - theirs[0]])
        have = steps.join([have, came])
    if mate >= 0:
        steps.send(mate, (OUTPUT, blocks[0]), blocks[size], [have])
    return steps.shape()

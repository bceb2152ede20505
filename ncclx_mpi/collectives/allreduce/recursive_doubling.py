"""Allreduce by recursive doubling: in each round groups of ranks exchange what they have, and every two of them become one.

::

    n = 6   fold:     0 > 1   2 > 3                 in pairs, until a power of two of groups is left: {01} {23} {4} {5}
            round 0:  {01} <> {23}   {4} <> {5}
            round 1:  {0123} <> {45}                both partners compute (0123) op (45)
            unfold:   1 > 0   3 > 2

The group of the lower ranks is always the left operand: the operation need not commute, and both partners compute the same bits. But it is
(0 op 1) op (2 op 3), not ((0 op 1) op 2) op 3. T = floor(log2 n) * (alpha + m * (beta + gamma)), and 2 * (alpha + m * beta) + m * gamma more
where n is no power of two. 4 m bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: it is written after everything in it has been sent, or by what is made of it."""
    steps, nbytes = Builder(), count * itemsize
    rounds = size.bit_length() - 1
    folded = size - (1 << rounds)
    is_pair = rank < 2 * folded
    if is_pair and rank % 2 == 0:
        steps.send(rank + 1, (INPUT, 0), nbytes)
        steps.recv(rank + 1, (OUTPUT, 0), nbytes)
    elif rounds == 0:
        steps.copy((OUTPUT, 0), (INPUT, 0), nbytes)
    else:
        done = _double(steps, rank, rounds, folded, nbytes)
        if is_pair:
            steps.send(rank - 1, (OUTPUT, 0), nbytes, [done])
    return steps.build()


def _double(steps: Builder, rank: int, rounds: int, folded: int, nbytes: int) -> int:
    """Add the steps of a rank that stands for its group, the last of which is returned.

    Two partial results take turns, and so do two places for what comes: what is written over has been reduced, and sent, two rounds ago.
    """
    ours, theirs = ([(TEMP, steps.temp(nbytes)) for _ in range(2)] for _ in range(2))
    have, sends, reduced = (INPUT, 0), [-1], [-1, -1]
    group = rank - folded
    if rank < 2 * folded:
        group = rank // 2
        came = steps.recv(rank - 1, theirs[1], nbytes)
        reduced.append(steps.reduce(ours[0], theirs[1], have, nbytes, [came]))
        have = ours[0]
    for turn in range(rounds):
        other = group ^ 1 << turn
        partner = 2 * other + 1 if other < folded else other + folded
        sends.append(steps.send(partner, have, nbytes, [reduced[-1]]))
        came = steps.recv(partner, theirs[turn % 2], nbytes, [reduced[-2]])
        low, high = (theirs[turn % 2], have) if other < group else (have, theirs[turn % 2])
        is_last = turn == rounds - 1
        have = (OUTPUT, 0) if is_last else ours[(turn + 1) % 2]
        written_after = sends if is_last else [sends[-2]]
        reduced.append(steps.reduce(have, low, high, nbytes, [came, reduced[-1], *written_after]))
    return reduced[-1]

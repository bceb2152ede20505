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
from collections.abc import Sequence

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Place, Plan


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: it is written after everything in it has been sent, or by what is made of it."""
    steps = Builder()
    double(steps, range(size), rank, count * itemsize, (INPUT, 0), -1)
    return steps.build()


def double(steps: Builder, ranks: Sequence[int], index: int, nbytes: int, source: Place, there: int) -> int:
    """Add the steps of ``ranks[index]`` in an allreduce among `ranks` of what is in `source` after `there`; returns the last one.

    The result is in OUTPUT.
    """
    rounds = len(ranks).bit_length() - 1
    folded = len(ranks) - (1 << rounds)
    is_pair = index < 2 * folded
    if is_pair and index % 2 == 0:
        steps.send(ranks[index + 1], source, nbytes, [there])
        return steps.recv(ranks[index + 1], (OUTPUT, 0), nbytes)
    if rounds == 0:
        return steps.copy((OUTPUT, 0), source, nbytes, [there])
    done = _in_groups(steps, ranks, index, folded, nbytes, source, there)
    if is_pair:
        steps.send(ranks[index - 1], (OUTPUT, 0), nbytes, [done])
    return done


def _in_groups(steps: Builder, ranks: Sequence[int], index: int, folded: int, nbytes: int, source: Place, there: int) -> int:
    """Add the steps of a rank that stands for its group, the last of which is returned.

    Two partial results take turns, and so do two places for what comes: what is written over has been reduced, and sent, two rounds ago.
    """
    rounds = len(ranks).bit_length() - 1
    ours, theirs = ([(TEMP, steps.temp(nbytes)) for _ in range(2)] for _ in range(2))
    have, sends, reduced = source, [-1], [-1, there]
    group = index - folded
    if index < 2 * folded:
        group = index // 2
        came = steps.recv(ranks[index - 1], theirs[1], nbytes)
        reduced.append(steps.reduce(ours[0], theirs[1], have, nbytes, [came, there]))
        have = ours[0]
    for turn in range(rounds):
        other = group ^ 1 << turn
        partner = ranks[2 * other + 1 if other < folded else other + folded]
        sends.append(steps.send(partner, have, nbytes, [reduced[-1]]))
        came = steps.recv(partner, theirs[turn % 2], nbytes, [reduced[-2]])
        low, high = (theirs[turn % 2], have) if other < group else (have, theirs[turn % 2])
        is_last = turn == rounds - 1
        have = (OUTPUT, 0) if is_last else ours[(turn + 1) % 2]
        written_after = sends if is_last else [sends[-2]]
        reduced.append(steps.reduce(have, low, high, nbytes, [came, reduced[-1], *written_after]))
    return reduced[-1]

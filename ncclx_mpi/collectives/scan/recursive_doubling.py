"""Scan and exscan by recursive doubling: partners exchange the reduction of their groups, and the higher ones add it to their prefix.

::

    n = 4    round 0:  0 <> 1   2 <> 3    prefixes 0, 01, 2, 23     groups {01} {23}
             round 1:  0 <> 2   1 <> 3    prefixes 0, 01, 012, 0123

Groups follow each other, and the lower one is the left operand: the operation need not commute. But rank 3 gets (0 op 1) op (2 op 3), not
((0 op 1) op 2) op 3. A prefix is in temporary memory until all has been sent.
T = ceil(log2 n) * (alpha + m * (beta + 2 gamma)) - m * gamma; 5 m bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Place, Plan


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int, is_exclusive: bool) -> Plan:
    """Steps of `rank` of a scan or exscan, which leaves OUTPUT of rank 0 as it is. In place, INPUT is OUTPUT: it is written in the end."""
    steps, nbytes = Builder(), count * itemsize
    if size == 1:
        if not is_exclusive:
            steps.copy((OUTPUT, 0), (INPUT, 0), nbytes)
        return steps.build()
    ours, theirs = ([(TEMP, steps.temp(nbytes)) for _ in range(2)] for _ in range(2))
    kept = (TEMP, steps.temp(nbytes))
    total: Place = (INPUT, 0)
    prefix: Place | None = None if is_exclusive else total
    done = there = sent = -1
    reduced, read = [-1, -1], []
    partners = [rank ^ 1 << turn for turn in range((size - 1).bit_length()) if rank ^ 1 << turn < size]
    for turn, partner in enumerate(partners):
        room, sent_before = theirs[turn % 2], sent
        sent = steps.send(partner, total, nbytes, [done])
        came = steps.recv(partner, room, nbytes, [reduced[turn % 2]])
        if partner < rank:
            there = steps.reduce(kept, room, prefix, nbytes, [came, there]) if prefix else steps.copy(kept, room, nbytes, [came])
            prefix = kept
        if turn < len(partners) - 1:
            low, high = (room, total) if partner < rank else (total, room)
            done = steps.reduce(ours[turn % 2], low, high, nbytes, [came, done, sent_before])
            total = ours[turn % 2]
        reduced[turn % 2] = steps.join([there, done])
        read += [sent, there, done]
    if prefix is not None:
        steps.copy((OUTPUT, 0), prefix, nbytes, read)
    return steps.build()

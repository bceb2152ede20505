"""Bcast down a binomial tree, in segments that follow each other.

::

    n = 8, root 0:      0 ---> 4 ---> 6 ---> 7
                        |      `----> 5
                        |---> 2 ---> 3
                        `---> 1

A rank passes a segment on as soon as it has it, so the tree fills like a pipe.
T = ceil(log2 n) * (alpha + s * beta) + (m - s) * beta * ceil(log2 n) for segments of s bytes at the root's children.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan

SEGMENT = 256 << 10


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, nbytes: int, root: int) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps = Builder()
    relative = (rank - root) % size
    parent, children = family(relative, size)
    for start in range(0, nbytes, SEGMENT):
        length = min(SEGMENT, nbytes - start)
        have = -1 if parent < 0 else steps.recv((parent + root) % size, (OUTPUT, start), length)
        for child in children:
            steps.send((child + root) % size, (OUTPUT, start), length, [have])
    return steps.build()


def family(relative: int, size: int) -> tuple[int, list[int]]:
    """Parent (-1 for the root) and children, largest subtree first, counted from the root."""
    below = 1
    while below < size and not relative & below:
        below *= 2
    parent = relative - below if relative else -1
    children = []
    while below > 1:
        below //= 2
        if relative + below < size:
            children.append(relative + below)
    return parent, children

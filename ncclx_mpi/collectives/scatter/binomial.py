"""Scatter along a binomial tree: the root sends the blocks of whole subtrees, each of which is passed on in smaller parts.

::

    n = 6, root 0:    0 -- 4 5 --> 4 > 5      0 -- 2 3 --> 2 > 3      0 > 1

The root sends ceil(log2 n) messages instead of n - 1: for small blocks and many ranks. All blocks have one size, as the ranks in between must
know it. T = ceil(log2 n) * alpha + (n - 1) / n * m * beta; up to m / 2 bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.bcast.scatter_allgather import end_of
from ncclx_mpi.collectives.gather.binomial import in_one_piece, in_subtree
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Plan, Shape, columns


def plan(rank: int, size: int, counts: Counts, offsets: Counts, root: int, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes in the root's INPUT. In place, the root keeps its own block in INPUT."""
    values, temp = in_subtree(counts, (rank - root) % size, size)
    return _shape(rank, size, root, in_place).fill(values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, root: int, in_place: bool) -> Shape:
    steps, relative = Builder(), (rank - root) % size
    (blocks,), span = columns(size + 1), end_of(relative, size) - relative
    parent, children = family(relative, size)
    origin = (parent + root) % size
    if parent >= 0 and not children:
        steps.recv(origin, (OUTPUT, 0), blocks[1])
        return steps.shape()
    have = []
    if parent >= 0:
        for first, length in in_one_piece(rank, span, size) if parent == 0 else [(rank, span)]:
            have.append(steps.recv(origin, (TEMP, blocks[(first - rank) % size]), blocks[length]))
    for child in children:
        target, length = (child + root) % size, end_of(child, size) - child
        if parent >= 0:
            steps.send(target, (TEMP, blocks[child - relative]), blocks[length], have)
        else:
            for first, number in in_one_piece(target, length, size):
                steps.send(target, (INPUT, blocks[first]), blocks[number])
    if parent >= 0:
        steps.copy((OUTPUT, 0), (TEMP, blocks[0]), blocks[1], have)
    elif not in_place:
        steps.copy((OUTPUT, 0), (INPUT, blocks[root]), blocks[1])
    return steps.shape()

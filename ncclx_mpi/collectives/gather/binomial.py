"""Gather along a binomial tree: each rank collects the blocks of its subtree, and passes them on in one message.

::

    n = 6, root 0:    1 > 0   3 > 2   5 > 4      2 -- 2 3 --> 0      4 -- 4 5 --> 0

The root gets ceil(log2 n) messages instead of n - 1: for small blocks and many ranks. All blocks have one size, as the ranks in between must
know it. T = ceil(log2 n) * alpha + (n - 1) * m * beta; up to n / 2 * m bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.bcast.scatter_allgather import end_of
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Numbers, Plan, Shape, columns, multiples


def plan(rank: int, size: int, counts: Counts, offsets: Counts, root: int, in_place: bool) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes in the root's OUTPUT. In place, the root's own block is in OUTPUT already."""
    values, temp = in_subtree(counts, (rank - root) % size, size)
    return _shape(rank, size, root, in_place).fill(values, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, root: int, in_place: bool) -> Shape:
    steps, relative = Builder(), (rank - root) % size
    (blocks,), span = columns(size + 1), end_of(relative, size) - relative
    parent, children = family(relative, size)
    if parent >= 0 and not children:
        steps.send((parent + root) % size, (INPUT, 0), blocks[1])
        return steps.shape()
    if parent >= 0:
        have = [steps.copy((TEMP, blocks[0]), (INPUT, 0), blocks[1])]
        for child in children:
            length = end_of(child, size) - child
            have.append(steps.recv((child + root) % size, (TEMP, blocks[child - relative]), blocks[length]))
        pieces = in_one_piece(rank, span, size) if parent == 0 else [(rank, span)]
        for first, length in pieces:
            steps.send((parent + root) % size, (TEMP, blocks[(first - rank) % size]), blocks[length], have)
        return steps.shape()
    if not in_place:
        steps.copy((OUTPUT, blocks[rank]), (INPUT, 0), blocks[1])
    for child in children:
        origin = (child + root) % size
        for first, length in in_one_piece(origin, end_of(child, size) - child, size):
            steps.recv(origin, (OUTPUT, blocks[first]), blocks[length])
    return steps.shape()


def in_subtree(counts: Counts, relative: int, size: int) -> tuple[Numbers, int]:
    """Values of a shape in blocks, and bytes of those of the subtree of a rank, counted from the root, that passes blocks of others on."""
    span = end_of(relative, size) - relative
    return multiples(counts, span if 1 < span < size else 0)


def in_one_piece(first: int, length: int, size: int) -> list[tuple[int, int]]:
    """So many ranks from a first one on, around all ranks: the first ranks, and numbers, of the one piece that they are, or two."""
    before = min(length, size - first)
    return [(first, before), (0, length - before)] if before < length else [(first, length)]

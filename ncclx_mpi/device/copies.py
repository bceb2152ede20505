"""Bcast, gather(v), scatter(v), allgather(v) and alltoall(v) on devices: block copies between the ranks' arrays.

::

    rank 0   send [ a0 | a1 | a2 ]      the executor of a GPU copies all blocks that are for arrays on it, wherever they come from:
    rank 1   send [ b0 | b1 | b2 ]      recv of rank 0 [ a0 | b0 | c0 ], of rank 1 [ a1 | b1 | c1 ], ...
    rank 2   send [ c0 | c1 | c2 ]

A block that goes to several arrays on the GPU is read once. With one GPU for all ranks that is one launch on one GPU; with a GPU each,
every GPU pulls what is for it, over all its links at a time.

T = alpha + m (sources + targets) / bandwidth, for m bytes of a block: each block is read once and written once for each target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ncclx_mpi.device.members import Member

Copy = tuple[int, int, list[int]]
"""Bytes, source, targets."""

At = Callable[[int, str], int]
"""Address in this process of an array of a rank: its ``source`` or its ``recv``."""


def wrong_pair(members: Sequence[Member]) -> tuple[int, int, int, int] | None:
    """The first sender and receiver that disagree, with the bytes that either says; None if all agree."""
    for source, sender in enumerate(members):
        for target, receiver in enumerate(members):
            sent, expected = sender.rows[target].send_bytes, receiver.rows[source].recv_bytes
            if sent != expected:
                return source, target, sent, expected
    return None


def copies(members: Sequence[Member], targets: Sequence[int], at: At) -> Iterator[Copy]:
    """The copies into the arrays of the ranks in `targets`."""
    for source, sender in enumerate(members):
        blocks: dict[tuple[int, int], list[int]] = {}
        for target in targets:
            row = sender.rows[target]
            if row.send_bytes:
                place = at(target, "recv") + members[target].rows[source].recv
                blocks.setdefault((row.send, row.send_bytes), []).append(place)
        for (offset, nbytes), places in blocks.items():
            yield nbytes, at(source, "source") + offset, places

"""Alltoall(v): every rank sends to every other, each beginning with its right neighbour.

::

    turn k: rank r sends to r + k and receives from r - k

so no two ranks send to the same third one in a turn; turns overlap. T = (n - 1) * (alpha + m * beta).
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Plan, Shape, columns, rooms_for


def plan(
    rank: int,
    size: int,
    send_counts: Counts,
    send_offsets: Counts,
    counts: Counts,
    offsets: Counts,
    in_place: bool,
) -> Plan:
    """Steps of `rank`; all in bytes, one entry for each peer.

    In place, OUTPUT holds what is sent too, and the send arguments are ignored: it is copied away first, since blocks
    arrive where others still wait to be sent. The block of the rank itself stays.
    """
    temp = 0
    if in_place:
        send_counts = counts
        send_offsets, temp = rooms_for(counts)
    return _shape(rank, size, in_place).fill(send_counts, send_offsets, counts, offsets, temp=temp)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps = Builder()
    send_counts, send_offsets, counts, offsets = columns(size, size, size, size)
    ready, source = -1, INPUT
    if in_place:
        source = TEMP
        others = [peer for peer in range(size) if peer != rank]
        copies = [steps.copy((TEMP, send_offsets[peer]), (OUTPUT, offsets[peer]), counts[peer]) for peer in others]
        ready = steps.join(copies)
    for turn in range(1, size):
        origin, target = (rank - turn) % size, (rank + turn) % size
        steps.recv(origin, (OUTPUT, offsets[origin]), counts[origin], [ready])
        steps.send(target, (source, send_offsets[target]), send_counts[target], [ready])
    if not in_place:
        steps.copy((OUTPUT, offsets[rank]), (source, send_offsets[rank]), send_counts[rank])
    return steps.shape()

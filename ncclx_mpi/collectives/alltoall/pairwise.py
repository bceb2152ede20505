"""Alltoall(v): every rank sends to every other, each beginning with its right neighbour.

::

    turn k: rank r sends to r + k and receives from r - k

so no two ranks send to the same third one in a turn; turns overlap. T = (n - 1) * (alpha + m * beta).
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Plan


@functools.lru_cache(maxsize=64)
def plan(
    rank: int,
    size: int,
    send_counts: tuple[int, ...],
    send_offsets: tuple[int, ...],
    counts: tuple[int, ...],
    offsets: tuple[int, ...],
    in_place: bool,
) -> Plan:
    """Steps of `rank`; all in bytes, one entry for each peer.

    In place, OUTPUT holds what is sent too, and the send arguments are ignored: it is copied away first, since blocks
    arrive where others still wait to be sent.
    """
    steps = Builder()
    ready, source = -1, INPUT
    if in_place:
        ready, source, send_counts, send_offsets = _copy_away(steps, counts, offsets)
    for turn in range(1, size):
        origin, target = (rank - turn) % size, (rank + turn) % size
        steps.recv(origin, (OUTPUT, offsets[origin]), counts[origin], [ready])
        steps.send(target, (source, send_offsets[target]), send_counts[target], [ready])
    if not in_place:
        steps.copy((OUTPUT, offsets[rank]), (source, send_offsets[rank]), send_counts[rank])
    return steps.build()


def _copy_away(
    steps: Builder, counts: tuple[int, ...], offsets: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    places = tuple(steps.temp(count) for count in counts)
    copies = [
        steps.copy((TEMP, place), (OUTPUT, offset), count) for place, offset, count in zip(places, offsets, counts, strict=True)
    ]
    return steps.join(copies), TEMP, counts, places

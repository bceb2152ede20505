"""Alltoall in ceil(log2 n) rounds, after Bruck: blocks hop by powers of two, many of them in one message.

::

    block for the rank j further on:   n = 8, j = 5 = 101b:   r  --1-->  r + 1  --4-->  r + 5

    round k: all blocks whose j has bit k, packed, to rank r + 2^k

Each block is sent up to log2 n times instead of once, but a rank sends log2 n messages instead of n - 1: for small blocks and many ranks.
All blocks have one size, as the ranks in between must know it.
T = ceil(log2 n) * (alpha + m / 2 * beta); m * log2 n bytes of temporary memory.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Counts, Plan, Shape, columns


def plan(
    rank: int,
    size: int,
    send_counts: Counts,
    send_offsets: Counts,
    counts: Counts,
    offsets: Counts,
    in_place: bool,
) -> Plan:
    """Steps of `rank`; all in bytes, one entry for each peer, and all counts are the same. In place, OUTPUT holds what is sent too."""
    nbytes = int(counts[0])
    packed = [len(hopping) for hopping in _hopping(size)]
    rooms = [room * nbytes for room in range(2 * sum(packed) + 1)]
    values = [nbytes], offsets if in_place else send_offsets, offsets, [blocks * nbytes for blocks in packed], rooms[:-1]
    return _shape(rank, size, in_place).fill(*values, temp=rooms[-1])


@functools.lru_cache(maxsize=64)
def _shape(rank: int, size: int, in_place: bool) -> Shape:
    steps, rounds = Builder(), _hopping(size)
    (nbytes,), send_offsets, offsets, sizes, rooms = columns(1, size, size, len(rounds), 2 * sum(map(len, rounds)))
    places = [(OUTPUT if in_place else INPUT, send_offsets[(rank + index) % size]) for index in range(size)]
    came, room, packs = [-1] * size, 0, -1
    for turn, hopping in enumerate(rounds):
        packed, arriving = rooms[room : room + len(hopping)], rooms[room + len(hopping) : room + 2 * len(hopping)]
        room += 2 * len(hopping)
        copies = [
            steps.copy((TEMP, place), places[index], nbytes, [came[index]]) for place, index in zip(packed, hopping, strict=True)
        ]
        packs = steps.join([packs, *copies])
        steps.send((rank + (1 << turn)) % size, (TEMP, packed[0]), sizes[turn], [packs])
        arrived = steps.recv((rank - (1 << turn)) % size, (TEMP, arriving[0]), sizes[turn])
        for place, index in zip(arriving, hopping, strict=True):
            places[index], came[index] = (TEMP, place), arrived
    for index in range(1 if in_place else 0, size):  # in place, OUTPUT is written when nothing in it is to be sent any more
        steps.copy((OUTPUT, offsets[(rank - index) % size]), places[index], nbytes, [came[index], packs if in_place else -1])
    return steps.shape()


def _hopping(size: int) -> list[list[int]]:
    """For each round, the blocks that hop in it, by how many ranks they have to go."""
    return [[index for index in range(size) if index >> turn & 1] for turn in range((size - 1).bit_length())]

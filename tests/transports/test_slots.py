"""Collective slots: regions do not overlap, leases end with the last member, counters start at zero."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator

import pytest

from numba_kernels.jit import entry
from transports.shm import slots
from transports.shm.arena import Arena
from transports.shm.layout import PAGE

STRIDE = -(-slots.slot_bytes(4) // PAGE) * PAGE


@pytest.fixture
def base() -> Iterator[int]:
    """Address of three empty slots for up to four ranks."""
    memory = mmap.mmap(-1, 3 * STRIDE)
    anchor = ctypes.c_char.from_buffer(memory)
    yield ctypes.addressof(anchor)
    del anchor
    memory.close()


def regions(size: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of everything that somebody writes, in a slot at address 0."""
    ranks = range(size)
    places = [(slots.line_of(0, rank, number), slots.LINE.total) for rank in ranks for number in range(slots.DEPTH)]
    fields = (slots.DEVICE.ready, slots.DEVICE.done, slots.DEVICE.refused)
    places += [(slots.device_words(0, rank) + field, 8) for rank in ranks[: slots.DEVICE_RANKS] for field in fields]
    places += [(slots.done_of(0, size, rank), 8) for rank in ranks]
    places += [(slots.bounce_of(0, size, rank), 8) for rank in ranks]
    places += [(slots.shared_posted(0, size, rank), slots.RING.total) for rank in ranks]
    for writer in ranks:
        for reader in ranks:
            places.append((slots.split_posted(0, size, writer, reader), slots.RING.total))
            places.append((slots.split_consumed(0, size, writer, reader), 8))
            places.append((slots.shared_consumed(0, size, writer, reader), 8))
            chunk = slots.split_chunk_bytes(size)
            places += [(slots.split_chunk(0, size, writer, reader, index), chunk) for index in range(slots.CHUNKS)]
    for rank in ranks:
        places += [(slots.buffer_of(0, size, rank, number, slots.MID), slots.MID) for number in range(slots.DEPTH)]
        places += [(slots.buffer_of(0, size, rank, number, slots.BIG), slots.BIG) for number in range(slots.BIGS)]
        places += [(slots.shared_chunk(0, size, rank, index), slots.SHARED_CHUNK) for index in range(slots.CHUNKS)]
    return sorted(places)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
def test_regions_do_not_overlap(size: int) -> None:
    places = regions(size)
    for (first, nbytes), (following, _) in itertools.pairwise(places):
        assert first + nbytes <= following
    assert places[0][0] >= PAGE
    assert sum(places[-1]) <= slots.slot_bytes(size)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_words_of_different_writers_share_no_line(size: int) -> None:
    words = [place for place, nbytes in regions(size) if nbytes <= slots.LINE.total]
    assert len({place // 64 for place in words}) == len(words)


def test_leases_run_out_and_come_back(base: int) -> None:
    lease, give_back = entry(slots.lease), entry(slots.give_back)
    assert [lease(base, STRIDE, 3, 2) for _ in range(4)] == [0, 1, 2, -1]
    assert give_back(base + STRIDE, 2) == 0
    assert lease(base, STRIDE, 3, 2) == -1
    assert give_back(base + STRIDE, 2) == 1
    assert lease(base, STRIDE, 3, 4) == 1


def test_a_lease_starts_with_zeros(base: int) -> None:
    lease, give_back = entry(slots.lease), entry(slots.give_back)
    lease(base, STRIDE, 3, 3)
    places = [place for place, nbytes in regions(3) if nbytes <= slots.LINE.total]
    for place in [*places, slots.SLOT.broken]:
        ctypes.c_int64.from_address(base + place).value = 7
    for _ in range(3):
        give_back(base, 3)
    assert lease(base, STRIDE, 3, 3) == 0
    assert not any(ctypes.c_int64.from_address(base + place).value for place in [*places, slots.SLOT.broken])


def test_the_last_one_gives_bulk_memory_back() -> None:
    arena = Arena.create(2)
    try:
        slot = arena.base + arena.plan.slot(0)
        lease, give_back = entry(slots.lease), entry(slots.give_back)
        assert lease(slot, arena.plan.slot_stride, 1, 2) == 0
        chunk = slots.shared_chunk(slot, 2, 1, 2)
        ctypes.memset(chunk, 1, slots.SHARED_CHUNK)
        ctypes.c_int64.from_address(slot + slots.SLOT.bulk).value = 1
        assert [give_back(slot, 2), give_back(slot, 2)] == [0, 1]
        assert ctypes.string_at(chunk, 64) == bytes(64)
    finally:
        arena.close()

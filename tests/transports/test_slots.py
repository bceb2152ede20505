"""Collective slots: regions do not overlap, leases end with the last member, counters start at zero."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
            places.append((slots.split_consumed(0, size, writer, reader), slots.READ.total))
            places.append((slots.shared_consumed(0, size, writer, reader), slots.READ.total))
            places.append((slots.split_ring(0, size, writer, reader), slots.split_bytes(size, slots.SPLIT_BYTES)))
    for rank in ranks:
        places += [(slots.buffer_of(0, size, rank, number), slots.MID) for number in range(slots.DEPTH)]
        places.append((slots.big_ring(0, size, rank), slots.big_bytes(size)))
        places.append((slots.shared_ring(0, size, rank), slots.SHARED_BYTES))
        places.append((slots.judged_blocks(0, size, rank), slots.JUDGED_BYTES))
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
        chunk = slots.shared_ring(slot, 2, 1) + (1 << 20)
        ctypes.memset(chunk, 1, 1 << 20)
        ctypes.c_int64.from_address(slot + slots.SLOT.bulk).value = 1
        assert [give_back(slot, 2), give_back(slot, 2)] == [0, 1]
        assert ctypes.string_at(chunk, 64) == bytes(64)
    finally:
        arena.close()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 33, 64])
@pytest.mark.parametrize("ring_bytes", [2 << 20, 3 << 20, 4 << 20])
def test_a_stream_has_room_for_the_chunks_in_flight(size: int, ring_bytes: int) -> None:
    assert slots.split_bytes(size, ring_bytes) <= slots.split_bytes(size, slots.SPLIT_BYTES)
    assert slots.split_bytes(size, ring_bytes) % PAGE == 0
    assert (slots.CHUNKS + 1) * slots.split_chunk_bytes(size, ring_bytes) <= slots.split_bytes(size, ring_bytes)
    assert slots.split_chunk_bytes(size, ring_bytes) >= slots.LEAST_CHUNK // 64 * 64


@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from([1000, 1000, 1100, 2500])), min_size=1, max_size=400))
def test_no_chunk_is_written_over_one_in_flight(chunks: list[tuple[int, int]]) -> None:
    """Of any lengths up to a fifth of what it uses of the ring, which differs; readers are as far behind as the counters let them be."""
    words = (ctypes.c_int64 * (slots.RING.total // 8))()
    ring = ctypes.addressof(words)
    give, place_of = slots.give_place, slots.place_of
    flying: list[tuple[int, int, int]] = []
    for index, (lines, ring_lines) in enumerate(chunks):
        flying = flying[-(slots.CHUNKS - 1) :]
        place = give(ring, index, 64 * lines - 3, 64 * ring_lines)
        assert place % 64 == 0 and place >= 0 and place + 64 * lines <= 64 * ring_lines
        assert all(place + 64 * lines <= first or place >= first + nbytes for _, first, nbytes in flying)
        flying.append((index, place, 64 * lines))
        assert [place_of(ring, each) for each, _, _ in flying] == [first for _, first, _ in flying]

"""The shared-memory transport keeps the contract of transports."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from ncclx_mpi.testing.transport import End, TransportTests
from transports.base import Transport
from transports.messages import EAGER, RTS
from transports.shm.arena import MAX_RANKS, Arena
from transports.shm.lane import LANE
from transports.shm.layout import RING, ArenaPlan
from transports.shm.transport import SharedMemory


class TestSharedMemory(TransportTests):
    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        """Both ends live in this process: the arena does not care."""
        arena = Arena.create(2)
        return SharedMemory(arena, 0), SharedMemory(arena, 1)

    def credited(self, end: End, peer: int) -> int:
        """It stands in the ring, where the sender looks for it when it needs some."""
        outbox = ctypes.c_int64.from_address(end.peers[peer] + LANE.outbox).value
        return ctypes.c_int64.from_address(outbox + RING.released).value


def test_a_ring_that_is_full_takes_no_more_until_some_of_it_was_read() -> None:
    arena = Arena.create(2)
    zero, one = (End(SharedMemory(arena, rank), [b"", b""]) for rank in (0, 1))
    payload, count = bytes(1000), 0
    while zero.send(1, payload, tag=count):
        count += 1
    assert 60 <= count <= 64
    assert not zero.tell(1, RTS, 0, 0, 0, 0) or not zero.send(1, payload)
    assert [message.tag for message in one.received() if message.kind == EAGER] == list(range(count))
    assert zero.send(1, payload)


def test_what_lies_in_the_arena_is_read_where_it_is() -> None:
    arena = Arena.create(2)
    zero, one = (End(SharedMemory(arena, rank), [b"", b""]) for rank in (0, 1))
    address, room = arena.open_heap(0).allocate(100_000), np.zeros(100_000, np.uint8)
    ctypes.memset(address, 7, 100_000)
    sent = zero.offer(1, address, 100_000)
    (seen,) = one.received()
    assert one.fetch(seen, room.ctypes.data, 100_000)["finished"] and (room == 7).all()
    zero.go_on(sent)
    assert sent["finished"]


@pytest.mark.parametrize("nranks", [1, 2, 512, 513, MAX_RANKS])
def test_an_arena_fits_into_the_address_space(nranks: int) -> None:
    """A mapping can have 85 TiB of the 128 that x86-64 has: what is above the program, or below it."""
    plan = ArenaPlan.within(nranks, nranks, float("inf"))
    assert plan.nbytes < 80 << 40
    assert plan.heap_bytes >= 8 << 30
    assert plan.heap(0) % 4096 == plan.heap_bytes % 4096 == 0


def test_heaps_leave_addresses_to_the_program() -> None:
    fixed = ArenaPlan.within(2, 2, 0).nbytes
    assert ArenaPlan.within(2, 2, 0).heap_bytes == 0
    assert ArenaPlan.within(2, 2, fixed + (4 << 30)).heap_bytes == 1 << 30
    assert ArenaPlan.within(2, 2, fixed + (4 << 30)).nbytes == fixed + (2 << 30)


def flags_of_mapping(address: int) -> str:
    """What the kernel says about the mapping that begins at `address`."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return next(line for line in lines if line.startswith("VmFlags:"))


def test_a_core_dump_leaves_the_arena_out() -> None:
    """Sparse as it is, a dump would hold every page of it, once a rank."""
    arena = Arena.create(2)
    try:
        assert " dd" in flags_of_mapping(arena.base)
        arena.detach()  # as a fork of a rank does
        assert " dd" in flags_of_mapping(arena.base)
    finally:
        arena.close()

"""The shared-memory transport keeps the contract of transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclx_mpi.testing.transport import TransportTests
from transports.base import Transport
from transports.shm.arena import MAX_RANKS, Arena
from transports.shm.layout import ArenaPlan
from transports.shm.transport import SharedMemory


class TestSharedMemory(TransportTests):
    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        """Both ends live in this process: the arena does not care."""
        self.arena = Arena.create(2)
        return SharedMemory(self.arena, 0), SharedMemory(self.arena, 1)

    def shared_memory(self, rank: int, nbytes: int) -> int:
        from transports.shm.heap import Heap

        start = self.arena.plan.heap(rank)
        return Heap(self.arena.base, start, 1 << 30).allocate(nbytes)


@pytest.mark.parametrize("nranks", [1, 2, 512, 513, MAX_RANKS])
def test_an_arena_fits_into_the_address_space(nranks: int) -> None:
    """A mapping can have 85 TiB of the 128 that x86-64 has: what is above the program, or below it."""
    plan = ArenaPlan.within(nranks, float("inf"))
    assert plan.nbytes < 80 << 40
    assert plan.heap_bytes >= 8 << 30
    assert plan.heap(0) % 4096 == plan.heap_bytes % 4096 == 0


def test_heaps_leave_addresses_to_the_program() -> None:
    fixed = ArenaPlan.within(2, 0).nbytes
    assert ArenaPlan.within(2, 0).heap_bytes == 0
    assert ArenaPlan.within(2, fixed + (4 << 30)) == ArenaPlan(2, 1 << 30)
    assert ArenaPlan.within(2, fixed + (4 << 30)).nbytes == fixed + (2 << 30)


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

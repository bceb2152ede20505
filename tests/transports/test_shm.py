"""The shared-memory transport keeps the contract of transports."""

from __future__ import annotations

import pytest

from ncclx_mpi.testing.transport import TransportTests
from transports.base import Transport
from transports.shm.arena import Arena
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

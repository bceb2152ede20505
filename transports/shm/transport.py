"""Ranks of one node: rings, pipes and registered memory in the arena."""

from __future__ import annotations

from typing import ClassVar

from numba_kernels.atomics import fetch_add, full_fence
from numba_kernels.jit import entry, kernel
from numba_kernels.memory import copy
from transports.base import Capabilities, Lane, Transport
from transports.shm.arena import Arena
from transports.shm.layout import ring_bytes
from transports.shm.ring import INLINE, MESSAGE

_WORD = 8
_LINE = 64


class SharedMemory(Transport):
    """Every rank that maps the same arena.

    Parameters
    ----------
    arena
        The node's arena; the transport does not own it.
    rank
        This process's rank.
    """

    name: ClassVar[str] = "shm"

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena = arena
        self._rank = rank

    @property
    def ring_lines(self) -> int:
        """Lines of one ring, a power of two."""
        return ring_bytes(self._arena.nranks) // _LINE

    @property
    def caps(self) -> Capabilities:
        """A message may take a quarter of a ring, so that the receiver's quarterly notes always leave room for it."""
        max_eager = self.ring_lines * _LINE // 4 - (MESSAGE.total - INLINE)
        return Capabilities(max_eager=max_eager, rma=True, atomics=True, direct=True, device_memory=False)

    def why_not(self, peer: int) -> str:
        if 0 <= peer < self._arena.nranks:
            return ""
        return f"rank {peer} is not one of the {self._arena.nranks} ranks of this node"

    def connect(self, peer: int) -> Lane:
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"shm: {reason}")
        base, plan = self._arena.base, self._arena.plan
        return Lane(outbox=base + plan.ring(self._rank, peer), inbox=base + plan.ring(peer, self._rank))

    def register(self, address: int, nbytes: int) -> int | None:
        base, plan = self._arena.base, self._arena.plan
        if base + plan.heaps <= address and address + nbytes <= base + plan.nbytes:
            return address - base
        return None

    def put(self, peer: int, key: int, offset: int, source: int, nbytes: int) -> None:
        entry(_copy_fenced)(self._reach(peer, key, offset, nbytes), source, nbytes)

    def get(self, peer: int, key: int, offset: int, target: int, nbytes: int) -> None:
        entry(_copy_fenced)(target, self._reach(peer, key, offset, nbytes), nbytes)

    def fetch_add(self, peer: int, key: int, offset: int, value: int) -> int:
        address = self._reach(peer, key, offset, _WORD)
        if address % _WORD:
            raise ValueError(f"fetch_add on rank {peer}: offset {offset} is not a multiple of {_WORD} bytes")
        return int(entry(_fetch_add)(address, value))

    def close(self) -> None:
        """Lanes are parts of the arena and end with it."""

    def _reach(self, peer: int, key: int, offset: int, nbytes: int) -> int:
        """Address here of a range of registered memory of `peer`."""
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"shm: {reason}")
        first, last = self._arena.plan.heap(peer), self._arena.plan.heap(peer + 1)
        if offset < 0 or nbytes < 0 or not first <= key + offset <= key + offset + nbytes <= last:
            raise ValueError(
                f"bytes {offset} to {offset + nbytes} under key {key:#x} are not within the shared memory of rank {peer}; "
                "use a key that this rank registered"
            )
        return self._arena.base + key + offset


@kernel("void(int64, int64, int64)", is_entry=True)
def _copy_fenced(target, source, nbytes):  # type: ignore[no-untyped-def]
    copy(target, source, nbytes)
    full_fence()


@kernel("int64(int64, int64)", is_entry=True)
def _fetch_add(address, value):  # type: ignore[no-untyped-def]
    return fetch_add(address, value)

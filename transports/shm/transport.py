"""Ranks of one node: rings and bulk pipes in the arena."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from numba_kernels.clock import ticks_per_us
from numba_kernels.layout import LINE, WORD
from transports.base import Calls, Capabilities, Functions, Transport
from transports.shm import bulk, lane
from transports.shm.arena import Arena
from transports.shm.cma import allow_peers
from transports.shm.lane import LANE, SHM
from transports.shm.layout import BULK_SLOTS, HEADER, ring_bytes, side_bytes
from transports.shm.ring import INLINE, MESSAGE
from transports.shm.shared import AUTO, DIRECT, PIPED
from transports.shm.side import FEW_WIDES, NEVER
from transports.shm.store_kind import MAY_BE_DIRECT, MUST_BE_PIPED, measured


class SharedMemory(Transport):
    """Every rank that maps the same arena.

    Parameters
    ----------
    arena
        The node's arena, whose ranks follow each other; the transport does not own it.
    rank
        This process's world rank.

    Attributes
    ----------
    is_crowded : bool
        Whether there are more ranks than cores.
    """

    name: ClassVar[str] = "shm"
    is_inlined: ClassVar[bool] = True

    def __init__(self, arena: Arena, rank: int) -> None:
        self._near = range(arena.near[0], arena.near[-1] + 1)
        if list(arena.near) != list(self._near):
            raise ValueError(f"the ranks of a node must follow each other, not be {list(arena.near)}; start them node by node")
        self.is_crowded = arena.is_crowded
        self._arena = arena
        self._rank = self._near.index(rank)
        self._key = arena.word(HEADER.key)
        self._engine = 0
        self._peers: Sequence[int] = ()

    @property
    def ring_lines(self) -> int:
        """Lines of one ring, a power of two."""
        return ring_bytes(self._arena.nranks) // LINE

    @property
    def caps(self) -> Capabilities:
        """A message may take a quarter of a ring, so that the receiver's quarterly notes always leave room for it."""
        return Capabilities(max_eager=self.ring_lines * LINE // 4 - (MESSAGE.total - INLINE))

    @functools.cached_property
    def functions(self) -> Functions:
        return Functions.of(lane, bulk, lane.poll)

    @property
    def is_busy(self) -> bool:
        return bool(self.word("active_count"))

    def why_not(self, peer: int) -> str:
        return "" if peer in self._near else f"rank {peer} is not one of the {len(self._near)} ranks of this node"

    def why(self, peer: int) -> str:
        own, its = (self._arena.control_word(rank, "copies") for rank in (self._rank, self._near.index(peer)))
        is_piped = MUST_BE_PIPED in (own, its)
        large = (
            "large ones in pieces, as NCCLX_MPI_COPIES says"
            if is_piped
            else "large ones in one copy by the kernel, if that is faster"
        )
        return f"they share the memory of a node: messages through it, {large}"

    def endpoint(self) -> bytes:
        """Nothing: where everything lies in the arena follows from the ranks."""
        return b""

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        self._engine, self._peers = engine, peers
        base, plan = self._arena.base, self._arena.plan
        for field, value in (
            *calls._asdict().items(),
            ("first_lane", peers[self._near[0]]),
            ("lanes", len(self._near)),
            ("lane_stride", peers[1] - peers[0] if len(peers) > 1 else 0),
            ("arena", base),
            ("heap_first", base + plan.heaps),
            ("heap_last", base + plan.nbytes),
            ("key", self._key),
            ("ring_lines", self.ring_lines),
            ("side_bytes", side_bytes(self._arena.nranks)),
            ("aside_after", FEW_WIDES if side_bytes(self._arena.nranks) and not self.is_crowded else NEVER),
            ("streamed", int(not self.is_crowded)),
            ("ticks_per_us", int(ticks_per_us())),
            ("token", self._key + self._rank),
            ("copies", AUTO),
            ("first_pipe", base + plan.bulk(self._rank, 0)),
            ("pipe_bytes", plan.pipe_bytes(_word_at(base + HEADER.l2_bytes).value)),
        ):
            self.set_word(field, value)
        for index in range(BULK_SLOTS):
            _word_at(engine + SHM.bulk_free + WORD * index).value = base + plan.bulk(self._rank, index)
        return engine

    def connect(self, peer: int, endpoint: bytes) -> None:
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"shm: {reason}")
        base, plan, its_rank = self._arena.base, self._arena.plan, self._near.index(peer)
        for field, value in (
            ("outbox", base + plan.ring(self._rank, its_rank)),
            ("inbox", base + plan.ring(its_rank, self._rank)),
            ("control", base + plan.control(its_rank)),
            ("token", self._key + its_rank),
        ):
            _word_at(self._peers[peer] + getattr(LANE, field)).value = value

    def choose_copies(self, copies: str = "auto") -> None:
        """Choose how this rank moves bulk data between private buffers, and let peers copy to and from them if it may be direct."""
        self.set_word("copies", {"auto": AUTO, "direct": DIRECT, "piped": PIPED}[copies])
        if copies != "piped":
            if self._arena.nranks > 1:
                allow_peers()
            self._arena.set_control_word(self._rank, "token_at", self._engine + SHM.token)
        self._arena.set_control_word(self._rank, "copies", MAY_BE_DIRECT if copies != "piped" else MUST_BE_PIPED)

    def choose_stores(self, stores: str = "auto") -> None:
        """Choose how this rank writes what its peers read: as `stores` says, or by what :func:`~transports.shm.store_kind.measured` finds."""
        if stores != "auto":
            self.set_word("streamed", int(stores == "streamed"))
            self.set_word("stores_fixed", 1)
        elif self._arena.nranks > 1 and not self.is_crowded:
            self.set_word("streamed", measured(self._arena, self._rank))

    def word(self, field: str) -> int:
        """A word of :data:`transports.shm.lane.SHM`."""
        value: int = _word_at(self._engine + getattr(SHM, field)).value
        return value

    def set_word(self, field: str, value: int) -> None:
        """Write a word of :data:`transports.shm.lane.SHM`."""
        _word_at(self._engine + getattr(SHM, field)).value = value

    def close(self) -> None:
        """Lanes are parts of the arena and end with it."""


def _word_at(address: int) -> Any:
    assert address % WORD == 0
    return ctypes.c_int64.from_address(address)

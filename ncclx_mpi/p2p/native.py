"""A communicator as compiled code sees it."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ncclx_mpi.nodes import NodeMap, several_nodes
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.numbering import Numbering, numbering
from numba_kernels.layout import WORD, zeroed

if TYPE_CHECKING:
    from ncclx_mpi.p2p.engine import Engine
    from ncclx_mpi.tuning import Table
    from transports.shm.arena import LoneSlot

_FIRST_WORDS = struct.Struct("7q")
assert (COMM.engine, COMM.context, COMM.rank, COMM.size, COMM.world, COMM.local, COMM.slot) == tuple(range(0, 7 * WORD, WORD))
_FORCED = COMM.forced // WORD


class Ranks:
    """Who the ranks of a communicator are, and what follows from that alone.

    Attributes
    ----------
    world_ranks, size, rank, nodes, table
        As those of :class:`NativeComm`.
    """

    world_ranks: tuple[int, ...]
    size: int
    rank: int
    nodes: NodeMap | None
    table: Table | None
    _numbering: Numbering

    def have_ranks_of(self, other: Ranks) -> None:
        """Be of the ranks of `other`, in its order."""
        self.world_ranks = other.world_ranks
        self.size = other.size
        self.rank = other.rank
        self.nodes = other.nodes
        self.table = other.table
        self._numbering = other._numbering


class NativeComm(Ranks):
    """A communicator as compiled code sees it.

    Attributes
    ----------
    address : int
        Address of its ``COMM`` block; valid as long as this object lives. Whoever posts a receive, or runs a plan, keeps this
        object until that is complete, or hands it over with :meth:`Engine.free`.
    context, rank, size, slot : int
        Context id; own rank; number of ranks; index of its collective slot, -1 for none.
    world_ranks : tuple of int
        World rank of each rank. This process need not be one of them: between two groups they are the other one, and `rank` counts in
        its own.
    forced : tuple of int
        The number of the forced algorithm of each kind of operation (:mod:`ncclx_mpi.algorithms`).
    nodes : NodeMap or None
        Where its ranks are; None if they share a node, or some are of another job, whose nodes only they know.
    table : Table or None
        The tuning table of the job; None if there is none, or some ranks are of another job, which has its own.
    reduction_order : str
        The setting of that name.
    owner : weakref
        To what the layer above made of it; the layer above sets it, and None is what it refers to until then.
    is_revoked : bool
        Whether nobody uses it any more, but to agree and to go on without those that died.
    lone_slot : LoneSlot or None
        What a communicator of this rank alone has in the place of a slot.
    part : Part or None
        The ranks of what the last split into several made of it.
    agreements : int
        How many agreements this rank has begun on it (:mod:`ncclx_mpi.collectives.agreement`).
    """

    owner: Callable[[], Any] = staticmethod(lambda: None)
    is_revoked = False
    agreements = 0
    lone_slot: LoneSlot | None = None
    part: Part | None = None

    def __init__(self, engine: Engine, context: int, world_ranks: Sequence[int], slot: int, rank: int = -1) -> None:
        self.engine = engine
        self.context = context
        self.world_ranks = tuple(world_ranks)
        self.size = len(self.world_ranks)
        self.rank = rank if rank >= 0 else self.world_ranks.index(engine.rank)
        self.slot = slot
        self.nodes = several_nodes(engine.nodes, self.world_ranks)
        self.table = engine.table if max(self.world_ranks, default=0) < engine.size else None
        self.forced = engine.forced
        self.reduction_order = engine.reduction_order
        self._numbering = numbering(self.world_ranks, engine.known)
        self._words, self.address = zeroed(COMM.total)
        arena = engine.arena
        at = arena.base + arena.plan.slot(slot) if slot >= 0 else self._lone_slot()
        numbers = (self._numbering.world_at, self._numbering.local_at)
        _FIRST_WORDS.pack_into(self._words, 0, engine.address, context, self.rank, self.size, *numbers, at)
        self._words[COMM.handle // WORD] = id(self)
        self._words[_FORCED : _FORCED + len(self.forced)] = engine.forced_words
        engine.ended.know(self)

    def sibling(self) -> NativeComm:
        """A communicator of the same ranks, whose block is empty but for what is its own: whoever fills it calls :meth:`settle` then."""
        made, engine = object.__new__(NativeComm), self.engine
        made.engine = engine
        made.have_ranks_of(self)
        made.forced = engine.forced
        made.reduction_order = engine.reduction_order
        made._words, made.address = zeroed(COMM.total)
        return made

    def settle(self) -> NativeComm:
        """Be the communicator that compiled code has filled the block for."""
        words, (slots, stride) = self._words, self.engine.slots
        at = words[COMM.slot // WORD]
        self.context = words[COMM.context // WORD]
        self.slot = (at - slots) // stride if at and self.size > 1 else -1
        words[COMM.handle // WORD] = id(self)
        self.engine.ended.know(self)
        return self

    def _lone_slot(self) -> int:
        """Address of what a rank that is alone has in the place of a slot of the arena, which nobody else has to reach; 0 for others."""
        if self.world_ranks != (self.engine.rank,):
            return 0
        self.lone_slot = self.engine.arena.lone_slot()
        return self.lone_slot.address

    def word(self, field: str) -> int:
        """A word of the native block."""
        value: int = self._words[getattr(COMM, field) // WORD]
        return value

    def set_word(self, field: str, value: int) -> None:
        """Write a word of the native block."""
        self._words[getattr(COMM, field) // WORD] = value


class Part(Ranks):
    """The ranks of a communicator that a split made: what is the same when one is split alike again.

    Parameters
    ----------
    made
        The communicator. It may be freed.

    Attributes
    ----------
    words : array of int
        As compiled code reads it: rank, size, addresses of the numbering, and, to be written, the slot of a rank that is alone.
    """

    def __init__(self, made: NativeComm) -> None:
        self.have_ranks_of(made)
        self.words = array("q", (self.rank, self.size, self._numbering.world_at, self._numbering.local_at, 0))

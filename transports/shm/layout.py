"""The arena: one anonymous memory file that all ranks of a node map, and where everything lies in it.

::

    | header | control block of rank 0 .. n-1 | rings, n x n | bulk pools, n x 4 | collective slots | ends elsewhere | heap of rank 0 .. n-1 |

*Ends elsewhere* is a word for each rank of the job: ABSENT, or DEAD or FINALIZED for one of another node that this node knows the end of.

The file is sparse: a page exists once somebody has touched it. Every shared word has one writer, named here, or is changed
by a single atomic operation, so that a rank killed at any instruction blocks nobody.

Header words
    ``job``        random, the same in the arenas of all nodes of a job; ``world_size`` ranks of the job;
                   ``machine_size`` those on this machine, more than the node's where nodes are simulated
    ``death``      1 + world rank of the first rank that died, 0 while none has; whoever notices first sets it (compare-exchange)
    ``dead_count`` how many died, after ``death``; ``acknowledged`` of how many of them ranks know, and go on without them;
                   ``abort`` 1 + exit code of an Abort; ``key`` random, see :mod:`transports.shm.ring`
    ``stores``     which stores ranks 0 and 1 found the faster ones at start, written by rank 0; 0 = not measured, 1 = plain,
                   2 = streamed; ``bounce_0``, ``bounce_1``: the words it is measured with
    ``l2_bytes``   second-level cache of a core as the creator sees it, so that all ranks know it alike; 0 = unknown
    ``heap_bytes`` room of each heap, which depends on the address space that the creator may use
Control words (writer: the rank; ``state`` also whoever declares it dead; ``world_rank`` the creator)
    ``state``      ABSENT, ALIVE, FINALIZED or DEAD; ``pid``, ``start_time`` (clock ticks since boot, tells a reused pid)
    ``forced``     algorithms of collectives that the rank's settings force (``ncclx_mpi.algorithms``); 0 = not yet
    ``table``      the digest of the rank's tuning table (``ncclx_mpi.tuning``), 1 for none; 0 = not yet
    ``token_at``   where in the private memory of the rank a word stands that holds ``key`` + its world rank; 0 = not yet
    ``copies``     whether the rank takes part in direct copies (``transports.shm.store_kind``), after ``token_at``; 0 = not yet
    ``turns``      counts progress calls, so that an observer sees whether the rank is polling
    ``records``    number of trace records written, which follow the block; their form is the engine's (``ncclx_mpi.p2p.layout``)
"""

from __future__ import annotations

from functools import cached_property

from numba_kernels.layout import WORD, words
from transports.shm.slots import slot_bytes

MAGIC = 0x6E63636C785F6D70
VERSION = 8
PAGE = 4096

HEADER = words(
    "Header",
    "magic version nranks nbytes creator key l2_bytes heap_bytes | job world_size machine_size | death | dead_count | abort | stores "
    "| bounce_0 | bounce_1 | acknowledged",
)
CONTROL = words("Control", "pid start_time world_rank token_at forced copies table | state | turns records | wake")
TRACE_BYTES = 64 << 10

ABSENT, ALIVE, FINALIZED, DEAD = range(4)

RING = words("Ring", "consumed side_consumed | released | data")
"""Written by the receiver: ``consumed``: lines read; ``side_consumed``: bytes read of the side ring; ``released``: bytes of eager payload
matched."""

BULK = words("Bulk", "posted | consumed first next grants mapped | claimed | read | written | target wanted | data")
"""``posted``: chunks written (writer: the sender); ``consumed``: chunks read (writer: the receiver). ``first``: in which of the places for
chunks of its size the first chunk is; ``next``: byte of the pipe behind the last transfer; ``grants``: how often it was lent; ``mapped``: 1 +
its number, once all of it is worth having (writer: the receiver, before the grant). The others serve transfers without a pipe between
the buffers: see :mod:`transports.shm.shared`."""
LEAST_BULK_BYTES, BULK_BYTES = 1 << 20, 4 << 20
"""Of a pipe: the least that is used, and the most, which takes addresses only as long as it is not used."""
BULK_SLOTS, BULK_STRIDE = 4, PAGE + BULK_BYTES
SLOTS = 128
_MOST_HEAP, _MOST_HEAPS = 1 << 36, 1 << 45
"""A heap takes addresses, not memory. 32 TiB for all of them leaves room for the rest: x86-64 has 128 TiB, and the program,
in the middle of them, halves what one mapping can take."""


def ring_bytes(nranks: int) -> int:
    """Data bytes of one ring: n x n of them are mapped, and each pair that talks touches its own."""
    return (64 << 10) if nranks <= 8 else (16 << 10) if nranks <= 64 else (8 << 10)


def side_bytes(nranks: int) -> int:
    """Bytes of the side ring behind each ring, a power of two, or 0: many ranks have none. It takes memory once a pair uses it often."""
    return (2 << 20) if nranks <= 4 else (1 << 20) if nranks <= 8 else 0


class ArenaPlan:
    """Byte offsets of every region in the arena of `nranks` of the `world_size` ranks of a job, each with a heap of `heap_bytes`."""

    def __init__(self, nranks: int, world_size: int, heap_bytes: int) -> None:
        self.nranks = nranks
        self.world_size = world_size
        self.heap_bytes = heap_bytes

    @classmethod
    def within(cls, nranks: int, world_size: int, address_space: float) -> ArenaPlan:
        """The plan for processes that may still map `address_space` bytes each (``inf``: any number).

        The heaps take half of what the rest of the arena leaves, so that the program has addresses too.
        """
        room = address_space - cls(nranks, world_size, 0).nbytes
        most = min(_MOST_HEAP, _MOST_HEAPS // nranks)
        return cls(nranks, world_size, int(max(0, min(most, room / 2 / nranks))) // PAGE * PAGE)

    @property
    def control_bytes(self) -> int:
        return PAGE + TRACE_BYTES

    def control(self, rank: int) -> int:
        return PAGE + rank * self.control_bytes

    def trace(self, rank: int) -> int:
        return self.control(rank) + PAGE

    @property
    def ring_stride(self) -> int:
        return PAGE + ring_bytes(self.nranks) + side_bytes(self.nranks)

    @property
    def rings(self) -> int:
        return self.control(self.nranks)

    def ring(self, source: int, target: int) -> int:
        """The ring that `source` writes and `target` reads."""
        return self.rings + (source * self.nranks + target) * self.ring_stride

    @staticmethod
    def pipe_bytes(l2_bytes: int) -> int:
        """Bytes of a pipe that are used, by the second-level cache of a core: twice that, as what is written there was read long ago then."""
        return min(max(2 * l2_bytes, LEAST_BULK_BYTES), BULK_BYTES) if l2_bytes else 2 * LEAST_BULK_BYTES

    @property
    def bulks(self) -> int:
        return self.ring(self.nranks, 0)

    def bulk(self, owner: int, index: int) -> int:
        """A bulk pipe of the pool of `owner`, who reads it."""
        return self.bulks + (owner * BULK_SLOTS + index) * BULK_STRIDE

    @cached_property
    def slots(self) -> int:
        return _page_up(self.bulk(self.nranks, 0))

    @cached_property
    def slot_stride(self) -> int:
        return _page_up(slot_bytes(self.nranks))

    def slot(self, index: int) -> int:
        return self.slots + index * self.slot_stride

    def end_elsewhere(self, world_rank: int) -> int:
        return self.slot(SLOTS) + world_rank * WORD

    @cached_property
    def heaps(self) -> int:
        return _page_up(self.end_elsewhere(self.world_size))

    def heap(self, rank: int) -> int:
        return self.heaps + rank * self.heap_bytes

    @cached_property
    def nbytes(self) -> int:
        return self.heap(self.nranks)


def _page_up(nbytes: int) -> int:
    return (nbytes + PAGE - 1) // PAGE * PAGE

"""Making and leaving a communicator on a slot in one compiled call: the agreement of its ranks, and the words of its native block.

A communicator that has the ranks of another one in the same order (every duplicate, and what is split by one color and keys that keep the
order) takes all but two of its words from that one: rank 0 leases the slot, and brings it along with the context in the one collective
that the call needs. One of several that a split makes, of the same ranks as the last time, takes them from a :data:`PART`, and a second
collective tells the slots of the leaders, unless no color has two ranks. All else returns SLOW with nothing done, or MIXED with what all
ranks gave, and Python goes on.

Leaving looks at what :func:`ncclx_mpi.collectives.shm_mismatch.disagreement` looks at, and returns the slot, as long as there is nothing
wrong and nothing pending.
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather.shm_oneshot import allgather
from ncclx_mpi.collectives.bcast.shm_oneshot import bcast
from ncclx_mpi.collectives.executor import find_left
from ncclx_mpi.collectives.ready import SLOW
from ncclx_mpi.collectives.select import is_planned, on_lines
from ncclx_mpi.collectives.shm_leaving import part_with_slot
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, BCAST, SCRATCH
from ncclx_mpi.collectives.shm_schedule import leave
from ncclx_mpi.p2p.fast import wait_complete
from ncclx_mpi.p2p.layout import COMM, ENGINE, OPERATIONS, STANDARD
from ncclx_mpi.p2p.leaving import note_left
from ncclx_mpi.p2p.progress import progress, trace_begin, trace_end
from ncclx_mpi.p2p.requests import give_back, start_receive, start_send
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.memory import copy, fill
from numba_kernels.pyobject import object_argument, object_of
from transports.shm.layout import SLOTS
from transports.shm.slots import SLOT, lease

MIXED, PARTED = -3, -4
"""All ranks have given their words, and what comes of it is neither one communicator of all in the old order, nor of the ranks of the last
time; or it is that."""

GIVEN = words("Given", "color key context slot")
"""What each rank gives to a split: the context for the case that it leads, the slot by rank 0 for the case that all are of one color."""
PART = words("Part", "rank size world local lone")
"""The ranks of a communicator that the last split made, as its native block has them, and the slot of one that is alone."""
_MOST_TO_SORT = 64
"""Ranks up to which compiled code finds out what colors there are, and for whose slots the scratch of the new block has room."""
assert COMM.scratch + _MOST_TO_SORT * WORD <= COMM.ways

_FORCED_BYTES = WORD * len(OPERATIONS)
_COMM_CREATE = OPERATIONS.index("comm_create")


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _adopt(parent, made, slots, stride, context, index):  # type: ignore[no-untyped-def]
    """Let `made` be of the ranks of `parent`, on slot `index` of those at `slots`, on none if that is -1."""
    copy(made, parent, COMM.slot)
    store64(made + COMM.context, context)
    store64(made + COMM.slot, slots + index * stride if index >= 0 else 0)


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def duplicate(parent, made, slots, stride, forced, context):  # type: ignore[no-untyped-def]
    """Fill the empty block `made` of a duplicate of `parent`, whose rank 0 gives a `context`: 0, SLOW, or the code of a failure.

    `slots`, `stride`, `forced`: where slots begin, how far they are apart, and where the numbers of forced algorithms are, which are read
    first of all, while nothing can replace them.
    """
    size, pair = load64(parent + COMM.size), made + COMM.scratch
    if is_planned(parent, BCAST) != 0 or on_lines(parent, BCAST, 2 * WORD) == 0 or size == 1:
        return SLOW
    copy(made + COMM.forced, forced, _FORCED_BYTES)
    if load64(parent + COMM.rank) == 0:
        store64(pair, context)
        store64(pair + WORD, lease(slots, stride, SLOTS, size))
    code = bcast(parent, pair, 2 * WORD, 0)
    if code != 0:
        return code
    _adopt(parent, made, slots, stride, load64(pair), load64(pair + WORD))
    fill(pair, 0, 2 * WORD)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def split(parent, made, slots, stride, forced, context, table, color, key, part):  # type: ignore[no-untyped-def]
    """Let all ranks see what each gives to a split, in the rows of `table`, and fill the empty block `made` if all stay together.

    Or if the ranks of this color are those of `part`, unless that is 0. Returns 0 or PARTED then, SLOW, MIXED, or the code of a failure.
    """
    rank, size = load64(parent + COMM.rank), load64(parent + COMM.size)
    if is_planned(parent, ALLGATHER) != 0 or on_lines(parent, ALLGATHER, GIVEN.total) == 0 or size == 1:
        return SLOW
    copy(made + COMM.forced, forced, _FORCED_BYTES)
    own = table + rank * GIVEN.total
    store64(own + GIVEN.color, color)
    store64(own + GIVEN.key, key)
    store64(own + GIVEN.context, context)
    store64(own + GIVEN.slot, lease(slots, stride, SLOTS, size) if rank == 0 else -1)
    code = allgather(parent, 0, GIVEN.total, table)
    if code != 0:
        return code
    if stay_together(table, size) == 0:
        return _fill_part(parent, made, slots, stride, table, color, part)
    _adopt(parent, made, slots, stride, load64(table + GIVEN.context), load64(table + GIVEN.slot))
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _fill_part(parent, made, slots, stride, table, color, part):  # type: ignore[no-untyped-def]
    """Fill the block `made` of the communicator of `color`: PARTED, MIXED if its ranks are others than those of `part`, or a failure."""
    rank, size = load64(parent + COMM.rank), load64(parent + COMM.size)
    is_small = size <= _MOST_TO_SORT and on_lines(parent, ALLGATHER, WORD) != 0
    if part == 0 or not is_small or _are_in(table, size, color, load64(parent + COMM.world), part) == 0:
        return MIXED
    if rank == 0 and load64(table + GIVEN.slot) >= 0:
        store64(slots + load64(table + GIVEN.slot) * stride + SLOT.leased, 0)
    leader, index, at = _first_of(table, color), -1, load64(part + PART.lone)
    if _has_pair(table, size) != 0:
        if rank == leader and load64(part + PART.size) > 1:
            index = lease(slots, stride, SLOTS, load64(part + PART.size))
        own = made + COMM.scratch
        store64(own + rank * WORD, index)
        code = allgather(parent, 0, WORD, own)
        index = load64(own + leader * WORD)
        fill(own, 0, size * WORD)
        if code != 0:
            return code
    if at != 0:
        lease(at, 0, 1, 1)
    elif index >= 0:
        at = slots + index * stride
    store64(made + COMM.engine, load64(parent + COMM.engine))
    store64(made + COMM.context, load64(table + leader * GIVEN.total + GIVEN.context))
    copy(made + COMM.rank, part, PART.lone)
    store64(made + COMM.slot, at)
    return PARTED


@kernel("int64(int64, int64)")
def _first_of(table, color):  # type: ignore[no-untyped-def]
    """The first rank of a color that some have."""
    rank = 0
    while load64(table + rank * GIVEN.total + GIVEN.color) != color:
        rank += 1
    return rank


@kernel("int64(int64, int64, int64, int64, int64)")
def _are_in(table, size, color, world, part):  # type: ignore[no-untyped-def]
    """Whether the ranks of a color are those of `part`, in the order of their keys, which is the old one."""
    count, last, known = 0, 0, load64(part + PART.size)
    for rank in range(size):
        row = table + rank * GIVEN.total
        if load64(row + GIVEN.color) == color:
            key = load64(row + GIVEN.key)
            is_next = count < known and load64(world + WORD * rank) == load64(load64(part + PART.world) + WORD * count)
            if not is_next or (count > 0 and key < last):
                return 0
            count, last = count + 1, key
    return 1 if color >= 0 and count == known else 0


@kernel("int64(int64, int64)")
def _has_pair(table, size):  # type: ignore[no-untyped-def]
    """Whether two ranks gave the same color: only then slots are to be told."""
    for rank in range(size):
        color = load64(table + rank * GIVEN.total + GIVEN.color)
        for other in range(rank):
            if color >= 0 and load64(table + other * GIVEN.total + GIVEN.color) == color:
                return 1
    return 0


@kernel("int64(int64, int64)")
def stay_together(table, size):  # type: ignore[no-untyped-def]
    """Whether all ranks gave one color, which is a color, and keys that leave them in their order."""
    for rank in range(size):
        row = table + rank * GIVEN.total
        if load64(row + GIVEN.color) != load64(table + GIVEN.color) or load64(row + GIVEN.color) < 0:
            return 0
        if rank > 0 and load64(row + GIVEN.key) < load64(row - GIVEN.total + GIVEN.key):
            return 0
    return 1


@kernel(
    types.int64(
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, object_argument
    ),
    is_entry=True,
    nogil=False,
)
def invite(parent, made, slots, stride, forced, context, tag, offset, owner):  # type: ignore[no-untyped-def]
    """As :func:`duplicate`, by messages in one of the message spaces of `parent`: rank 0 tells the others one by one.

    `owner` keeps the block `made`. Returns 0, or GIVEN_UP less a code.
    """
    engine, rank, size, pair = (
        load64(parent + COMM.engine),
        load64(parent + COMM.rank),
        load64(parent + COMM.size),
        made + COMM.scratch,
    )
    copy(made + COMM.forced, forced, _FORCED_BYTES)
    if rank == 0:
        store64(pair, context)
        store64(pair + WORD, lease(slots, stride, SLOTS, size))
    record = trace_begin(engine, _COMM_CREATE, load64(parent + COMM.context), 0, tag, 2 * WORD)
    for other in range(1, size if rank == 0 else 2):
        if rank == 0:
            request = start_send(parent, 0, offset, pair, 2 * WORD, other, tag, STANDARD)
        else:
            request = start_receive(parent, 0, offset, pair, 2 * WORD, 0, tag)
        code = wait_complete(engine, request, object_of(owner))
        if code != 0:
            return code
        give_back(engine, request)
    trace_end(record)
    _adopt(parent, made, slots, stride, load64(pair), load64(pair + WORD))
    fill(pair, 0, 2 * WORD)
    return 0


@kernel("int64(int64)", is_entry=True, nogil=False)
def depart(comm):  # type: ignore[no-untyped-def]
    """Say what this rank has called on a communicator with a slot, and return the slot: 0; SLOW if Python has to look at it."""
    engine = load64(comm + COMM.engine)
    if load64(comm + COMM.broken) != 0 or load64(load64(engine + ENGINE.death)) != 0:
        return SLOW
    if load64(comm + SCRATCH.first) != load64(comm + SCRATCH.end) or part_with_slot(comm) != 0:
        return SLOW
    progress(engine)
    is_behind = load64(engine + ENGINE.unexpected_first) != 0 and load64(engine + ENGINE.plan_count) == 0
    if is_behind and find_left(engine, comm) != 0:
        return SLOW
    if load64(comm + COMM.size) > 1:
        note_left(engine, load64(comm + COMM.context), load64(comm + COMM.plans), 0)
    leave(comm)
    return 0

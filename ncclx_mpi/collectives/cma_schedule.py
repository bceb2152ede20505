"""Large non-blocking collectives: every rank copies its share straight between private buffers, one piece each time it makes progress.

::

    publish  every rank publishes where its buffers are        as it starts, on its line (:mod:`ncclx_mpi.collectives.shm_schedule`)
    copy     process_vm_readv, process_vm_writev               one piece a step, once all have published; nobody need be in the engine
    close    ``done`` of every rank has come so far            the buffers are the caller's again

No rank waits for another one between two pieces, so whoever makes progress, in whatever call, does all that is its own to do, and ranks
that compute delay nobody before the end. What a rank copies, and that any order will do, is said in the files ``cma.py`` of the
blocking collectives:

===============  ==========================================================================================================
collective       pieces of rank r
===============  ==========================================================================================================
bcast            from the root; of two ranks each copies one half
gather, scatter  own block to the root's result; own block from what the root gives
allgather        own block to all results, the own one first
alltoall         block d to the result of rank d, for d = r, r + 1, ...
allreduce        block r of all is pulled and reduced in rank order, and pushed to all results
reduce           likewise, to the root's result
reduce_scatter   block r of all is pulled and reduced in rank order
===============  ==========================================================================================================

In place, all of them are safe but alltoall and reduce_scatter, which give a copy (:mod:`ncclx_mpi.collectives.nonblocking`).

T = 2 alpha + what the blocking one copies, from when the last rank has started it, as long as all make progress.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import PIECE, note_copied, note_look, opened, pull, push
from ncclx_mpi.collectives.cma_tuning import control_at, peer_at
from ncclx_mpi.collectives.reduce_scatter.cma import MOST_CHUNK, chunk_items, reduce_pulled
from ncclx_mpi.collectives.shm_oneshot import (
    AGREED,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BCAST,
    GATHER,
    PLANNED,
    REDUCE,
    SCATTER,
    SCRATCH,
    UNREACHED,
    arrive,
    plain_kind,
    root_of,
)
from ncclx_mpi.collectives.shm_pipelined import land
from ncclx_mpi.collectives.shm_schedule import DIRECT_WORDS, ENTRY
from ncclx_mpi.p2p.layout import COMM, REFUSED
from numba_kernels.atomics import load64, load_acquire, store64
from numba_kernels.jit import kernel
from transports.shm.layout import CONTROL
from transports.shm.shared import is_reached
from transports.shm.slots import done_of
from transports.shm.store_kind import MUST_BE_PIPED

CHUNKS_BYTES = 3 * MOST_CHUNK
"""Room for the chunks in which reductions work."""
_LINE = 64


@kernel("int64(int64)")
def _pieces_of(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + PIECE - 1) // PIECE


@kernel("int64(int64, int64)")
def _block_of(comm, count):  # type: ignore[no-untyped-def]
    """The first of `count` elements that this rank reduces; as the rank after the last one, `count`."""
    return count * load64(comm + COMM.rank) // load64(comm + COMM.size)


@kernel("int64(int64, int64)")
def _block_end(comm, count):  # type: ignore[no-untyped-def]
    return count * (load64(comm + COMM.rank) + 1) // load64(comm + COMM.size)


@kernel("int64(int64, int64)")
def _is_root(comm, entry):  # type: ignore[no-untyped-def]
    return 1 if root_of(load64(entry + ENTRY.signature)) == load64(comm + COMM.rank) else 0


@kernel("int64(int64, int64)")
def _pieces(comm, entry):  # type: ignore[no-untyped-def]
    """How many pieces this rank copies."""
    kind, size, nbytes = plain_kind(load64(entry + ENTRY.signature)), load64(comm + COMM.size), load64(entry + ENTRY.nbytes)
    if kind == BCAST:
        if size == 2:
            half = nbytes // 2 // _LINE * _LINE
            return _pieces_of(nbytes - half if _is_root(comm, entry) != 0 else half)
        return 0 if _is_root(comm, entry) != 0 else _pieces_of(nbytes)
    if kind in (GATHER, SCATTER):
        return _pieces_of(nbytes)
    if kind in (ALLGATHER, ALLTOALL):
        return size * _pieces_of(nbytes)
    itemsize = load64(entry + ENTRY.itemsize)
    count = nbytes // itemsize
    if kind in (ALLREDUCE, REDUCE):
        count = _block_end(comm, count) - _block_of(comm, count)
    most = chunk_items(comm, count, itemsize)
    return (count + most - 1) // most


@kernel("int64(int64, int64, int64, int64)")
def _theirs(comm, entry, other, word):  # type: ignore[no-untyped-def]
    """Where what rank `other` gives (1), or gets (2), is in its memory."""
    return opened(comm, other, load64(entry + ENTRY.number), DIRECT_WORDS, word)


@kernel("int64(int64, int64, int64, int64, int64)")
def _hand(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy own bytes to rank `other`, which may be this one. 0, or why that was given up."""
    if other != load64(comm + COMM.rank):
        return push(comm, other, source, target, nbytes)
    if source != target:
        land(target, source, nbytes, nbytes)
    return 0


@kernel("int64(int64, int64, int64)")
def _copy_bcast(comm, entry, index):  # type: ignore[no-untyped-def]
    nbytes, address, root = load64(entry + ENTRY.nbytes), load64(entry + ENTRY.send_at), root_of(load64(entry + ENTRY.signature))
    half = nbytes // 2 // _LINE * _LINE if load64(comm + COMM.size) == 2 else nbytes
    if _is_root(comm, entry) == 0:
        at = index * PIECE
        return pull(comm, root, _theirs(comm, entry, root, 1) + at, address + at, min(PIECE, half - at))
    at = half + index * PIECE
    return push(comm, 1 - root, address + at, _theirs(comm, entry, 1 - root, 1) + at, min(PIECE, nbytes - at))


@kernel("int64(int64, int64, int64)")
def _copy_blocks(comm, entry, index):  # type: ignore[no-untyped-def]
    """A piece of a gather, scatter, allgather or alltoall."""
    kind, rank, size = plain_kind(load64(entry + ENTRY.signature)), load64(comm + COMM.rank), load64(comm + COMM.size)
    send, recv, nbytes = load64(entry + ENTRY.send_at), load64(entry + ENTRY.recv_at), load64(entry + ENTRY.nbytes)
    root, step, at, source = root_of(load64(entry + ENTRY.signature)), 0, index * PIECE, send
    if kind == SCATTER:
        if rank != root:
            return pull(comm, root, _theirs(comm, entry, root, 1) + rank * nbytes + at, recv + at, min(PIECE, nbytes - at))
        source = send + rank * nbytes
        return _hand(comm, rank, source + at, (recv if recv != 0 else source) + at, min(PIECE, nbytes - at))
    if kind == GATHER:
        target = _theirs(comm, entry, root, 2) + rank * nbytes
        return _hand(comm, root, (send if send != 0 else target) + at, target + at, min(PIECE, nbytes - at))
    if kind == ALLGATHER:  # all copies of a piece one after another: it stays in the cache
        at, step = index // size * PIECE, index % size
    else:
        pieces = _pieces_of(nbytes)
        at, step = index % pieces * PIECE, index // pieces
    other = (rank + step) % size
    if kind == ALLTOALL:
        source = send + other * nbytes
    target = _theirs(comm, entry, other, 2) if other != rank else recv
    return _hand(comm, other, source + at, target + rank * nbytes + at, min(PIECE, nbytes - at))


@kernel("int64(int64, int64, int64)")
def _reduce_chunk(comm, entry, index):  # type: ignore[no-untyped-def]
    """A piece of a reduction: pulled, reduced in rank order, and pushed to whoever gets it."""
    kind, rank, size = plain_kind(load64(entry + ENTRY.signature)), load64(comm + COMM.rank), load64(comm + COMM.size)
    send, recv, itemsize = load64(entry + ENTRY.send_at), load64(entry + ENTRY.recv_at), load64(entry + ENTRY.itemsize)
    count, room = load64(entry + ENTRY.nbytes) // itemsize, load64(comm + SCRATCH.chunks)
    first, last = load64(entry + ENTRY.offset), load64(entry + ENTRY.offset) + count
    out = recv - first * itemsize
    if kind in (ALLREDUCE, REDUCE):
        first, last, out = _block_of(comm, count), _block_end(comm, count), recv
    most = chunk_items(comm, last - first, itemsize)
    part, at = min(most, last - first - index * most), (first + index * most) * itemsize
    is_sent = kind == REDUCE and _is_root(comm, entry) == 0
    out = room + 2 * most * itemsize if is_sent else out + at
    code = reduce_pulled(
        comm, load64(entry + ENTRY.number), DIRECT_WORDS, send, out, at, part, itemsize, load64(entry + ENTRY.fn), room
    )
    if is_sent and code == 0:
        root = root_of(load64(entry + ENTRY.signature))
        code = push(comm, root, out, _theirs(comm, entry, root, 2) + at, part * itemsize)
    for step in range(1, size if kind == ALLREDUCE else 1):
        other = (rank + step) % size
        if code == 0:
            code = push(comm, other, out, _theirs(comm, entry, other, 2) + at, part * itemsize)
    return code


@kernel("int64(int64, int64)")
def _open(comm, entry):  # type: ignore[no-untyped-def]
    """Check that all ranks called the same, and can do it. 0 or the code of a failure."""
    store64(comm + SCRATCH.past, load64(entry + ENTRY.past))
    for other in range(load64(comm + COMM.size)):
        if other != load64(comm + COMM.rank):
            code = arrive(comm, other, load64(entry + ENTRY.number), load64(entry + ENTRY.signature))
            if code != 0:
                return code
            if _theirs(comm, entry, other, 0) == 0:
                return REFUSED
    return 0


@kernel("int64(int64, int64, int64)")
def _copy(comm, entry, index):  # type: ignore[no-untyped-def]
    """Copy piece `index`. 0, or why that was given up."""
    note_look(comm)  # signals are not looked at here: a handler in Python must not run under the engine's lock
    kind = plain_kind(load64(entry + ENTRY.signature))
    if kind == BCAST:
        return _copy_bcast(comm, entry, index)
    if load64(entry + ENTRY.fn) != 0:
        return _reduce_chunk(comm, entry, index)
    return _copy_blocks(comm, entry, index)


@kernel("void(int64)", is_entry=True)
def step(entry):  # type: ignore[no-untyped-def]
    """Go on with a collective that all ranks have published; the engine's lock is held.

    ``outcome`` says how it is then: 1 if it is complete, 0 if it is not, or minus the code of a failure.
    """
    comm, moved, code = load64(entry + ENTRY.comm), load64(entry + ENTRY.moved), 0
    pieces, number = _pieces(comm, entry), load64(entry + ENTRY.number)
    store64(entry + ENTRY.outcome, 0)
    if moved == 0:
        code = _open(comm, entry)
    if code == 0 and moved < pieces:
        code = _copy(comm, entry, moved)
    if code != 0:
        store64(entry + ENTRY.outcome, -code)
        return
    if moved < max(pieces, 1):
        moved += 1
        store64(entry + ENTRY.moved, moved)
    if moved < pieces:
        return
    slot, size, other = load64(comm + COMM.slot), load64(comm + COMM.size), load64(entry + ENTRY.closed)
    if other == 0:
        note_copied(comm, number)
    while other < size and (other == load64(comm + COMM.rank) or load_acquire(done_of(slot, size, other)) >= number):
        other += 1
    store64(entry + ENTRY.closed, other)
    store64(entry + ENTRY.outcome, 1 if other == size else 0)


# Whether they go directly -----------------------------------------------------------------------------------------


@kernel("void(int64)", is_entry=True)
def look_ahead(comm):  # type: ignore[no-untyped-def]
    """Find out how large non-blocking collectives go, once all ranks have published whether they take part in direct copies."""
    engine, ahead = load64(comm + COMM.engine), AGREED
    for other in range(load64(comm + COMM.size)):
        if load64(control_at(comm, other) + CONTROL.copies) == MUST_BE_PIPED:
            store64(comm + SCRATCH.ahead, PLANNED)
            return
    for other in range(load64(comm + COMM.size)):
        if other != load64(comm + COMM.rank) and is_reached(engine, peer_at(comm, other)) == 0:
            ahead = UNREACHED
    store64(comm + SCRATCH.ahead, ahead)

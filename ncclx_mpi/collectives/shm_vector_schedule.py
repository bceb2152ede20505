"""Non-blocking collectives with counts: gatherv, scatterv, allgatherv, alltoallv and alltoallw, block by block.

::

    publish  what a rank gives stands with its line, up to ``BIG`` bytes; else a notice, where its blocks are in its memory
    collect  every block as soon as its sender's line is there, the next rank's first; what was noticed is pulled, one piece a step
    close    whose memory others copy from, or into, waits until they have

    line of rank r:  payload as of the blocking ones (:mod:`ncclx_mpi.collectives.alltoall.shm_vector`)
                     notice: DIRECT | address, bytes of the block of each rank     (allgatherv: of the one block)

Both ends of a block of more than ``BIG`` bytes of a gatherv or scatterv give notice of it, the root then of all blocks, and copy it together:
of n ranks, the root the last nth. So all have as much to do, and a leaf waits for nobody but the root::

    leaf  [ copies                   |       ]   then waits until the root has marked its notice
    root  [                          | copies]   then marks it, and waits in the end for all leaves

Nobody but the two ends of a block knows its length, so each rank decides by what it gives in all, and signs so many bytes; both ends check.
All ranks have to agree only that what is large is copied directly, and do so before the first one (:mod:`ncclx_mpi.collectives.nonblocking`).

The rows of a collective (`ROW`, one for each rank) are its own, and do not change until it is complete.

=====================  ================  =====================================================================================
word                   written           order and meaning
=====================  ================  =====================================================================================
``LINE.stamp``         by its rank       release, after payload or notice; acquired by whoever takes a block
notice, bytes          by the root       release, negative: it has copied its part of that block; acquired by the leaf
``done``               by its rank       release: it has copied all it has to; acquired by those whose memory it copied from, or into
``ENTRY.moved, part``  under the lock    blocks that are here; bytes of the next one that are
``ENTRY.closed``       under the lock    ranks of which it is known that they have copied
=====================  ================  =====================================================================================

A leaf that has copied still looks at the root's notice, which the root may have written over since: but then the root is done, too.

T = alpha + bytes sent and received * beta on lines; 2 alpha + bytes that a rank copies * beta directly, as long as all make progress.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.cma_vector import check_length, notice_bytes, write_notice
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.alltoall.shm_vector import bytes_to_sign, receive_block, write_payload
from ncclx_mpi.collectives.cma import PIECE, is_shown, note_copied, note_look, pull, push
from ncclx_mpi.collectives.shm_oneshot import (
    AHEAD,
    ALLGATHER,
    ALLTOALL,
    GATHER,
    SCATTER,
    SCRATCH,
    VECTORS,
    arrive_with_any,
    bytes_of,
    payload,
    plain_kind,
    root_of,
    show,
    sign,
    signed_bytes,
)
from ncclx_mpi.collectives.shm_schedule import BY_BLOCKS, ENTRY, keep_block, sign_entry
from ncclx_mpi.p2p.layout import BROKEN, COMM
from numba_kernels.atomics import load64, load_acquire, load_relaxed, store64, store_release
from numba_kernels.jit import kernel
from transports.shm.shared import DIRECT
from transports.shm.slots import BIG, LINE, SLOT, done_of, line_of

_PAIR, _LINE = 16, 64
PENDING, HERE = 0, 1
"""How a block is; minus the code of a failure otherwise."""


# What a collective is ---------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def row_of(table, other):  # type: ignore[no-untyped-def]
    """The row of rank `other`."""
    return table + other * ROW.total


@kernel("int64(int64, int64, int64)")
def _is_leaf(comm, kind, root):  # type: ignore[no-untyped-def]
    return 1 if kind in (GATHER, SCATTER) and load64(comm + COMM.rank) != root else 0


@kernel("int64(int64, int64)")
def _column(kind, is_leaf):  # type: ignore[no-untyped-def]
    """Which two words of a row are about memory that others copy from, or into."""
    return ROW.recv if kind in (GATHER, SCATTER) and (kind == GATHER) != (is_leaf != 0) else ROW.send


@kernel("int64(int64, int64, int64, int64)")
def _signed(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Bytes that this rank signs. The block of an allgather stands in its own row."""
    if kind == ALLGATHER:
        return load64(row_of(table, load64(comm + COMM.rank)) + ROW.send_bytes)
    if kind == SCATTER and _is_leaf(comm, kind, root) != 0:
        expected = load64(row_of(table, root) + ROW.recv_bytes)
        return expected if expected > BIG else 0
    return bytes_to_sign(comm, kind, root, table)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def is_fit(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Whether the others may copy from, or into, the memory of this rank where they have to.

    They may not if the kernel does not copy there, or if what it gives is what it gets, and would be written over.
    """
    rank, column = load64(comm + COMM.rank), _column(kind, _is_leaf(comm, kind, root))
    if _signed(comm, kind, root, table) <= BIG:
        return 1
    if kind == ALLGATHER:
        return is_shown(comm, load64(row_of(table, rank) + ROW.send))
    for other in range(load64(comm + COMM.size)):
        row = row_of(table, other)
        if other != rank and load64(row + column + 8) > 0:
            is_in_place = kind == ALLTOALL and load64(row + ROW.send) == load64(row + ROW.recv)
            return 0 if is_in_place else is_shown(comm, load64(row + column))
    return 1


@kernel("void(int64, int64, int64, int64, int64, int64)")
def go_by_blocks(comm, entry, published, steps, table, owned):  # type: ignore[no-untyped-def]
    """Make a signed entry one that another module carries out: see :data:`ENTRY`."""
    store64(entry + ENTRY.published, published)
    store64(entry + ENTRY.way, BY_BLOCKS)
    store64(entry + ENTRY.comm, comm)
    store64(entry + ENTRY.steps, steps)
    store64(entry + ENTRY.table, table)
    store64(entry + ENTRY.owned, owned)
    store64(entry + ENTRY.moved, 0)
    store64(entry + ENTRY.part, 0)
    store64(entry + ENTRY.closed, 0)
    store64(entry + ENTRY.differs, 0)


@kernel("void(int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe(comm, entry, kind, root, table, owned):  # type: ignore[no-untyped-def]
    """Make it the entry of a collective of the rows of `table`; `owned` is memory to give back once it is complete, or 0."""
    signed, own = _signed(comm, kind, root, table), row_of(table, load64(comm + COMM.rank))
    sign_entry(entry, sign(kind | AHEAD | VECTORS, root, signed))
    keep_block(entry, load64(own + ROW.recv), load64(own + ROW.send), load64(own + ROW.recv_bytes))
    published = signed if signed <= BIG else notice_bytes(comm)
    go_by_blocks(comm, entry, published, load64(comm + SCRATCH.by_blocks), table, owned)


# Its steps --------------------------------------------------------------------------------------------------------


@kernel("void(int64)", is_entry=True)
def step(entry):  # type: ignore[no-untyped-def]
    """Write what a collective publishes, if its line is not published yet; else go on with it. The engine's lock is held.

    ``outcome`` says how it is then: 1 if it is complete, 0 if it is not, or minus the code of a failure.
    """
    comm, number, outcome = load64(entry + ENTRY.comm), load64(entry + ENTRY.number), PENDING
    if load64(comm + SCRATCH.published) < number:
        _write(comm, entry, number)
    else:
        outcome = _collect(comm, entry, number)
        if outcome == HERE:
            outcome = _await_others(comm, entry, number)
    store64(entry + ENTRY.outcome, outcome)


@kernel("int64(int64, int64, int64)")
def _notice_of(comm, other, number):  # type: ignore[no-untyped-def]
    """The notice with the line of rank `other`."""
    return payload(comm, other, number, notice_bytes(comm))


@kernel("void(int64, int64, int64)")
def _write(comm, entry, number):  # type: ignore[no-untyped-def]
    """Write payload or notice of the own line."""
    signature, table, rank = load64(entry + ENTRY.signature), load64(entry + ENTRY.table), load64(comm + COMM.rank)
    kind, root, signed, own = plain_kind(signature), root_of(signature), bytes_of(signature), row_of(table, rank)
    target = payload(comm, rank, number, load64(entry + ENTRY.published))
    if signed > BIG and kind == ALLGATHER:
        store64(target, DIRECT)
        store64(target + 8, load64(own + ROW.send))
        store64(target + 16, signed)
    elif signed > BIG:
        write_notice(comm, _column(kind, _is_leaf(comm, kind, root)), DIRECT, table, target)
    elif kind == ALLGATHER:
        show(comm, target, load64(own + ROW.send), signed)
    elif signed > 0:
        write_payload(comm, kind, table, target)


@kernel("int64(int64, int64, int64)")
def _collect(comm, entry, number):  # type: ignore[no-untyped-def]
    """Move the blocks one after another: how the next one is that is not here, `HERE` if all are."""
    size, rank, index, outcome = load64(comm + COMM.size), load64(comm + COMM.rank), load64(entry + ENTRY.moved), HERE
    while index < size - 1 and outcome == HERE:
        outcome = _move(comm, entry, number, (rank + 1 + index) % size)
        if outcome == HERE:
            index += 1
            store64(entry + ENTRY.part, 0)
    store64(entry + ENTRY.moved, index)
    return outcome


@kernel("int64(int64, int64, int64, int64)")
def _shared_bytes(comm, kind, root, row):  # type: ignore[no-untyped-def]
    """Bytes of a block that its two ends copy together; 0 if they do not."""
    nbytes = load64(row + _column(kind, _is_leaf(comm, kind, root)) + 8) if kind in (GATHER, SCATTER) else 0
    return nbytes if nbytes > BIG else 0


@kernel("int64(int64, int64, int64, int64)")
def _move(comm, entry, number, other):  # type: ignore[no-untyped-def]
    """Go on with what moves between this rank and rank `other`."""
    signature, row = load64(entry + ENTRY.signature), row_of(load64(entry + ENTRY.table), other)
    kind, root = plain_kind(signature), root_of(signature)
    shared, expected = _shared_bytes(comm, kind, root, row), load64(row + ROW.recv_bytes)
    if shared == 0 and expected == 0:
        return HERE
    if load_acquire(line_of(load64(comm + COMM.slot), other, number) + LINE.stamp) < number:
        return PENDING
    store64(comm + SCRATCH.past, load64(entry + ENTRY.past))
    code = arrive_with_any(comm, other, number, signature)
    if code != 0:
        return -code
    if shared > 0:
        return _share(comm, entry, number, other, shared)
    if kind == GATHER or signed_bytes(comm, other, number) <= BIG:
        code = receive_block(comm, kind, root, other, number, row)
        return -code if code != 0 else HERE
    place = 0 if kind == ALLGATHER else load64(comm + COMM.rank) * _PAIR
    pair = _notice_of(comm, other, number) + 8 + place
    code = check_length(comm, other, kind, root, expected, abs(load64(pair + 8)))
    return -code if code != 0 else _copy(comm, entry, other, load64(row + ROW.recv), load64(pair), 0, expected, 1)


@kernel("int64(int64, int64, int64, int64, int64)")
def _share(comm, entry, number, other, nbytes):  # type: ignore[no-untyped-def]
    """Go on with this rank's part of a block that it and rank `other` copy together."""
    signature, rank, size = load64(entry + ENTRY.signature), load64(comm + COMM.rank), load64(comm + COMM.size)
    kind, root, its = plain_kind(signature), root_of(signature), signed_bytes(comm, other, number)
    pair = _notice_of(comm, other, number) + 8 + rank * _PAIR
    if rank != root and its > BIG:
        its = abs(load64(pair + 8))
    code = check_length(comm, other, kind, root, nbytes, its)
    if code != 0:
        return -code
    own = load64(row_of(load64(entry + ENTRY.table), other) + _column(kind, _is_leaf(comm, kind, root)))
    middle, is_pulled = nbytes - nbytes // size // _LINE * _LINE, (kind == GATHER) == (rank == root)
    if rank != root:
        return _copy(comm, entry, other, own, load64(pair), 0, middle, is_pulled)
    outcome = _copy(comm, entry, other, own, load64(pair), middle, nbytes, is_pulled)
    if outcome == HERE:
        store_release(_notice_of(comm, rank, number) + 16 + other * _PAIR, -nbytes)
    return outcome


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _copy(comm, entry, other, own, its, start, stop, is_pulled):  # type: ignore[no-untyped-def]
    """Copy the next piece of bytes `start` to `stop` from `its` memory of rank `other` to the `own`, or the other way."""
    at = start + load64(entry + ENTRY.part)
    piece = min(PIECE, stop - at)
    if load_relaxed(load64(comm + COMM.slot) + SLOT.broken) != 0:  # memory of who gave up holds anything
        return -BROKEN
    note_look(comm)  # signals are not looked at here: a handler in Python must not run under the engine's lock
    code = pull(comm, other, its + at, own + at, piece) if is_pulled != 0 else push(comm, other, own + at, its + at, piece)
    store64(entry + ENTRY.part, at + piece - start)
    if code != 0:
        return -code
    return HERE if at + piece == stop else PENDING


@kernel("int64(int64, int64, int64)")
def _await_others(comm, entry, number):  # type: ignore[no-untyped-def]
    """Whether all that copy from, or into, the memory of this rank have done it; this one has copied all it has to."""
    signature, slot, size = load64(entry + ENTRY.signature), load64(comm + COMM.slot), load64(comm + COMM.size)
    kind, root, rank, other = plain_kind(signature), root_of(signature), load64(comm + COMM.rank), load64(entry + ENTRY.closed)
    if bytes_of(signature) <= BIG:
        return HERE
    if _is_leaf(comm, kind, root) != 0:
        note_copied(comm, number)
        taken = load_acquire(_notice_of(comm, root, number) + 16 + rank * _PAIR)
        return HERE if taken < 0 or load_acquire(done_of(slot, size, root)) >= number else PENDING
    if other == 0 and kind in (ALLGATHER, ALLTOALL):
        note_copied(comm, number)
    while other < size and (
        _is_copier(kind, load64(entry + ENTRY.table), rank, other) == 0 or load_acquire(done_of(slot, size, other)) >= number
    ):
        other += 1
    store64(entry + ENTRY.closed, other)
    return HERE if other == size else PENDING


@kernel("int64(int64, int64, int64, int64)")
def _is_copier(kind, table, rank, other):  # type: ignore[no-untyped-def]
    """Whether rank `other` copies from, or into, the memory of this rank, which gave notice and is no leaf."""
    row = row_of(table, other)
    if other == rank:
        return 0
    if kind == GATHER:
        return 1 if load64(row + ROW.recv_bytes) > BIG else 0
    return 1 if kind == ALLGATHER or load64(row + ROW.send_bytes) > 0 else 0

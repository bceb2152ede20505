"""Neighbourhood collectives that do not block, inside a node: block by block, as those with counts.

::

    publish  the blocks of all edges stand with the line, up to ``BIG`` bytes; else a notice, where they are in memory
    collect  along each edge, in turn, as soon as the line of the rank at its other end is there; what was noticed is pulled, one piece a step
    close    a rank that gave notice waits until the ranks at the other ends of its edges have copied

Lines and notices are those of blocking ones (:mod:`.shm_edges`), but blocks have no gaps: others are packed before, in Python. All ranks
have to agree that they go this way before the first one, and none may wait for that: they know it if blocking ones have agreed, or if all
know that nobody has more edges than fit a notice, as of a topology (``Neighborhood.degree``), and that the kernel copies between
all of them (:mod:`ncclx_mpi.collectives.nonblocking`).

Words, writers and memory orders: :mod:`ncclx_mpi.collectives.shm_vector_schedule`. The table is rows of `PART`: what is sent along each
edge, and what is received.

T = alpha + bytes sent and received * beta on lines; 2 alpha + bytes received * beta by copies of the kernel, as long as all make progress.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.cma_vector import check_length
from ncclx_mpi.collectives.cma import PIECE, note_copied, note_look, pull
from ncclx_mpi.collectives.neighbor_alltoall.shm_edges import (
    LENGTHS_DIFFER,
    NOTICE,
    RANK_BITS,
    block_at,
    destination,
    find_block,
    is_kept_by_kernel,
    keep_own,
    line_bytes_of,
    source_edge,
    write_blocks,
    write_notice,
)
from ncclx_mpi.collectives.neighborhood import EDGE, EDGES, NEIGHBOR_ALLGATHER, PART
from ncclx_mpi.collectives.shm_oneshot import (
    AHEAD,
    SCRATCH,
    VECTORS,
    arrive_with_any,
    bytes_of,
    payload,
    plain_kind,
    sign,
    signed_bytes,
)
from ncclx_mpi.collectives.shm_schedule import ENTRY, sign_entry
from ncclx_mpi.collectives.shm_vector_schedule import HERE, PENDING, go_by_blocks
from ncclx_mpi.p2p.layout import BROKEN, COMM
from numba_kernels.atomics import load64, load_acquire, load_relaxed, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import copy_lines
from transports.shm.slots import BIG, LINE, SLOT, done_of, line_of


@kernel("int64(int64, int64)", is_entry=True)
def sent_rows(comm, kind):  # type: ignore[no-untyped-def]
    """Rows of the table before those of what is received."""
    return 1 if kind == NEIGHBOR_ALLGATHER else max(load64(load64(comm + COMM.edges) + EDGES.outdegree), 1)


@kernel("int64(int64, int64, int64)", is_entry=True)
def is_fit(comm, kind, table):  # type: ignore[no-untyped-def]
    """Whether the others may copy from the memory of this rank where they have to."""
    edges = load64(comm + COMM.edges)
    if line_bytes_of(edges, kind, table) <= BIG:
        return 1
    for row in range(load64(edges + EDGES.destinations)):
        part = table if kind == NEIGHBOR_ALLGATHER else table + load64(destination(edges, row) + EDGE.index) * PART.total
        if load64(part + PART.nbytes) > 0:
            return is_kept_by_kernel(comm, part, 1)
    return 1


@kernel("void(int64, int64, int64, int64, int64)", is_entry=True)
def describe(comm, entry, kind, table, owned):  # type: ignore[no-untyped-def]
    """Make it the entry of a collective of the rows of `table`; `owned` is memory to give back once it is complete, or 0."""
    nbytes = line_bytes_of(load64(comm + COMM.edges), kind, table)
    sign_entry(entry, sign(kind | AHEAD | VECTORS, 0, nbytes))
    go_by_blocks(comm, entry, min(nbytes, BIG), load64(comm + SCRATCH.by_edges), table, owned)


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
            outcome = _await_readers(comm, entry, number)
    store64(entry + ENTRY.outcome, outcome)


@kernel("int64(int64, int64)")
def _received(comm, entry):  # type: ignore[no-untyped-def]
    """The rows of what is received."""
    return load64(entry + ENTRY.table) + sent_rows(comm, plain_kind(load64(entry + ENTRY.signature))) * PART.total


@kernel("void(int64, int64, int64)")
def _write(comm, entry, number):  # type: ignore[no-untyped-def]
    """Write payload or notice of the own line, and copy the blocks of edges to itself."""
    edges, table, signature = load64(comm + COMM.edges), load64(entry + ENTRY.table), load64(entry + ENTRY.signature)
    kind, nbytes = plain_kind(signature), bytes_of(signature)
    target = payload(comm, load64(comm + COMM.rank), number, min(nbytes, BIG))
    if nbytes > BIG:
        write_notice(edges, kind, table, 1, 0, target)
    elif nbytes > 0:
        write_blocks(comm, kind, table, target)
    keep_own(edges, kind, table, _received(comm, entry))


@kernel("int64(int64, int64, int64)")
def _collect(comm, entry, number):  # type: ignore[no-untyped-def]
    """Take the blocks one after another: how the next one is that is not here, `HERE` if all are.

    A rank whose neighbour gives another length goes on, so that nobody is woken before it can find the same.
    """
    edges, received, row, outcome = load64(comm + COMM.edges), _received(comm, entry), load64(entry + ENTRY.moved), HERE
    while row < load64(edges + EDGES.sources) and outcome == HERE:
        edge = source_edge(edges, row)
        outcome = _take(comm, entry, number, edge, received + load64(edge + EDGE.index) * PART.total)
        if outcome == -LENGTHS_DIFFER:
            store64(entry + ENTRY.differs, 1)
            outcome = HERE
        if outcome == HERE:
            row += 1
            store64(entry + ENTRY.part, 0)
    store64(entry + ENTRY.moved, row)
    return -LENGTHS_DIFFER if outcome == HERE and load64(entry + ENTRY.differs) != 0 else outcome


@kernel("int64(int64, int64, int64, int64, int64)")
def _take(comm, entry, number, edge, part):  # type: ignore[no-untyped-def]
    """Take the block of an edge, or the next piece of it."""
    other, expected, signature = load64(edge + EDGE.rank), load64(part + PART.nbytes), load64(entry + ENTRY.signature)
    kind = plain_kind(signature)
    if load_acquire(line_of(load64(comm + COMM.slot), other, number) + LINE.stamp) < number:
        return PENDING
    store64(comm + SCRATCH.past, load64(entry + ENTRY.past))
    code = arrive_with_any(comm, other, number, signature)
    if code != 0:
        return -code
    published, row, its = signed_bytes(comm, other, number), -1, 0
    source, is_notice = payload(comm, other, number, min(published, BIG)), published > BIG
    if published > 0:
        row = find_block(kind, source, NOTICE.total if is_notice else WORD, load64(comm + COMM.rank), load64(edge + EDGE.which))
    notice = source + WORD + row * NOTICE.total
    if row >= 0:
        its = load64(notice + NOTICE.nbytes) if is_notice else load64(source + WORD * (1 + row)) >> RANK_BITS
    code = check_length(comm, other, kind, 0, expected, its)
    if code != 0:
        return -code
    if not is_notice:
        copy_lines(load64(part + PART.address), block_at(source, row), expected)
        return HERE
    at = load64(entry + ENTRY.part)
    piece = min(PIECE, expected - at)
    if load_relaxed(load64(comm + COMM.slot) + SLOT.broken) != 0:  # memory of who gave up holds anything
        return -BROKEN
    note_look(comm)  # signals are not looked at here: a handler in Python must not run under the engine's lock
    code = pull(comm, other, load64(notice + NOTICE.address) + at, load64(part + PART.address) + at, piece)
    store64(entry + ENTRY.part, at + piece)
    if code != 0:
        return -code
    return HERE if at + piece == expected else PENDING


@kernel("int64(int64, int64, int64)")
def _await_readers(comm, entry, number):  # type: ignore[no-untyped-def]
    """Whether the ranks at the other ends of this rank's edges have copied, if it gave notice."""
    if bytes_of(load64(entry + ENTRY.signature)) <= BIG:
        return HERE
    edges, slot, size, row = (
        load64(comm + COMM.edges),
        load64(comm + COMM.slot),
        load64(comm + COMM.size),
        load64(entry + ENTRY.closed),
    )
    if row == 0:
        note_copied(comm, number)
    while row < load64(edges + EDGES.destinations):
        if load_acquire(done_of(slot, size, load64(destination(edges, row) + EDGE.rank))) < number:
            break
        row += 1
    store64(entry + ENTRY.closed, row)
    return HERE if row == load64(edges + EDGES.destinations) else PENDING

"""Neighbourhood collectives inside a node: each rank publishes what it sends along its edges, and reads what its neighbours published.

::

    rank r:  line r {number, signature with p bytes, payload}  -->  every rank that has an edge from r

             payload, up to ``BIG``:  edges | rank, bytes of each | block | block | ...      (allgather: the one block)
             notice, beyond:          edges | rank, bytes, address, run, step of each        blocks are copied from where they are

A rank finds its blocks by its own number: of several edges between two ranks the first one that is published meets the first one
of the receiver's order (:class:`~ncclx_mpi.collectives.neighborhood.Neighborhood`). What is in bulk the kernel copies once, straight
from memory to memory, also where the elements are regular runs with gaps at either end; what is not so regular is packed before, or
unpacked behind. A rank of whose memory others copy waits until they have.

The ranks of a communicator agree once whether they go this way: each can reach all others, and has few enough edges for a notice. If not,
all go by the plan (:mod:`.linear`). T = alpha + bytes sent and received * beta on lines, 2 alpha + bytes received * beta in bulk.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.cma_vector import check_length
from ncclx_mpi.collectives.cma import await_copied, is_shown, note_copied, note_look, pull, pull_runs
from ncclx_mpi.collectives.cma_tuning import DISAGREED, agreed_way, meet, word_of
from ncclx_mpi.collectives.neighborhood import EDGE, EDGES, NEIGHBOR_ALLGATHER, PART
from ncclx_mpi.collectives.ready import SLOW
from ncclx_mpi.collectives.shm_oneshot import (
    ERR_TRUNCATE,
    NO_MEMORY,
    arrive_with_any,
    end,
    enter,
    give_gil,
    pass_by,
    payload,
    publish,
    show,
    sign,
    signed_bytes,
    working_memory,
)
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import BROKEN, COMM, FAILED
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.memory import allocate, copy, copy_lines, make_stack, move, release
from numba_kernels.pylayouts import LAYOUT, pack_row, unpack_row
from transports.shm.cma import RUNS
from transports.shm.shared import PIPED
from transports.shm.slots import BIG

UNKNOWN, PLANNED, ON_LINES = range(3)
"""``EDGES.way``: the ranks have not agreed yet; by plans; as here."""
NOTICE = words("Notice", "rank nbytes address run step")
MOST_EDGES = (BIG - WORD) // NOTICE.total
RANK_BITS = 32
_RANK_MASK = (1 << RANK_BITS) - 1
_LEAST_RUN = 1024
"""Bytes of a run from which the kernel copies it where it is: shorter ones take less time to be packed."""
LENGTHS_DIFFER = FAILED + ERR_TRUNCATE
_two_runs = make_stack(2 * RUNS.total // WORD)


@kernel("int64(int64)")
def _padded(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + 7) & ~7


@kernel("int64(int64, int64)")
def destination(edges, row):  # type: ignore[no-untyped-def]
    return edges + EDGES.total + row * EDGE.total


@kernel("int64(int64, int64)")
def source_edge(edges, row):  # type: ignore[no-untyped-def]
    return destination(edges, load64(edges + EDGES.destinations) + row)


@kernel("int64(int64, int64)")
def _own_edge(edges, row):  # type: ignore[no-untyped-def]
    return source_edge(edges, load64(edges + EDGES.sources) + row)


@kernel("int64(int64, int64)")
def _published_blocks(edges, kind):  # type: ignore[no-untyped-def]
    """How many blocks this rank publishes: of an allgather all are the same one."""
    number = load64(edges + EDGES.destinations)
    return min(number, 1) if kind == NEIGHBOR_ALLGATHER else number


@kernel("int64(int64, int64, int64)")
def _sent_part(kind, sent, index):  # type: ignore[no-untyped-def]
    return sent if kind == NEIGHBOR_ALLGATHER else sent + index * PART.total


@kernel("int64(int64, int64)")
def _agree(comm, kind):  # type: ignore[no-untyped-def]
    """Agree with all ranks on the way, the first time: `PLANNED`, `ON_LINES`, or minus the code of a failure."""
    edges, signature = load64(comm + COMM.edges), sign(kind, 0, 0)
    agreed = agreed_way(comm, signature)
    if agreed < DISAGREED:
        return agreed - DISAGREED
    is_fit = agreed != PIPED and load64(edges + EDGES.destinations) <= MOST_EDGES
    number = meet(comm, signature, ON_LINES if is_fit else PLANNED)
    if number < 0:
        return number
    way = ON_LINES
    for other in range(load64(comm + COMM.size)):
        way = min(way, word_of(comm, other, number))
    end(comm, number, 0)
    store64(edges + EDGES.way, way)
    return way


@kernel("int64(int64, int64, int64, int64)")
def own_fits(edges, kind, sent, received):  # type: ignore[no-untyped-def]
    """Whether what this rank sends to itself is as long as what it expects there."""
    for row in range(load64(edges + EDGES.own)):
        edge = _own_edge(edges, row)
        part = _sent_part(kind, sent, load64(edge + EDGE.which))
        if load64(part + PART.nbytes) != load64(received + load64(edge + EDGE.index) * PART.total + PART.nbytes):
            return 0
    return 1


@kernel("void(int64, int64)")
def _pack(part, target):  # type: ignore[no-untyped-def]
    """Copy a block to packed bytes."""
    layout, nbytes, address = load64(part + PART.layout), load64(part + PART.nbytes), load64(part + PART.address)
    if layout == 0:
        copy(target, address, nbytes)
        return
    pack_row(layout, address, nbytes, target)


@kernel("void(int64, int64)")
def _unpack(part, source):  # type: ignore[no-untyped-def]
    """Copy packed bytes to where a block is."""
    layout, nbytes, address = load64(part + PART.layout), load64(part + PART.nbytes), load64(part + PART.address)
    if layout == 0:
        copy_lines(address, source, nbytes)
        return
    unpack_row(layout, source, nbytes, address)


@kernel("int64(int64, int64)")
def _find_runs(part, runs):  # type: ignore[no-untyped-def]
    """Write a block as equal runs of bytes at equal distances to `runs`: 1, or 0 if it has none, or they are short."""
    layout, nbytes, address = load64(part + PART.layout), load64(part + PART.nbytes), load64(part + PART.address)
    run, step = nbytes, 0
    if layout != 0 and nbytes > 0:
        nblocks, extent = load64(layout + LAYOUT.nblocks), load64(layout + LAYOUT.extent)
        run, step = load64(layout + LAYOUT.run), load64(layout + LAYOUT.step)
        if nblocks == 1:
            step = extent
        elif nbytes > load64(layout + LAYOUT.size) and extent != nblocks * step:
            return 0
        if run < _LEAST_RUN:
            return 0
        address += load64(load64(layout + LAYOUT.blocks))
    store64(runs + RUNS.address, address)
    store64(runs + RUNS.run, run)
    store64(runs + RUNS.step, step)
    return 1


@kernel("int64(int64, int64, int64, int64)")
def keep_own(edges, kind, sent, received):  # type: ignore[no-untyped-def]
    """Copy the blocks of edges to itself. 0 or the code of a failure."""
    for row in range(load64(edges + EDGES.own)):
        edge = _own_edge(edges, row)
        source, target = _sent_part(kind, sent, load64(edge + EDGE.which)), received + load64(edge + EDGE.index) * PART.total
        nbytes = load64(source + PART.nbytes)
        if load64(source + PART.layout) == 0 and load64(target + PART.layout) == 0:
            move(load64(target + PART.address), load64(source + PART.address), nbytes)
        elif nbytes > 0:
            packed = allocate(nbytes)
            if packed == 0:
                return NO_MEMORY
            _pack(source, packed)
            _unpack(target, packed)
            release(packed)
    return 0


@kernel("int64(int64, int64, int64)")
def line_bytes_of(edges, kind, sent):  # type: ignore[no-untyped-def]
    """Bytes of the payload of the own line, if it is to hold the blocks."""
    number = _published_blocks(edges, kind)
    total = WORD * (1 + number) if number > 0 else 0
    for row in range(number):
        total += _padded(load64(_sent_part(kind, sent, load64(destination(edges, row) + EDGE.index)) + PART.nbytes))
    return total


@kernel("void(int64, int64, int64, int64)")
def write_blocks(comm, kind, sent, target):  # type: ignore[no-untyped-def]
    """Write the payload of the own line."""
    edges = load64(comm + COMM.edges)
    number = _published_blocks(edges, kind)
    store64(target, number)
    place = target + WORD * (1 + number)
    for row in range(number):
        edge = destination(edges, row)
        part = _sent_part(kind, sent, load64(edge + EDGE.index))
        nbytes = load64(part + PART.nbytes)
        store64(target + WORD * (1 + row), load64(edge + EDGE.rank) | nbytes << RANK_BITS)
        if load64(part + PART.layout) == 0:
            show(comm, place, load64(part + PART.address), nbytes)
        else:
            _pack(part, place)
        place += _padded(nbytes)


@kernel("int64(int64, int64, int64, int64)")
def _packed_bytes(edges, kind, sent, is_kept):  # type: ignore[no-untyped-def]
    """Bytes of memory that a notice takes for blocks which cannot be copied from where they are."""
    total, runs = 0, _two_runs()
    for row in range(_published_blocks(edges, kind)):
        part = _sent_part(kind, sent, load64(destination(edges, row) + EDGE.index))
        if is_kept == 0 or _find_runs(part, runs) == 0:
            total += _padded(load64(part + PART.nbytes))
    return total


@kernel("void(int64, int64, int64, int64, int64, int64)")
def write_notice(edges, kind, sent, is_kept, packed, target):  # type: ignore[no-untyped-def]
    """Write where the blocks are; those that cannot be copied from there are packed first."""
    number = _published_blocks(edges, kind)
    store64(target, number)
    for row in range(number):
        edge, notice = destination(edges, row), target + WORD + row * NOTICE.total
        part = _sent_part(kind, sent, load64(edge + EDGE.index))
        nbytes = load64(part + PART.nbytes)
        if is_kept == 0 or _find_runs(part, notice + NOTICE.address) == 0:
            _pack(part, packed)
            store64(notice + NOTICE.address, packed)
            store64(notice + NOTICE.run, nbytes)
            store64(notice + NOTICE.step, 0)
            packed += _padded(nbytes)
        store64(notice + NOTICE.rank, load64(edge + EDGE.rank))
        store64(notice + NOTICE.nbytes, nbytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def find_block(kind, source, stride, rank, which):  # type: ignore[no-untyped-def]
    """Which of the blocks that are published at `source` is the one for `rank`, of several for it number `which`; -1 if there is none."""
    number, seen = load64(source), 0
    if kind == NEIGHBOR_ALLGATHER:
        return 0 if number > 0 else -1
    for row in range(number):
        if load64(source + WORD + row * stride) & _RANK_MASK == rank:
            if seen == which:
                return row
            seen += 1
    return -1


@kernel("int64(int64, int64)")
def block_at(source, row):  # type: ignore[no-untyped-def]
    """Where a block stands in the payload of a line."""
    place = source + WORD * (1 + load64(source))
    for before in range(row):
        place += _padded(load64(source + WORD * (1 + before)) >> RANK_BITS)
    return place


@kernel("int64(int64, int64, int64, int64, int64)")
def _pull(comm, other, notice, part, is_kept):  # type: ignore[no-untyped-def]
    """Copy a block out of the memory of rank `other`. 0, or why that was given up."""
    nbytes, runs = load64(part + PART.nbytes), _two_runs()
    source = notice + NOTICE.address
    if is_kept != 0 and _find_runs(part, runs) != 0:
        if load64(source + RUNS.run) >= nbytes and load64(runs + RUNS.run) >= nbytes:
            return pull(comm, other, load64(source + RUNS.address), load64(runs + RUNS.address), nbytes)
        return pull_runs(comm, other, source, runs, nbytes)
    packed = allocate(nbytes)
    if packed == 0:
        return NO_MEMORY
    store64(runs + RUNS.address, packed)
    store64(runs + RUNS.run, nbytes)
    code = pull_runs(comm, other, source, runs, nbytes)
    if code == 0:
        _unpack(part, packed)
    release(packed)
    return code


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _receive(comm, kind, number, edge, part, is_kept):  # type: ignore[no-untyped-def]
    """Wait for the rank at the other end of an edge, and copy its block. 0 or the code of a failure."""
    other, expected = load64(edge + EDGE.rank), load64(part + PART.nbytes)
    code = arrive_with_any(comm, other, number, sign(kind, 0, 0))
    if code != 0:
        return code
    published, row, its, is_notice = signed_bytes(comm, other, number), -1, 0, 0
    source = payload(comm, other, number, min(published, BIG))
    if published > 0:
        is_notice = 1 if published > BIG else 0
        row = find_block(kind, source, NOTICE.total if is_notice else WORD, load64(comm + COMM.rank), load64(edge + EDGE.which))
    notice = source + WORD + row * NOTICE.total
    if row >= 0:
        its = load64(notice + NOTICE.nbytes) if is_notice else load64(source + WORD * (1 + row)) >> RANK_BITS
    code = check_length(comm, other, kind, 0, expected, its)
    if code != 0 or expected == 0:
        return code
    if is_notice:
        return _pull(comm, other, notice, part, is_kept)
    _unpack(part, block_at(source, row))
    return 0


@kernel("int64(int64, int64, int64, int64)")
def _await_readers(comm, kind, edges, number):  # type: ignore[no-untyped-def]
    """Wait until those that copy from the memory of this rank have done it. 0 or the code of a failure."""
    code, count = 0, load64(edges + EDGES.destinations)
    note_copied(comm, number)
    for row in range(count):
        if code == 0:
            code = arrive_with_any(comm, load64(destination(edges, row) + EDGE.rank), number, sign(kind, 0, 0))
    for row in range(count):
        if code == 0:
            code = await_copied(comm, load64(destination(edges, row) + EDGE.rank), number)
    return code


@kernel("int64(int64, int64, int64)")
def is_kept_by_kernel(comm, part, count):  # type: ignore[no-untyped-def]
    """Whether the kernel copies from and to the memory of these blocks, which are of one buffer."""
    return is_shown(comm, load64(part + PART.address)) if count > 0 and load64(part + PART.nbytes) > 0 else 1


@kernel("int64(int64, int64, int64, int64)")
def _receive_all(comm, kind, number, received):  # type: ignore[no-untyped-def]
    """Receive along all edges. 0 or the code of a failure.

    A rank whose neighbour gives another length goes on, so that nobody who waits is woken before it has found the same; and who is
    woken looks at what has come.
    """
    edges, code = load64(comm + COMM.edges), 0
    is_kept = is_kept_by_kernel(comm, received, load64(edges + EDGES.indegree))
    for row in range(load64(edges + EDGES.sources)):
        if code in (0, BROKEN, LENGTHS_DIFFER):
            edge = source_edge(edges, row)
            found = _receive(comm, kind, number, edge, received + load64(edge + EDGE.index) * PART.total, is_kept)
            if code == 0 or found == LENGTHS_DIFFER:
                code = found
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def _on_lines(comm, kind, sent, received, line_bytes):  # type: ignore[no-untyped-def]
    """A whole collective in which the line of this rank holds its blocks. 0 or the code of a failure."""
    edges = load64(comm + COMM.edges)
    number = enter(comm, sign(kind, 0, line_bytes), line_bytes)
    if number < 0:
        return -number
    if line_bytes > 0:
        write_blocks(comm, kind, sent, payload(comm, load64(comm + COMM.rank), number, line_bytes))
    publish(comm, number)
    code = keep_own(edges, kind, sent, received)
    return end(comm, number, code if code != 0 else _receive_all(comm, kind, number, received))


@kernel("int64(int64, int64, int64, int64)")
def _in_bulk(comm, kind, sent, received):  # type: ignore[no-untyped-def]
    """A whole collective in which others copy from the memory of this rank. 0 or the code of a failure."""
    edges = load64(comm + COMM.edges)
    is_kept = is_kept_by_kernel(comm, sent, load64(edges + EDGES.outdegree))
    packed = working_memory(comm, WORD + _packed_bytes(edges, kind, sent, is_kept))
    if packed == 0:
        return NO_MEMORY
    number = enter(comm, sign(kind, 0, BIG + 1), BIG)
    code = -number
    if number > 0:
        write_notice(edges, kind, sent, is_kept, packed, payload(comm, load64(comm + COMM.rank), number, BIG))
        publish(comm, number)
        code = keep_own(edges, kind, sent, received)
        if code == 0:
            code = _receive_all(comm, kind, number, received)
        if code == 0:
            code = _await_readers(comm, kind, edges, number)
        code = end(comm, number, code)
    release(packed)
    return code


@kernel("int64(int64, int64, int64)")
def _longest(edges, received, line_bytes):  # type: ignore[no-untyped-def]
    """Bytes of the longest block that is received, or of all that are sent."""
    longest = line_bytes
    for row in range(load64(edges + EDGES.sources)):
        longest = max(longest, load64(received + load64(source_edge(edges, row) + EDGE.index) * PART.total + PART.nbytes))
    return longest


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def exchange(comm, kind, sent, received):  # type: ignore[no-untyped-def]
    """Carry out a neighbourhood collective; `sent` and `received` are rows of `PART`, one for each block.

    Returns 0, SLOW with nothing done if it goes by a plan, or the code of a failure.
    """
    edges = load64(comm + COMM.edges)
    if edges == 0 or load64(comm + COMM.slot) == 0 or own_fits(edges, kind, sent, received) == 0:
        return SLOW
    way = load64(edges + EDGES.way) if load64(comm + COMM.size) > 1 else ON_LINES
    if way == UNKNOWN:
        way = _agree(comm, kind)
    if way != ON_LINES:
        return SLOW if way == PLANNED else -way
    if load64(edges + EDGES.destinations) + load64(edges + EDGES.sources) == 0:
        code = pass_by(comm, sign(kind, 0, 0), 0, 0, 0)
        return code if code != 0 else keep_own(edges, kind, sent, received)
    line_bytes = line_bytes_of(edges, kind, sent)
    state = give_gil(_longest(edges, received, line_bytes))
    note_look(comm)
    code = _on_lines(comm, kind, sent, received, line_bytes) if line_bytes <= BIG else _in_bulk(comm, kind, sent, received)
    enter_gil(state)
    return code

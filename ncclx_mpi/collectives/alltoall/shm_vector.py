"""Alltoallv, gather(v) and scatter(v): on lines what is small, by direct copies or on split streams what is not.

Nobody but the two ends of a block knows its size, so each rank decides by what it sends in all, and says so: the signature of its
line holds the bytes that it publishes. Up to ``BIG`` they stand with the line; beyond that a notice stands there, which tells whether they
come by streams or directly (`cma_vector`). Of a gather, the root decides, and gives notice to those that send more than ``BIG``.

::

    rank r:  line r {number, signature with p bytes, payload}  -->  every rank that expects a block of r

             payload:  lengths of the blocks, 16 bits each | block 0 | block 1 | ...     (gatherv: the one block alone)
             notice:   way | address, bytes of block 0 | address, bytes of block 1 | ...

Ranks wait for those that they receive from, and where their memory is copied from or into, until that is done. T = alpha + bytes sent and
received * beta on lines; in bulk as in `shm_pipelined` and `cma_vector`, after the lines have said so. In place works: a rank publishes,
or streams, what it sends before it receives over it.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.cma_vector import (
    await_copies,
    check_length,
    notice_bytes,
    noticed_way,
    pull_block,
    push_block,
    write_notice,
)
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW, stream_rows
from ncclx_mpi.collectives.cma import is_shown, note_look
from ncclx_mpi.collectives.cma_tuning import ALLTOALLV, DISAGREED, agreed_way, choose_alone, is_piped, is_tried_alone, note_alone
from ncclx_mpi.collectives.shm_oneshot import (
    ALLGATHER,
    ALLTOALL,
    GATHER,
    NO_MEMORY,
    arrive_with_any,
    count_swap,
    end,
    enter,
    give_gil,
    look_at_placement,
    pass_by,
    payload,
    publish,
    show,
    sign,
    signed_bytes,
    working_memory,
)
from ncclx_mpi.collectives.shm_pipelined import land, note_bulk
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, copy_lines, release
from transports.shm.shared import DIRECT, PIPED
from transports.shm.slots import BIG

_INLINE = -1
"""A block that stands with the line, instead of PIPED or DIRECT."""
_LENGTH_BITS, _LENGTHS_A_WORD = 16, 4
assert BIG < 1 << _LENGTH_BITS


@kernel("int64(int64, int64)")
def _header_bytes(kind, size):  # type: ignore[no-untyped-def]
    """Bytes of the lengths before the blocks; of a gather or allgather the one block stands alone."""
    return 0 if kind in (GATHER, ALLGATHER) else (size + _LENGTHS_A_WORD - 1) // _LENGTHS_A_WORD * 8


@kernel("int64(int64, int64)")
def _length(header, index):  # type: ignore[no-untyped-def]
    shift = index % _LENGTHS_A_WORD * _LENGTH_BITS
    return (load64(header + index // _LENGTHS_A_WORD * 8) >> shift) & ((1 << _LENGTH_BITS) - 1)


@kernel("int64(int64, int64, int64)")
def _sum_of_others(comm, table, column):  # type: ignore[no-untyped-def]
    """Bytes of the blocks for, or of, all other ranks: `column` is ROW.send_bytes or ROW.recv_bytes."""
    rank, total = load64(comm + COMM.rank), 0
    for other in range(load64(comm + COMM.size)):
        if other != rank:
            total += load64(table + other * ROW.total + column)
    return total


@kernel("void(int64, int64, int64, int64)")
def write_payload(comm, kind, table, target):  # type: ignore[no-untyped-def]
    """Write the payload of the own line."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    header = _header_bytes(kind, size)
    for word in range(header // 8):
        store64(target + 8 * word, 0)
    place = target + header
    for other in range(size):
        row = table + other * ROW.total
        nbytes = load64(row + ROW.send_bytes)
        if other == rank or nbytes == 0:
            continue
        if header > 0:
            word = target + other // _LENGTHS_A_WORD * 8
            store64(word, load64(word) | nbytes << other % _LENGTHS_A_WORD * _LENGTH_BITS)
        show(comm, place, load64(row + ROW.send), nbytes)
        place += nbytes


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def receive_block(comm, kind, root, other, number, row):  # type: ignore[no-untyped-def]
    """Copy the block of rank `other` out of the payload of its line. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    published, expected = signed_bytes(comm, other, number), load64(row + ROW.recv_bytes)
    source, header = payload(comm, other, number, published), _header_bytes(kind, size)
    length, place = published, source
    if header > 0 and published > 0:
        length, place = _length(source, rank), source + header
        for before in range(rank):
            place += _length(source, before)
    code = check_length(comm, other, kind, root, expected, length)
    if code == 0:
        copy_lines(load64(row + ROW.recv), place, length)
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def _way_in(comm, kind, other, number, way):  # type: ignore[no-untyped-def]
    """How the block of rank `other`, which has arrived, comes: `_INLINE`, PIPED or DIRECT; `way` is what this rank chose itself."""
    if signed_bytes(comm, other, number) <= BIG:
        return _INLINE
    if kind == GATHER:
        return way
    return PIPED if is_piped(comm, kind) != 0 else noticed_way(comm, other, number)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _await_lines(comm, kind, root, number, table, way):  # type: ignore[no-untyped-def]
    """Wait for the lines of all ranks that a block is expected of: how many of them stream, or minus the code of a failure."""
    rank, streaming = load64(comm + COMM.rank), 0
    for other in range(load64(comm + COMM.size)):
        expected = load64(table + other * ROW.total + ROW.recv_bytes)
        if other != rank and expected > 0:
            code = arrive_with_any(comm, other, number, sign(kind, root, 0))
            if code == 0 and kind == GATHER:
                code = check_length(comm, other, kind, root, expected, signed_bytes(comm, other, number))
            if code != 0:
                return -code
            streaming += 1 if _way_in(comm, kind, other, number, way) == PIPED else 0
    return streaming


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _stream(comm, kind, root, number, table, is_streaming, way):  # type: ignore[no-untyped-def]
    """Move what goes by streams: the rows of `table` without those that go another way. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    note_bulk(comm)
    rows = working_memory(comm, size * ROW.total)
    if rows == 0:
        return NO_MEMORY
    copy(rows, table, size * ROW.total)
    for other in range(size):
        row = rows + other * ROW.total
        if is_streaming == 0 or other == rank:
            store64(row + ROW.send_bytes, 0)
        if other == rank or (load64(row + ROW.recv_bytes) > 0 and _way_in(comm, kind, other, number, way) != PIPED):
            store64(row + ROW.recv_bytes, 0)
    code = stream_rows(comm, kind, root, rows)
    release(rows)
    return code


@kernel("void(int64, int64)")
def _keep_own(row, total):  # type: ignore[no-untyped-def]
    """Copy the rank's own block, one of blocks of altogether `total` bytes."""
    nbytes = load64(row + ROW.recv_bytes)
    if nbytes > 0 and load64(row + ROW.recv) != load64(row + ROW.send):
        land(load64(row + ROW.recv), load64(row + ROW.send), nbytes, max(nbytes, total))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _receive_all(comm, kind, root, number, table, way):  # type: ignore[no-untyped-def]
    """Copy out all blocks that do not stream, the next rank's first. 0 or the code of a failure."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    for step in range(1, size):
        other = (rank + step) % size
        row = table + other * ROW.total
        if code == 0 and load64(row + ROW.recv_bytes) > 0:
            its_way = _way_in(comm, kind, other, number, way)
            if its_way == _INLINE:
                code = receive_block(comm, kind, root, other, number, row)
            elif its_way == DIRECT and kind != GATHER:
                code = pull_block(comm, kind, root, other, number, row)
    return code


@kernel("int64(int64, int64, int64, int64)")
def bytes_to_sign(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Bytes that this rank signs: those that it sends; the root of a gather, if one of them is in bulk, those that it receives."""
    outgoing = _sum_of_others(comm, table, ROW.send_bytes)
    if kind != GATHER or load64(comm + COMM.rank) != root:
        return outgoing + _header_bytes(kind, load64(comm + COMM.size)) if outgoing > 0 else 0
    longest = 0
    for other in range(load64(comm + COMM.size)):
        if other != root:
            longest = max(longest, load64(table + other * ROW.total + ROW.recv_bytes))
    return _sum_of_others(comm, table, ROW.recv_bytes) if longest > BIG else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _is_choosing(comm, kind, root, table, published):  # type: ignore[no-untyped-def]
    """Whether this rank has bulk data to give notice of, in memory that the kernel copies, and may choose the way."""
    rank = load64(comm + COMM.rank)
    if published <= BIG or is_piped(comm, kind) != 0 or (kind == GATHER and rank != root):
        return 0
    for other in range(load64(comm + COMM.size)):
        row = table + other * ROW.total
        column = ROW.recv if kind == GATHER else ROW.send
        if other != rank and load64(row + column + 8) > 0:
            is_in_place = kind == ALLTOALL and load64(row + ROW.send) == load64(row + ROW.recv)
            return 0 if is_in_place else is_shown(comm, load64(row + column))
    return 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _send_to_root(comm, root, number, table, published):  # type: ignore[no-untyped-def]
    """Send the one block of a gather, as the root wants it, if the line does not carry it. 0 or the code of a failure."""
    if published <= BIG:
        return 0
    code = arrive_with_any(comm, root, number, sign(GATHER, root, 0))
    if code != 0:
        return code
    if signed_bytes(comm, root, number) > BIG and is_piped(comm, GATHER) == 0 and noticed_way(comm, root, number) == DIRECT:
        return push_block(comm, GATHER, root, root, number, table + root * ROW.total)
    return _stream(comm, GATHER, root, number, table, 1, PIPED)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _move_blocks(comm, kind, root, number, table, published, way, is_awaiting):  # type: ignore[no-untyped-def]
    """Send and receive all blocks but the own one; the line is published. 0 or the code of a failure.

    `is_awaiting`: do not return before all ranks have what this one sends.
    """
    if kind == GATHER and load64(comm + COMM.rank) != root:
        return _send_to_root(comm, root, number, table, published)
    streaming = _await_lines(comm, kind, root, number, table, way)
    code, is_streaming = -streaming if streaming < 0 else 0, 1 if published > BIG and way == PIPED else 0
    if code == 0 and streaming + is_streaming > 0:
        code = _stream(comm, kind, root, number, table, is_streaming, way)
    if code == 0:
        code = _receive_all(comm, kind, root, number, table, way)
    if code == 0 and is_awaiting != 0:
        code = await_copies(comm, kind, sign(kind, root, 0), number, table)
    return code


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def exchange(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Carry out the table of `ROW`, one for each rank. 0 or the code of a failure."""
    rank, agreed, began = load64(comm + COMM.rank), agreed_way(comm, sign(kind, root, 0)), ticks()
    if agreed < DISAGREED:
        return DISAGREED - agreed
    own = table + rank * ROW.total
    total = _sum_of_others(comm, table, ROW.send_bytes) + _sum_of_others(comm, table, ROW.recv_bytes)
    state = give_gil(max(total, load64(own + ROW.recv_bytes)))
    # Ranks may give and need different things here, so the count is of calls; who has nothing to do with it stays if stores are compared.
    is_comparing = count_swap(comm, 1) if kind in (ALLTOALL, ALLGATHER) and load64(comm + COMM.size) > 1 else 0
    if total == 0 and is_comparing == 0:
        _keep_own(own, 0)
        enter_gil(state)
        return pass_by(comm, sign(kind, root, 0), 0, 0, 0)
    published, way, chosen = bytes_to_sign(comm, kind, root, table), PIPED, PIPED
    sort, is_trial = ALLTOALLV if kind == ALLTOALL else kind, 0
    if _is_choosing(comm, kind, root, table, published) != 0:
        chosen, is_trial = choose_alone(comm, agreed, sort, published), is_tried_alone(comm, sort, published)
        way = DIRECT if chosen == DIRECT else PIPED
    number = _publish(comm, kind, root, table, published, way)
    if number > 0 and is_comparing != 0:
        number = look_at_placement(comm, number, sign(kind, root, 0))
    code = -number
    if number > 0:
        note_look(comm)
        _keep_own(own, total)
        code = end(comm, number, _move_blocks(comm, kind, root, number, table, published, way, is_trial | way))
    note_alone(comm, sort, published, chosen, ticks() - began if is_trial != 0 else 0)
    enter_gil(state)
    return code


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _publish(comm, kind, root, table, published, way):  # type: ignore[no-untyped-def]
    """Publish the line, with the blocks, or with a notice where ranks may copy directly. Its number, or minus the code of a failure."""
    is_notice = published > BIG and is_piped(comm, kind) == 0
    given = published if published <= BIG else notice_bytes(comm) if is_notice else 0
    number = enter(comm, sign(kind, root, published), given)
    if number < 0:
        return number
    target = payload(comm, load64(comm + COMM.rank), number, given)
    if is_notice:
        write_notice(comm, ROW.recv if kind == GATHER else ROW.send, way, table, target)
    elif given > 0:
        write_payload(comm, kind, table, target)
    publish(comm, number)
    return number

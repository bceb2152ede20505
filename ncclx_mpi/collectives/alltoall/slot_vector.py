"""Alltoallv, gatherv and scatterv: on lines what is small, on split streams what is not.

Nobody but the two ends of a block knows its size, so each rank decides by what it sends in all, and says so: the signature of its
line holds the bytes that it publishes. Up to ``BIG`` they stand with the line, beyond that they come by streams.

::

    rank r:  line r {number, signature with p bytes, payload}  -->  every rank that expects a block of r

             payload:  lengths of the blocks, 16 bits each | block 0 | block 1 | ...     (gatherv: the one block alone)

Ranks wait for those that they receive from, and for nobody else. T = alpha + bytes sent and received * beta on lines; on streams
as in `slot_large`, after the lines have said so. In place works: a rank publishes, or streams, what it sends before it receives over it.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.slot_large import ROW, stream_rows
from ncclx_mpi.collectives.lines import (
    ERR_TRUNCATE,
    GATHER,
    SCRATCH,
    arrive_with_any,
    end,
    enter,
    give_gil,
    pass_by,
    payload,
    publish,
    sign,
    signed_bytes,
)
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM, FAILED
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, copy, move, release
from transports.shm.slots import BIG

_LENGTH_BITS, _LENGTHS_A_WORD = 16, 4
assert BIG < 1 << _LENGTH_BITS


@kernel("int64(int64, int64)")
def _header_bytes(kind, size):  # type: ignore[no-untyped-def]
    return 0 if kind == GATHER else (size + _LENGTHS_A_WORD - 1) // _LENGTHS_A_WORD * 8


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
def _write(comm, kind, table, target):  # type: ignore[no-untyped-def]
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
        copy(place, load64(row + ROW.send), nbytes)
        place += nbytes


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _receive(comm, kind, root, other, number, row):  # type: ignore[no-untyped-def]
    """Copy the block of rank `other` out of the payload of its line. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    published, expected = signed_bytes(comm, other, number), load64(row + ROW.recv_bytes)
    source, header = payload(comm, other, number, published), _header_bytes(kind, size)
    length, place = published, source
    if header > 0 and published > 0:
        length, place = _length(source, rank), source + header
        for before in range(rank):
            place += _length(source, before)
    if length != expected:
        store64(comm + SCRATCH.offender, other)
        store64(comm + SCRATCH.own_signature, sign(kind, root, expected))
        store64(comm + SCRATCH.its_signature, sign(kind, root, length))
        return FAILED + ERR_TRUNCATE
    copy(load64(row + ROW.recv), place, length)
    return 0


@kernel("int64(int64, int64, int64, int64)")
def _await_lines(comm, signature, number, table):  # type: ignore[no-untyped-def]
    """Wait for the lines of all ranks that a block is expected of: how many of them stream, or minus the code of a failure."""
    rank, streaming = load64(comm + COMM.rank), 0
    for other in range(load64(comm + COMM.size)):
        if other != rank and load64(table + other * ROW.total + ROW.recv_bytes) > 0:
            code = arrive_with_any(comm, other, number, signature)
            if code != 0:
                return -code
            streaming += 1 if signed_bytes(comm, other, number) > BIG else 0
    return streaming


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _stream(comm, kind, root, number, table, is_streaming):  # type: ignore[no-untyped-def]
    """Move what goes by streams: the rows of `table` without those that lines carry. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    rows = allocate(size * ROW.total)
    copy(rows, table, size * ROW.total)
    for other in range(size):
        row = rows + other * ROW.total
        if is_streaming == 0 or other == rank:
            store64(row + ROW.send_bytes, 0)
        if other == rank or (load64(row + ROW.recv_bytes) > 0 and signed_bytes(comm, other, number) <= BIG):
            store64(row + ROW.recv_bytes, 0)
    code = stream_rows(comm, kind, root, rows)
    release(rows)
    return code


@kernel("void(int64)")
def _keep_own(row):  # type: ignore[no-untyped-def]
    """Copy the rank's own block."""
    nbytes = load64(row + ROW.recv_bytes)
    if nbytes > 0 and load64(row + ROW.recv) != load64(row + ROW.send):
        state = give_gil(nbytes)
        move(load64(row + ROW.recv), load64(row + ROW.send), nbytes)
        enter_gil(state)


@kernel("int64(int64, int64, int64, int64, int64)")
def _receive_all(comm, kind, root, number, table):  # type: ignore[no-untyped-def]
    """Copy out all blocks that lines carry. 0 or the code of a failure."""
    rank = load64(comm + COMM.rank)
    for other in range(load64(comm + COMM.size)):
        row = table + other * ROW.total
        if other != rank and load64(row + ROW.recv_bytes) > 0 and signed_bytes(comm, other, number) <= BIG:
            code = _receive(comm, kind, root, other, number, row)
            if code != 0:
                return code
    return 0


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def exchange(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Carry out the table of `ROW`, one for each rank. 0 or the code of a failure."""
    rank = load64(comm + COMM.rank)
    outgoing, incoming = _sum_of_others(comm, table, ROW.send_bytes), _sum_of_others(comm, table, ROW.recv_bytes)
    _keep_own(table + rank * ROW.total)
    if outgoing + incoming == 0:
        return pass_by(comm, sign(kind, root, 0), 0, 0, 0)
    published = outgoing + _header_bytes(kind, load64(comm + COMM.size)) if outgoing > 0 else 0
    signature = sign(kind, root, published)
    number = enter(comm, signature, published if published <= BIG else 0)
    if number < 0:
        return -number
    if 0 < published <= BIG:
        _write(comm, kind, table, payload(comm, rank, number, published))
    publish(comm, number)
    streaming = _await_lines(comm, signature, number, table)
    code = -streaming if streaming < 0 else 0
    if streaming > 0 or (code == 0 and published > BIG):
        code = _stream(comm, kind, root, number, table, 1 if published > BIG else 0)
    if code == 0:
        code = _receive_all(comm, kind, root, number, table)
    return end(comm, number, code)

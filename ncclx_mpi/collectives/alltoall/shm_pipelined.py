"""Alltoall in bulk: by direct copies, or on split streams, where every rank writes a stream to each rank it sends to.

::

    round t:  rank r  -- chunk t of block d -->  stream r>d      for d = r + 1, r + 2, ...
              rank r  <-- chunk t - 1 ---------  stream s>r      for s = r - 1, r - 2, ...

Chunks of a pair depend on the bytes of that pair only, which both sides know, so any counts will do (`shm_vector`). In place works
because chunk t of a block is sent a round before chunk t is received over it.

T = alpha + 2 m * beta / min(cores, n) a rank: each byte is copied in by its sender and out by its receiver, at the same time.
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall import cma
from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.shm_oneshot import ALLTOALL, NO_MEMORY, end, sign, working_memory
from ncclx_mpi.collectives.shm_pipelined import (
    LEAST_ADDRESS,
    SHORT_ROUNDS,
    begin_streams,
    chunk_bytes,
    chunks_of,
    drop_split,
    land,
    put_split,
    take_split,
)
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import release
from transports.shm.shared import DIRECT

ROW = words("Row", "send send_bytes recv recv_bytes")
"""What a rank sends to, and receives from, one peer."""


@kernel("int64(int64, int64)")
def _rounds(comm, table):  # type: ignore[no-untyped-def]
    rounds = 0
    for other in range(load64(comm + COMM.size)):
        if other != load64(comm + COMM.rank):
            row = table + other * ROW.total
            for nbytes in (load64(row + ROW.send_bytes), load64(row + ROW.recv_bytes)):
                rounds = max(rounds, chunks_of(nbytes, chunk_bytes(comm, nbytes)))
    return rounds


@kernel("int64(int64, int64, int64, int64, int64)")
def _send_round(comm, kind, root, table, turn):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for step in range(1, size):
        other = (rank + step) % size
        row = table + other * ROW.total
        nbytes = load64(row + ROW.send_bytes)
        chunk = chunk_bytes(comm, nbytes)
        offset = turn * chunk
        if offset < nbytes:
            length = min(chunk, nbytes - offset)
            code = put_split(comm, other, load64(row + ROW.send) + offset, length, sign(kind, root, nbytes))
            if code != 0:
                return code
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _receive_round(comm, kind, root, table, turn, total):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for step in range(1, size):
        other = (rank + size - step) % size
        row = table + other * ROW.total
        nbytes = load64(row + ROW.recv_bytes)
        chunk = chunk_bytes(comm, nbytes)
        offset = turn * chunk
        if offset < nbytes:
            source = take_split(comm, other, sign(kind, root, nbytes))
            if source < LEAST_ADDRESS:
                return source
            land(load64(row + ROW.recv) + offset, source, min(chunk, nbytes - offset), total)
            drop_split(comm, other)
    return 0


@kernel("int64(int64, int64, int64, int64)")
def stream_rows(comm, kind, root, table):  # type: ignore[no-untyped-def]
    """Move the blocks of a table of `ROW` between the ranks, and the own one. 0 or the code of a failure."""
    rank = load64(comm + COMM.rank)
    code, rounds = 0, _rounds(comm, table)
    state = leave_gil() if rounds > SHORT_ROUNDS else 0
    own = table + rank * ROW.total
    own_bytes = load64(own + ROW.recv_bytes)
    for turn in range(rounds + 1):
        if turn < rounds:
            code = _send_round(comm, kind, root, table, turn)
        if turn == 0 and own_bytes > 0 and load64(own + ROW.recv) != load64(own + ROW.send):
            land(load64(own + ROW.recv), load64(own + ROW.send), own_bytes, own_bytes)
        if turn > 0 and code == 0:
            code = _receive_round(comm, kind, root, table, turn - 1, own_bytes)
        if code != 0:
            break
    enter_gil(state)
    return code


@kernel("void(int64, int64, int64, int64, int64)")
def fill_row(row, send, send_bytes, recv, recv_bytes):  # type: ignore[no-untyped-def]
    """Write one row of a table."""
    store64(row + ROW.send, send)
    store64(row + ROW.send_bytes, send_bytes)
    store64(row + ROW.recv, recv)
    store64(row + ROW.recv_bytes, recv_bytes)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def alltoall(comm, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """`nbytes` for each pair, by direct copies where that is faster; `send` == `recv` means in place."""
    signature = sign(ALLTOALL, 0, nbytes)
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began = ticks()
    code = cma.alltoall(comm, signature, send, recv, nbytes) if way == DIRECT else UNREACHED
    if code == UNREACHED:
        code = _stream(comm, send, recv, nbytes)
    return note_way(comm, signature, nbytes, way, began, code)


@kernel("int64(int64, int64, int64, int64)")
def _stream(comm, send, recv, nbytes):  # type: ignore[no-untyped-def]
    number = begin_streams(comm, sign(ALLTOALL, 0, nbytes))
    if number < 0:
        return -number
    size = load64(comm + COMM.size)
    table = working_memory(comm, size * ROW.total)
    if table == 0:
        return NO_MEMORY
    for other in range(size):
        fill_row(table + other * ROW.total, send + other * nbytes, nbytes, recv + other * nbytes, nbytes)
    code = stream_rows(comm, ALLTOALL, 0, table)
    release(table)
    return end(comm, number, code)

"""Allgather(v) in bulk: by direct copies, or on shared streams, where each rank writes its block once and all others read it from there.

::

    round t:  rank r  -- chunk t of its block ------->  shared ring r
              rank r  <-- chunk t - 1 of block s -----  shared ring s      for s = r - 1, r - 2, ...

A bcast is an allgatherv in which only the root has a block. In place is an own block that stands in the result already.
T = alpha + n * m * beta a rank: m bytes written, (n - 1) * m read.
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather import cma
from ncclx_mpi.collectives.allgather.cma import BLOCK
from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, NO_MEMORY, end, sign, working_memory
from ncclx_mpi.collectives.shm_pipelined import (
    LEAST_ADDRESS,
    SHORT_ROUNDS,
    begin_streams,
    chunks_of,
    drop_shared,
    land,
    piece_of,
    put_shared,
    take_shared,
)
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import release
from transports.shm.shared import DIRECT


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def spread(comm, send, table):  # type: ignore[no-untyped-def]
    """Carry out the table of `BLOCK`, one for each rank; the own block is at `send`. All ranks give the same sizes."""
    size, total = load64(comm + COMM.size), 0
    for other in range(size):
        total += load64(table + other * BLOCK.total + BLOCK.nbytes)
    signature = sign(ALLGATHER, 0, total)
    way = choose_way(comm, signature, total // size)
    if way < 0:
        return -way
    began = ticks()
    code = cma.allgather(comm, signature, send, table, total) if way == DIRECT else UNREACHED
    if code == UNREACHED:
        code = stream_blocks(comm, ALLGATHER, 0, send, table)
    return note_way(comm, signature, total // size, way, began, code)


@kernel("int64(int64, int64, int64, int64, int64)")
def stream_blocks(comm, kind, root, send, table):  # type: ignore[no-untyped-def]
    """Carry out the table of `BLOCK` on shared streams, for an allgather or a bcast. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    longest, total = 0, 0
    for other in range(size):
        nbytes = load64(table + other * BLOCK.total + BLOCK.nbytes)
        longest, total = max(longest, nbytes), total + nbytes
    number = begin_streams(comm, sign(kind, root, total))
    if number < 0:
        return -number
    own = table + rank * BLOCK.total
    own_bytes, own_place = load64(own + BLOCK.nbytes), load64(own + BLOCK.recv)
    chunk = piece_of(longest)
    code, rounds = 0, chunks_of(longest, chunk)
    state = leave_gil() if rounds > SHORT_ROUNDS else 0
    for turn in range(rounds + 1):
        offset = turn * chunk
        if offset < own_bytes:
            code = put_shared(comm, send + offset, min(chunk, own_bytes - offset), sign(kind, root, own_bytes))
        if turn == 0 and own_bytes > 0 and own_place != send:
            land(own_place, send, own_bytes, total)
        if turn > 0 and code == 0:
            code = _receive_round(comm, kind, root, table, chunk, turn - 1, total)
        if code != 0:
            break
    enter_gil(state)
    return end(comm, number, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _receive_round(comm, kind, root, table, chunk, turn, total):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for step in range(1, size):
        other = (rank + size - step) % size
        row = table + other * BLOCK.total
        nbytes, offset = load64(row + BLOCK.nbytes), turn * chunk
        if offset < nbytes:
            source = take_shared(comm, other, sign(kind, root, nbytes))
            if source < LEAST_ADDRESS:
                return source
            land(load64(row + BLOCK.recv) + offset, source, min(chunk, nbytes - offset), total)
            drop_shared(comm, other)
    return 0


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def allgather(comm, send, nbytes, recv):  # type: ignore[no-untyped-def]
    """`nbytes` of each rank; `send` = 0 means in place."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    table = working_memory(comm, size * BLOCK.total)
    if table == 0:
        return NO_MEMORY
    for other in range(size):
        store64(table + other * BLOCK.total + BLOCK.recv, recv + other * nbytes)
        store64(table + other * BLOCK.total + BLOCK.nbytes, nbytes)
    source = recv + rank * nbytes if send == 0 else send
    code = spread(comm, source, table)
    release(table)
    return code

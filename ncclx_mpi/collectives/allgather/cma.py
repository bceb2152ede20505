"""Allgather(v) by direct copies: every rank pushes its block into the buffers of all others.

::

    rank r:  piece p of its block  -->  own result, result of rank r + 1, ...     for p = 0, 1, ...; every other time from the last on

A block of one piece is copied to the own result while the others come. T = 2 alpha + n * m * beta a rank, one copy a byte; all but the
first copy of a piece read it from the cache.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import (
    PIECE,
    UNREACHED,
    announce,
    await_opened,
    back_and_forth,
    close_direct,
    is_shown,
    opened,
    push,
)
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, working_memory
from ncclx_mpi.collectives.shm_pipelined import chunks_of, land
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import release

BLOCK = words("Block", "recv nbytes")
"""Where the block of one rank goes, and its size."""


@kernel("int64(int64, int64, int64, int64, int64)")
def allgather(comm, signature, send, table, total):  # type: ignore[no-untyped-def]
    """Carry out the table of `BLOCK`; the own block is at `send`. 0, UNREACHED, or the code of a failure."""
    size, filled = load64(comm + COMM.size), 0
    places = working_memory(comm, 8 * (size + 1))
    if places == 0:
        return NO_MEMORY
    for other in range(size):
        row = table + other * BLOCK.total
        store64(places + 8 * (other + 1), load64(row + BLOCK.recv))
        if load64(row + BLOCK.nbytes) > 0:
            filled = load64(row + BLOCK.recv)
    store64(places, is_shown(comm, filled))
    number = announce(comm, signature, places, 8 * (size + 1))
    release(places)
    own = table + load64(comm + COMM.rank) * BLOCK.total
    if number > 0 and load64(own + BLOCK.nbytes) <= PIECE:
        _keep_piece(own, send, 0, total)
    if number > 0:
        number = await_opened(comm, signature, number, size + 1)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    return close_direct(comm, number, _push_block(comm, number, send, own, total))


@kernel("void(int64, int64, int64, int64)")
def _keep_piece(own, send, offset, total):  # type: ignore[no-untyped-def]
    """Copy a piece of the own block to the own result, whose row of the table is `own`."""
    target = load64(own + BLOCK.recv)
    if target != send:
        land(target + offset, send + offset, min(PIECE, load64(own + BLOCK.nbytes) - offset), total)


@kernel("int64(int64, int64, int64, int64, int64)")
def _push_block(comm, number, send, own, total):  # type: ignore[no-untyped-def]
    """Copy the own block to everyone's result. 0, or why that was given up."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    nbytes = load64(own + BLOCK.nbytes)
    pieces = chunks_of(nbytes, PIECE)
    for index in range(pieces):
        offset = back_and_forth(number, index, pieces) * PIECE
        piece = min(PIECE, nbytes - offset)
        if pieces > 1:
            _keep_piece(own, send, offset, total)
        for step in range(1, size):
            other = (rank + step) % size
            target = opened(comm, other, number, size + 1, 1 + rank) + offset
            if code == 0:
                code = push(comm, other, send + offset, target, piece)
    return code

"""Alltoall by direct copies: every rank pushes each block into the buffer of the rank that it is for.

::

    rank r:  send block d  -->  recv block r of rank d        for d = r, r + 1, ...; every other time the other way round

The own block is copied while the others come if it is small, else in its turn. T = 2 alpha + n * m * beta a rank, one copy a byte. In
place sends from a copy.
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
    show,
)
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.collectives.shm_pipelined import chunks_of, land
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, copy, release

_WORDS = 2


@kernel("int64(int64, int64, int64, int64, int64)")
def alltoall(comm, signature, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """`nbytes` for each pair; `send` == `recv` means in place. 0, UNREACHED, or the code of a failure."""
    size = load64(comm + COMM.size)
    if send != recv:
        return _push_blocks(comm, signature, send, recv, nbytes)
    source = allocate(size * nbytes)
    if source != 0:
        copy(source, send, size * nbytes)
    code = _push_blocks(comm, signature, source, recv, nbytes)
    release(source)
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def _push_blocks(comm, signature, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """Push from `send`; with 0, for want of memory to send from, all ranks are told that this one cannot."""
    own, shown = load64(comm + COMM.rank) * nbytes, is_shown(comm, recv) if send != 0 else 0
    show(comm + WAYS.message, shown, recv, 0)
    number = announce(comm, signature, comm + WAYS.message, 8 * _WORDS)
    if number > 0 and shown != 0 and nbytes <= PIECE:
        land(recv + own, send + own, nbytes, load64(comm + COMM.size) * nbytes)
    if number > 0:
        number = await_opened(comm, signature, number, _WORDS)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    return close_direct(comm, number, _push_pieces(comm, number, send, recv + own, nbytes))


@kernel("int64(int64, int64, int64, int64, int64)")
def _push_pieces(comm, number, send, own, nbytes):  # type: ignore[no-untyped-def]
    """Copy all blocks, the own one to `own` unless that is done. 0, or why that was given up."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    pieces, first = chunks_of(nbytes, PIECE), 1 if nbytes <= PIECE else 0
    count = (size - first) * pieces
    for index in range(count):
        piece = back_and_forth(number, index, count)
        other, offset = (rank + first + piece // pieces) % size, piece % pieces * PIECE
        source, length = send + other * nbytes + offset, min(PIECE, nbytes - offset)
        if other == rank:
            land(own + offset, source, length, size * nbytes)
        elif code == 0:
            target = opened(comm, other, number, _WORDS, 1) + rank * nbytes + offset
            code = push(comm, other, source, target, length)
    return code

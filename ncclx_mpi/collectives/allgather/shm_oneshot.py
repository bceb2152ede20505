"""Allgather(v) on lines: everyone publishes its block, everyone reads all.

T = alpha + (n - 1) * m * beta.
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather.cma import BLOCK
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, SCRATCH, arrive, begin, end, pass_by, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy_lines, move


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def allgather(comm, send, nbytes, recv):  # type: ignore[no-untyped-def]
    """`nbytes` at most ``BIG``; `send` = 0 means in place."""
    signature = sign(ALLGATHER, 0, nbytes)
    rank = load64(comm + COMM.rank)
    own = recv + rank * nbytes
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, own, send, nbytes)
    number = begin(comm, signature, own if send == 0 else send, nbytes)
    if number < 0:
        return -number
    if send != 0:
        move(own, send, nbytes)
    for other in range(load64(comm + COMM.size)):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return end(comm, number, code)
            copy_lines(recv + other * nbytes, payload(comm, other, number, nbytes), nbytes)
    store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, 0)


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def allgatherv(comm, send, table):  # type: ignore[no-untyped-def]
    """Blocks of a table of `BLOCK`, one for each rank, of at most ``BIG`` bytes; the own one is at `send`. All give the same sizes."""
    rank, size, total = load64(comm + COMM.rank), load64(comm + COMM.size), 0
    for other in range(size):
        total += load64(table + other * BLOCK.total + BLOCK.nbytes)
    own = table + rank * BLOCK.total
    target, nbytes, signature = load64(own + BLOCK.recv), load64(own + BLOCK.nbytes), sign(ALLGATHER, 0, total)
    if total == 0 or size == 1:
        return pass_by(comm, signature, target, send, nbytes)
    number = begin(comm, signature, send, nbytes)
    if number < 0:
        return -number
    if target != send:
        move(target, send, nbytes)
    for other in range(size):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return end(comm, number, code)
            block = table + other * BLOCK.total
            nbytes = load64(block + BLOCK.nbytes)
            copy_lines(load64(block + BLOCK.recv), payload(comm, other, number, nbytes), nbytes)
    store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, 0)

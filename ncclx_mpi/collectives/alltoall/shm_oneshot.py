"""Alltoall on lines: everyone publishes all its blocks, everyone reads its own from each.

T = alpha + n * m * beta for the publishing, (n - 1) * m * beta for the reading.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import ALLTOALL, SCRATCH, arrive, begin, end, pass_by, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy_lines, move


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def alltoall(comm, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """`nbytes` times the number of ranks at most ``BIG``; `send` == `recv` means in place."""
    signature = sign(ALLTOALL, 0, nbytes)
    rank, size = load64(comm + COMM.rank), load64(comm + COMM.size)
    if nbytes == 0 or size == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    number = begin(comm, signature, send, nbytes * size)
    if number < 0:
        return -number
    if send != recv:
        move(recv + rank * nbytes, send + rank * nbytes, nbytes)
    for other in range(size):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return end(comm, number, code)
            block = payload(comm, other, number, nbytes * size) + rank * nbytes
            copy_lines(recv + other * nbytes, block, nbytes)
    store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, 0)

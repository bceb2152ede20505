"""Gather on lines: everyone publishes its block and goes on, the root reads them.

T = alpha + (n - 1) * m * beta at the root, nothing to wait for elsewhere.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import GATHER, arrive, begin, end, pass_by, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy_lines, move


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def gather(comm, send, nbytes, recv, root):  # type: ignore[no-untyped-def]
    """`nbytes` at most ``BIG``; `send` = 0 at the root means in place."""
    signature = sign(GATHER, root, nbytes)
    rank = load64(comm + COMM.rank)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    number = begin(comm, signature, send, 0 if rank == root else nbytes)
    if number < 0:
        return -number
    if rank != root:
        return end(comm, number, 0)
    if send != 0:
        move(recv + rank * nbytes, send, nbytes)
    for other in range(load64(comm + COMM.size)):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return end(comm, number, code)
            copy_lines(recv + other * nbytes, payload(comm, other, number, nbytes), nbytes)
    return end(comm, number, 0)

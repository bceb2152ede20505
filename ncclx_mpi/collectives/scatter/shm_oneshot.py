"""Scatter on lines: the root publishes all blocks and runs ahead, everyone else reads its own.

T = alpha + n * m * beta.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import SCATTER, arrive, begin, end, pass_by, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy_lines, move


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def scatter(comm, send, recv, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` times the number of ranks at most ``BIG``; `recv` = 0 at the root means in place."""
    signature = sign(SCATTER, root, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    rank, published = load64(comm + COMM.rank), nbytes * load64(comm + COMM.size)
    number = begin(comm, signature, send, published if rank == root else 0)
    if number < 0:
        return -number
    if rank == root:
        if recv != 0:
            move(recv, send + rank * nbytes, nbytes)
        return end(comm, number, 0)
    code = arrive(comm, root, number, signature)
    if code == 0:
        copy_lines(recv, payload(comm, root, number, published) + rank * nbytes, nbytes)
    return end(comm, number, code)

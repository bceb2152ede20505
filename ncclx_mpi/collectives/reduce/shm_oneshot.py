"""Reduce on lines: everyone publishes its elements and goes on, the root reduces them in rank order.

T = alpha + (n - 1) * m * (beta + gamma) at the root, nothing to wait for elsewhere.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import REDUCE, begin, end, pass_by, reduce_upto, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def reduce(comm, send, recv, count, itemsize, fn, root):  # type: ignore[no-untyped-def]
    """`count` * `itemsize` at most ``BIG``; `send` == `recv` at the root means in place."""
    nbytes = count * itemsize
    signature = sign(REDUCE, root, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    number = begin(comm, signature, send, nbytes)
    if number < 0:
        return -number
    code = 0
    if load64(comm + COMM.rank) == root:
        code = reduce_upto(comm, number, signature, nbytes, 0, recv, count, itemsize, fn, load64(comm + COMM.size))
    return end(comm, number, code)

"""Reduce_scatter on lines: everyone publishes all its elements, everyone reduces its own block in rank order.

T = alpha + m * beta for the publishing, (n - 1) / n * m * (beta + gamma) for the reduction, m bytes of input.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import REDUCE_SCATTER, SCRATCH, begin, end, pass_by, reduce_upto, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def reduce_scatter(comm, send, recv, total, first, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """The own block is `count` of `total` elements, from `first`; in all at most ``BIG`` bytes. `recv` may be `send`."""
    nbytes = total * itemsize
    signature = sign(REDUCE_SCATTER, 0, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    number = begin(comm, signature, send, nbytes)
    if number < 0:
        return -number
    size = load64(comm + COMM.size)
    code = reduce_upto(comm, number, signature, nbytes, first * itemsize, recv, count, itemsize, fn, size)
    if code == 0:
        store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, code)

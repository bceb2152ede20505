"""Scan and exscan on lines: everyone publishes its elements; rank r reads and reduces those of ranks 0 to r.

One round instead of a chain of n. T = alpha + r * m * (beta + gamma).
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import EXSCAN, SCAN, begin, end, pass_by, reduce_upto, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def scan(comm, send, recv, count, itemsize, fn, exclusive):  # type: ignore[no-untyped-def]
    """`count` * `itemsize` at most ``BIG``; `exclusive` = 1 leaves the own elements out, and `recv` of rank 0 as it is."""
    nbytes = count * itemsize
    signature = sign(EXSCAN if exclusive != 0 else SCAN, 0, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, 0 if exclusive != 0 else nbytes)
    number = begin(comm, signature, send, nbytes)
    if number < 0:
        return -number
    stop, code = load64(comm + COMM.rank) + 1 - exclusive, 0
    if stop > 0:
        code = reduce_upto(comm, number, signature, nbytes, 0, recv, count, itemsize, fn, stop)
    return end(comm, number, code)

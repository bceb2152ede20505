"""Allreduce on lines: everyone publishes its elements, everyone reads all and reduces them in rank order.

::

    rank r:  line r  <-  send            then   recv = ((line 0 + line 1) + line 2) + ...

Each rank does the whole reduction itself, in the same order, so all get the same bits, and no second round is needed.
T = alpha + (n - 1) * m * (beta + gamma); for m * n beyond some 100 KB `shm_pipelined` is better.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import ALLREDUCE, SCRATCH, begin, end, pass_by, reduce_upto, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def allreduce(comm, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """`count` * `itemsize` at most ``BIG``; `send` == `recv` means in place."""
    nbytes = count * itemsize
    signature = sign(ALLREDUCE, 0, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, recv, send, nbytes)
    number = begin(comm, signature, send, nbytes)
    if number < 0:
        return -number
    code = reduce_upto(comm, number, signature, nbytes, 0, recv, count, itemsize, fn, load64(comm + COMM.size))
    if code == 0:
        store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, code)

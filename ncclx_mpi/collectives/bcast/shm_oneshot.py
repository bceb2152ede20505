"""Bcast on lines: the root publishes and runs ahead, everyone else reads.

::

    root:   line {number, signature, m bytes}  -->  every other rank copies them out

T = alpha + m * beta. Others publish their signature too, so that the root sees a mismatch if it ever waits for them.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import BCAST, arrive, begin, end, pass_by, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy_lines


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def bcast(comm, address, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` at most ``BIG``."""
    signature = sign(BCAST, root, nbytes)
    if nbytes == 0 or load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, 0, 0, 0)
    is_root = load64(comm + COMM.rank) == root
    number = begin(comm, signature, address, nbytes if is_root else 0)
    if number < 0:
        return -number
    if is_root:
        return end(comm, number, 0)
    code = arrive(comm, root, number, signature)
    if code == 0:
        source = payload(comm, root, number, nbytes)
        if nbytes == 8:
            store64(address, load64(source))
        else:
            copy_lines(address, source, nbytes)
    return end(comm, number, code)

"""Barrier on lines: everyone publishes, everyone waits for everyone.

One round whatever the number of ranks: with more ranks than cores what counts is how often a rank must be scheduled, and here it is once.
T = alpha + (n - 1) line reads.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import BARRIER, arrive_all, begin, end, pass_by, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel


@kernel("int64(int64)", is_entry=True, nogil=False)
def barrier(comm):  # type: ignore[no-untyped-def]
    signature = sign(BARRIER, 0, 0)
    if load64(comm + COMM.size) == 1:
        return pass_by(comm, signature, 0, 0, 0)
    number = begin(comm, signature, 0, 0)
    if number < 0:
        return -number
    return end(comm, number, arrive_all(comm, number, signature))

"""Allgather on lines: everyone publishes its block, everyone reads all.

T = alpha + (n - 1) * m * beta.
"""

from __future__ import annotations

from ncclx_mpi.collectives.lines import ALLGATHER, SCRATCH, arrive, begin, end, payload, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, move


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def allgather(comm, send, nbytes, recv):  # type: ignore[no-untyped-def]
    """`nbytes` at most ``BIG``; `send` = 0 means in place."""
    signature = sign(ALLGATHER, 0, nbytes)
    rank = load64(comm + COMM.rank)
    own = recv + rank * nbytes
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
            copy(recv + other * nbytes, payload(comm, other, number, nbytes), nbytes)
    store64(comm + SCRATCH.known, number - 1)
    return end(comm, number, 0)

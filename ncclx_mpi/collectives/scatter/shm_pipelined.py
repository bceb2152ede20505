"""Scatter in bulk: a scatterv with blocks of one size (:mod:`ncclx_mpi.collectives.alltoall.shm_vector`)."""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW, fill_row
from ncclx_mpi.collectives.alltoall.shm_vector import exchange
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, SCATTER, working_memory
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import release


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def scatter(comm, send, recv, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` to each rank; `recv` = 0 at the root means in place."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    table = working_memory(comm, size * ROW.total)
    if table == 0:
        return NO_MEMORY
    for other in range(size):
        outgoing = send + other * nbytes if rank == root else 0
        incoming = outgoing if recv == 0 else recv
        fill_row(table + other * ROW.total, outgoing, nbytes if rank == root else 0, incoming, nbytes if other == root else 0)
    code = exchange(comm, SCATTER, root, table)
    release(table)
    return code

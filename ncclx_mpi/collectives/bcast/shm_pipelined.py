"""Bcast in bulk: by direct copies, or on the root's shared stream, as an allgatherv in which only the root has a block.

T = 2 alpha + m * beta directly (`cma`), alpha + 2 m * beta on the stream: m bytes written by the root and read by each other rank.
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather.cma import BLOCK
from ncclx_mpi.collectives.allgather.shm_pipelined import stream_blocks
from ncclx_mpi.collectives.bcast import cma
from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.shm_oneshot import BCAST, NO_MEMORY, sign, working_memory
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import release
from transports.shm.shared import DIRECT


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def bcast(comm, address, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` of the root to all."""
    signature = sign(BCAST, root, nbytes)
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began = ticks()
    code = cma.bcast(comm, signature, address, nbytes, root) if way == DIRECT else UNREACHED
    if code == UNREACHED:
        code = _stream(comm, address, nbytes, root)
    return note_way(comm, signature, nbytes, way, began, code)


@kernel("int64(int64, int64, int64, int64)")
def _stream(comm, address, nbytes, root):  # type: ignore[no-untyped-def]
    size = load64(comm + COMM.size)
    table = working_memory(comm, size * BLOCK.total)
    if table == 0:
        return NO_MEMORY
    for other in range(size):
        store64(table + other * BLOCK.total + BLOCK.recv, address)
        store64(table + other * BLOCK.total + BLOCK.nbytes, nbytes if other == root else 0)
    code = stream_blocks(comm, BCAST, root, address, table)
    release(table)
    return code

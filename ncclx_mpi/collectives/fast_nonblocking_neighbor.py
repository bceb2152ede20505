"""Neighbourhood collectives of plain arrays that do not block: checked, laid out, recorded and published in one compiled call.

What :mod:`ncclx_mpi.collectives.fast_neighbor` is for blocking ones. The first one of a communicator always goes the general way, on which
ranks find out how they go (:mod:`ncclx_mpi.collectives.nonblocking`).
"""

from __future__ import annotations

from ncclx_mpi.collectives import shm_schedule
from ncclx_mpi.collectives.cma_tuning import is_one_sided
from ncclx_mpi.collectives.fast_neighbor import (
    ALLGATHERV,
    empty_side,
    given_blocks,
    let_side_go,
    parts_of,
    read_side,
    side_bytes,
    taken_blocks,
)
from ncclx_mpi.collectives.fast_nonblocking import entry_of, handle_of
from ncclx_mpi.collectives.neighbor_alltoall import shm_edge_schedule
from ncclx_mpi.collectives.neighbor_alltoall.shm_edges import own_fits
from ncclx_mpi.collectives.neighborhood import EDGES, NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, PART
from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import SCRATCH
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, copy, release
from numba_kernels.pyobject import object_argument, object_of
from numba_kernels.pysequence import VECTOR
from numba_kernels.pyslots import object_result, result


@kernel("int64(int64, int64)")
def _may_start(comm, kind):  # type: ignore[no-untyped-def]
    """Whether a collective goes block by block, all is ready for it, and this rank has an edge in and one out."""
    edges = load64(comm + COMM.edges)
    if edges == 0 or is_planned(comm, kind) != 0 or load64(comm + SCRATCH.by_edges) == 0:
        return 0
    if load64(edges + EDGES.indegree) == 0 or load64(edges + EDGES.outdegree) == 0:
        return 0
    return 1 if load64(comm + COMM.size) == 1 or is_one_sided(comm, kind) != 0 else 0


@kernel("int64(int64, int64)")
def _are_plain(parts, count):  # type: ignore[no-untyped-def]
    """Whether blocks have no gaps."""
    for index in range(count):
        if load64(parts + index * PART.total + PART.layout) != 0:
            return 0
    return 1


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _start(comm, kind, sent, received, first, second):  # type: ignore[no-untyped-def]
    """Start a collective of rows of `PART`, which are copied, and of two objects that have the memory: its handle; 0 with nothing done."""
    edges, rows = load64(comm + COMM.edges), shm_edge_schedule.sent_rows(comm, kind)
    indegree = load64(edges + EDGES.indegree)
    if _are_plain(sent, rows) == 0 or _are_plain(received, indegree) == 0 or own_fits(edges, kind, sent, received) == 0:
        return 0
    table = allocate((rows + indegree) * PART.total)
    if table == 0:
        return 0
    copy(table, sent, rows * PART.total)
    copy(table + rows * PART.total, received, indegree * PART.total)
    handle = handle_of(comm, first, second) if shm_edge_schedule.is_fit(comm, kind, table) != 0 else 0
    entry = entry_of(comm, handle)
    if entry == 0:
        release(table)
        return 0
    shm_edge_schedule.describe(comm, entry, kind, table, table)
    shm_schedule.commit(comm, entry)
    return handle


@kernel(object_result(types.int64, types.int64, object_argument, object_argument), is_entry=True, nogil=False)
def iexchange_neighbors(comm, which, send, recv):  # type: ignore[no-untyped-def]
    """Start a neighbor_allgather(v) or neighbor_alltoall(v, w) of plain arrays."""
    kind, handle = NEIGHBOR_ALLGATHER if which <= ALLGATHERV else NEIGHBOR_ALLTOALL, 0
    if _may_start(comm, kind) == 0:
        return result(0)
    edges = load64(comm + COMM.edges)
    indegree, outdegree = load64(edges + EDGES.indegree), load64(edges + EDGES.outdegree)
    given = allocate(side_bytes(indegree) + side_bytes(outdegree))
    if given == 0:
        return result(0)
    taken = given + side_bytes(outdegree)
    empty_side(given, outdegree)
    empty_side(taken, indegree)
    is_read = read_side(given_blocks(which), object_of(send), outdegree, given) != 0
    if is_read and read_side(taken_blocks(which), object_of(recv), indegree, taken) != 0 and load64(taken + VECTOR.writable) != 0:
        sent, received = parts_of(given, outdegree), parts_of(taken, indegree)
        handle = _start(comm, kind, sent, received, load64(given + VECTOR.array), load64(taken + VECTOR.array))
    let_side_go(given, outdegree)
    let_side_go(taken, indegree)
    release(given)
    return result(handle)

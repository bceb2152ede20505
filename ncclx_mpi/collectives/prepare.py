"""Every collective as a plan bound to buffers: what non-blocking and persistent calls start, and blocking ones without a slot.

Buffers are addresses of contiguous memory, sizes are bytes, and `send` = 0 (`recv` = 0 for scatter) means in place; what is
then read is said in each function. The buffers are borrowed until the collective is complete. Reductions take the address of a C function
``out[i] = low[i] op high[i]``; they associate in rank order always, so `commutative` changes nothing here.
"""

from __future__ import annotations

import functools

import numpy as np

from ncclx_mpi.collectives import select, shm_oneshot
from ncclx_mpi.collectives.allgather import ring
from ncclx_mpi.collectives.allreduce import allgather_reduce
from ncclx_mpi.collectives.allreduce import reduce_scatter_allgather as allreduce_scattered
from ncclx_mpi.collectives.alltoall import pairwise
from ncclx_mpi.collectives.barrier import dissemination
from ncclx_mpi.collectives.bcast import binomial
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.gather import linear as gather_linear
from ncclx_mpi.collectives.plan import Counts
from ncclx_mpi.collectives.reduce import gather_reduce
from ncclx_mpi.collectives.reduce import reduce_scatter_gather as reduce_scattered
from ncclx_mpi.collectives.reduce_scatter import pairwise as reduce_scatter_pairwise
from ncclx_mpi.collectives.scan import chain
from ncclx_mpi.collectives.scatter import linear as scatter_linear
from ncclx_mpi.p2p.engine import NativeComm


def prepare_barrier(comm: NativeComm) -> Collective:
    """Complete when every rank has started it."""
    return Collective(comm, "barrier", shm_oneshot.BARRIER, dissemination.plan(comm.rank, comm.size), (0, 0))


def prepare_bcast(comm: NativeComm, address: int, nbytes: int, root: int) -> Collective:
    """Bytes of the root to everyone."""
    plan = binomial.plan(comm.rank, comm.size, nbytes, root)
    return Collective(comm, "bcast", shm_oneshot.BCAST, plan, (address, address), root=root)


def prepare_gather(comm: NativeComm, send: int, nbytes: int, recv: int, root: int) -> Collective:
    """`nbytes` of each rank to the root's `recv`, in rank order. In place at the root: its block is in `recv`."""
    counts, offsets = equal_blocks(nbytes, comm.size)
    return prepare_gatherv(comm, send, nbytes, recv, counts, offsets, root)


def prepare_gatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts, root: int) -> Collective:
    """As gather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``; both are read at the root only."""
    if comm.rank != root:
        counts, offsets = equal_blocks(nbytes, comm.size)
    plan = gather_linear.plan(comm.rank, comm.size, counts, offsets, root, send == 0)
    return Collective(comm, "gather", shm_oneshot.GATHER, plan, (send, recv), root=root)


def prepare_scatter(comm: NativeComm, send: int, recv: int, nbytes: int, root: int) -> Collective:
    """Blocks of `nbytes` of the root's `send` to the ranks. In place at the root (`recv` = 0): it keeps its block."""
    counts, offsets = equal_blocks(nbytes, comm.size)
    return prepare_scatterv(comm, send, counts, offsets, recv, nbytes, root)


def prepare_scatterv(comm: NativeComm, send: int, counts: Counts, offsets: Counts, recv: int, nbytes: int, root: int) -> Collective:
    """As scatter, block i of ``counts[i]`` bytes at ``send + offsets[i]``; both are read at the root only."""
    if comm.rank != root:
        counts, offsets = equal_blocks(nbytes, comm.size)
    plan = scatter_linear.plan(comm.rank, comm.size, counts, offsets, root, recv == 0)
    return Collective(comm, "scatter", shm_oneshot.SCATTER, plan, (send, recv), root=root)


def prepare_allgather(comm: NativeComm, send: int, nbytes: int, recv: int) -> Collective:
    """`nbytes` of each rank to everyone's `recv`, in rank order. In place: the own block is in `recv`."""
    counts, offsets = equal_blocks(nbytes, comm.size)
    return prepare_allgatherv(comm, send, nbytes, recv, counts, offsets)


def prepare_allgatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts) -> Collective:
    """As allgather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``."""
    plan = ring.plan(comm.rank, comm.size, counts, offsets, send == 0)
    return Collective(comm, "allgather", shm_oneshot.ALLGATHER, plan, (send, recv))


def prepare_alltoall(comm: NativeComm, send: int, recv: int, nbytes: int) -> Collective:
    """Block j of `send` to rank j, where it becomes block i of `recv`. In place: `recv` holds what is sent."""
    counts, offsets = equal_blocks(nbytes, comm.size)
    return prepare_alltoallv(comm, send, counts, offsets, recv, counts, offsets)


def prepare_alltoallv(
    comm: NativeComm,
    send: int,
    send_counts: Counts,
    send_offsets: Counts,
    recv: int,
    counts: Counts,
    offsets: Counts,
) -> Collective:
    """As alltoall, with bytes and byte offsets of each block."""
    plan = pairwise.plan(comm.rank, comm.size, send_counts, send_offsets, counts, offsets, send == 0)
    return Collective(comm, "alltoall", shm_oneshot.ALLTOALL, plan, (send, recv))


def prepare_reduce(
    comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, root: int
) -> Collective:
    """Reduction of all ranks' `count` elements to the root. In place at the root: its contribution is in `recv`."""
    if select.is_scattered(comm, shm_oneshot.REDUCE, count, itemsize):
        plan = reduce_scattered.plan(comm.rank, comm.size, count, itemsize, root)
    else:
        plan = gather_reduce.plan(comm.rank, comm.size, count * itemsize, root)
    return Collective(comm, "reduce", shm_oneshot.REDUCE, plan, (send or recv, recv), fn, itemsize, root)


def prepare_allreduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of all ranks' `count` elements to everyone. In place: the contribution is in `recv`."""
    if select.is_scattered(comm, shm_oneshot.ALLREDUCE, count, itemsize):
        plan = allreduce_scattered.plan(comm.rank, comm.size, count, itemsize)
    else:
        plan = allgather_reduce.plan(comm.rank, comm.size, count * itemsize)
    return Collective(comm, "allreduce", shm_oneshot.ALLREDUCE, plan, (send or recv, recv), fn, itemsize)


def prepare_reduce_scatter(
    comm: NativeComm, send: int, recv: int, counts: Counts, itemsize: int, fn: int, commutative: bool
) -> Collective:
    """Reduction of all ranks' elements, block i of ``counts[i]`` elements to rank i.

    In place: the contribution is in `recv`, and the result replaces its start.
    """
    plan = reduce_scatter_pairwise.plan(comm.rank, comm.size, np.multiply(counts, itemsize))
    return Collective(comm, "reduce_scatter", shm_oneshot.REDUCE_SCATTER, plan, (send or recv, recv), fn, itemsize)


def prepare_reduce_scatter_block(
    comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool
) -> Collective:
    """As reduce_scatter, with `count` elements for each rank."""
    return prepare_reduce_scatter(comm, send, recv, [count] * comm.size, itemsize, fn, commutative)


def prepare_scan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of ranks 0 to r at rank r. In place: the contribution is in `recv`."""
    plan = chain.scan_plan(comm.rank, comm.size, count, itemsize)
    return Collective(comm, "scan", shm_oneshot.SCAN, plan, (send or recv, recv), fn, itemsize)


def prepare_exscan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of ranks 0 to r - 1 at rank r; `recv` of rank 0 stays as it is. In place: the contribution is in `recv`."""
    plan = chain.exscan_plan(comm.rank, comm.size, count, itemsize)
    return Collective(comm, "exscan", shm_oneshot.EXSCAN, plan, (send or recv, recv), fn, itemsize)


@functools.lru_cache(maxsize=64)
def equal_blocks(nbytes: int, size: int) -> tuple[Counts, Counts]:
    """Counts and offsets of `size` blocks of `nbytes`; nobody may change them."""
    return np.full(size, nbytes), np.arange(size) * nbytes

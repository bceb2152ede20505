"""Every collective as a plan bound to buffers: what non-blocking and persistent calls start, and blocking ones without a slot.

Buffers are addresses of contiguous memory, sizes are bytes, and `send` = 0 (`recv` = 0 for scatter) means in place; what is
then read is said in each function. The buffers are borrowed until the collective is complete. Reductions take the address of a C function
``out[i] = low[i] op high[i]``. All plans of a collective take the same arguments, so which one it is says the table
(:mod:`ncclx_mpi.algorithms`) alone.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence

from ncclx_mpi.collectives import select
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.neighbor_alltoall import linear
from ncclx_mpi.collectives.neighborhood import NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, Neighborhood
from ncclx_mpi.collectives.plan import Counts
from ncclx_mpi.collectives.shm_oneshot import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
)
from ncclx_mpi.p2p.engine import NativeComm


def barrier(comm: NativeComm) -> Collective:
    """Complete when every rank has started it."""
    plan = select.plan_for(comm, BARRIER, 0)(comm.rank, comm.size)
    return Collective(comm, "barrier", BARRIER, plan, (0, 0), nbytes=0)


def bcast(comm: NativeComm, address: int, nbytes: int, root: int) -> Collective:
    """Bytes of the root to everyone."""
    plan = select.plan_for(comm, BCAST, nbytes)(comm.rank, comm.size, nbytes, root)
    return Collective(comm, "bcast", BCAST, plan, (address, address), root=root, nbytes=nbytes)


def gather(comm: NativeComm, send: int, nbytes: int, recv: int, root: int) -> Collective:
    """`nbytes` of each rank to the root's `recv`, in rank order. In place at the root: its block is in `recv`."""
    make = select.plan_for(comm, GATHER, nbytes)
    plan = make(comm.rank, comm.size, *equal_blocks(nbytes, comm.size), root, send == 0)
    return Collective(comm, "gather", GATHER, plan, (send, recv), root=root, nbytes=nbytes if send else -1)


def gatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts, root: int) -> Collective:
    """As gather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``; both are read at the root only."""
    if comm.rank != root:
        counts, offsets = equal_blocks(nbytes, comm.size)
    make = select.plan_for(comm, GATHER, 0, has_counts=True)
    plan = make(comm.rank, comm.size, counts, offsets, root, send == 0)
    return Collective(comm, "gather", GATHER, plan, (send, recv), root=root)


def scatter(comm: NativeComm, send: int, recv: int, nbytes: int, root: int) -> Collective:
    """Blocks of `nbytes` of the root's `send` to the ranks. In place at the root (`recv` = 0): it keeps its block."""
    make = select.plan_for(comm, SCATTER, nbytes * comm.size)
    plan = make(comm.rank, comm.size, *equal_blocks(nbytes, comm.size), root, recv == 0)
    return Collective(comm, "scatter", SCATTER, plan, (send, recv), root=root, nbytes=nbytes if recv else -1)


def scatterv(comm: NativeComm, send: int, counts: Counts, offsets: Counts, recv: int, nbytes: int, root: int) -> Collective:
    """As scatter, block i of ``counts[i]`` bytes at ``send + offsets[i]``; both are read at the root only."""
    if comm.rank != root:
        counts, offsets = equal_blocks(nbytes, comm.size)
    make = select.plan_for(comm, SCATTER, 0, has_counts=True)
    plan = make(comm.rank, comm.size, counts, offsets, root, recv == 0)
    return Collective(comm, "scatter", SCATTER, plan, (send, recv), root=root)


def allgather(comm: NativeComm, send: int, nbytes: int, recv: int) -> Collective:
    """`nbytes` of each rank to everyone's `recv`, in rank order. In place: the own block is in `recv`."""
    make = select.plan_for(comm, ALLGATHER, nbytes)
    plan = make(comm.rank, comm.size, *equal_blocks(nbytes, comm.size), send == 0)
    return Collective(comm, "allgather", ALLGATHER, plan, (send, recv), nbytes=nbytes if send else -1)


def allgatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts) -> Collective:
    """As allgather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``."""
    make = select.plan_for(comm, ALLGATHER, int(max(counts)), has_counts=True)
    plan = make(comm.rank, comm.size, counts, offsets, send == 0)
    return Collective(comm, "allgather", ALLGATHER, plan, (send, recv))


def alltoall(comm: NativeComm, send: int, recv: int, nbytes: int) -> Collective:
    """Block j of `send` to rank j, where it becomes block i of `recv`. In place: `recv` holds what is sent."""
    blocks = equal_blocks(nbytes, comm.size)
    make = select.plan_for(comm, ALLTOALL, nbytes * comm.size)
    plan = make(comm.rank, comm.size, *blocks, *blocks, send == 0)
    return Collective(comm, "alltoall", ALLTOALL, plan, (send, recv), nbytes=nbytes if send else -1)


def alltoallv(
    comm: NativeComm,
    send: int,
    send_counts: Counts,
    send_offsets: Counts,
    recv: int,
    counts: Counts,
    offsets: Counts,
) -> Collective:
    """As alltoall, with bytes and byte offsets of each block."""
    make = select.plan_for(comm, ALLTOALL, 0, has_counts=True)
    plan = make(comm.rank, comm.size, send_counts, send_offsets, counts, offsets, send == 0)
    return Collective(comm, "alltoall", ALLTOALL, plan, (send, recv))


def reduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, root: int) -> Collective:
    """Reduction of all ranks' `count` elements to the root. In place at the root: its contribution is in `recv`."""
    make = select.plan_for(comm, REDUCE, count * itemsize, itemsize, commutative)
    plan = make(comm.rank, comm.size, count, itemsize, root)
    return Collective(comm, "reduce", REDUCE, plan, (send or recv, recv), fn, itemsize, root, count * itemsize)


def allreduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of all ranks' `count` elements to everyone. In place: the contribution is in `recv`."""
    make = select.plan_for(comm, ALLREDUCE, count * itemsize, itemsize, commutative)
    plan = make(comm.rank, comm.size, count, itemsize)
    return Collective(comm, "allreduce", ALLREDUCE, plan, (send or recv, recv), fn, itemsize, nbytes=count * itemsize)


def reduce_scatter(comm: NativeComm, send: int, recv: int, counts: Counts, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of all ranks' elements, block i of ``counts[i]`` elements to rank i.

    In place: the contribution is in `recv`, and the result replaces its start.
    """
    blocks = [int(count) * itemsize for count in counts]
    make = select.plan_for(comm, REDUCE_SCATTER, sum(blocks), itemsize, commutative, has_counts=True)
    plan = make(comm.rank, comm.size, blocks, itemsize)
    return Collective(comm, "reduce_scatter", REDUCE_SCATTER, plan, (send or recv, recv), fn, itemsize)


def reduce_scatter_block(
    comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool
) -> Collective:
    """As reduce_scatter, with `count` elements for each rank."""
    nbytes = count * itemsize
    make = select.plan_for(comm, REDUCE_SCATTER, nbytes * comm.size, itemsize, commutative)
    plan = make(comm.rank, comm.size, equal_blocks(nbytes, comm.size)[0], itemsize)
    return Collective(comm, "reduce_scatter", REDUCE_SCATTER, plan, (send or recv, recv), fn, itemsize, nbytes=nbytes)


def scan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of ranks 0 to r at rank r. In place: the contribution is in `recv`."""
    make = select.plan_for(comm, SCAN, count * itemsize, itemsize, commutative)
    plan = make(comm.rank, comm.size, count, itemsize, False)
    return Collective(comm, "scan", SCAN, plan, (send or recv, recv), fn, itemsize)


def exscan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> Collective:
    """Reduction of ranks 0 to r - 1 at rank r; `recv` of rank 0 stays as it is. In place: the contribution is in `recv`."""
    make = select.plan_for(comm, EXSCAN, count * itemsize, itemsize, commutative)
    plan = make(comm.rank, comm.size, count, itemsize, True)
    return Collective(comm, "exscan", EXSCAN, plan, (send or recv, recv), fn, itemsize)


def neighbor_allgather(
    comm: NativeComm, neighborhood: Neighborhood, send: int, nbytes: int, recv: int, counts: Sequence[int], offsets: Sequence[int]
) -> Collective:
    """`nbytes` to every destination; block i of ``counts[i]`` bytes from source i to ``recv + offsets[i]``."""
    degree = len(neighborhood.destinations)
    plan = linear.plan(comm.rank, neighborhood, [nbytes] * degree, [0] * degree, counts, offsets)
    return Collective(comm, "neighbor_allgather", NEIGHBOR_ALLGATHER, plan, (send, recv))


def neighbor_alltoall(
    comm: NativeComm,
    neighborhood: Neighborhood,
    send: int,
    send_counts: Sequence[int],
    send_offsets: Sequence[int],
    recv: int,
    counts: Sequence[int],
    offsets: Sequence[int],
) -> Collective:
    """Block j of `send` to destination j, and what comes from source i to block i of `recv`: bytes and byte offsets of each."""
    plan = linear.plan(comm.rank, neighborhood, send_counts, send_offsets, counts, offsets)
    return Collective(comm, "neighbor_alltoall", NEIGHBOR_ALLTOALL, plan, (send, recv))


@functools.lru_cache(maxsize=64)
def equal_blocks(nbytes: int, size: int) -> tuple[Counts, Counts]:
    """Counts and offsets of `size` blocks of `nbytes`; nobody may change them."""
    return array("q", [nbytes]) * size, array("q", [rank * nbytes for rank in range(size)])

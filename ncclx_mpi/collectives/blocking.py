"""Blocking collectives: compiled kernels on the communicator's slot where there is one for the case, else a plan that is awaited.

Arguments as in :mod:`ncclx_mpi.collectives.prepare`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ncclx_mpi import errors
from ncclx_mpi.collectives import prepare
from ncclx_mpi.collectives.allreduce import slot_small as allreduce_small
from ncclx_mpi.collectives.barrier import slot_small as barrier_small
from ncclx_mpi.collectives.bcast import slot_small as bcast_small
from ncclx_mpi.collectives.executor import Collective, broken, raise_code
from ncclx_mpi.collectives.lines import SCRATCH, read_signature
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import BROKEN, FAILED, OPERATIONS
from numba_kernels.jit import entry
from transports.shm.slots import BIG

Counts = Sequence[int]


def barrier(comm: NativeComm) -> None:
    """Return when every rank has called it."""
    if comm.slot >= 0:
        check(comm, entry(barrier_small.barrier)(comm.address), "barrier")
    else:
        _run(prepare.prepare_barrier(comm))


def bcast(comm: NativeComm, address: int, nbytes: int, root: int) -> None:
    """Bytes of the root to everyone."""
    if comm.slot >= 0 and nbytes <= BIG:
        check(comm, entry(bcast_small.bcast)(comm.address, address, nbytes, root), "bcast")
    else:
        _run(prepare.prepare_bcast(comm, address, nbytes, root))


def allreduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of all ranks' `count` elements to everyone. In place: the contribution is in `recv`."""
    if comm.slot >= 0 and count * itemsize <= BIG:
        code = entry(allreduce_small.allreduce)(comm.address, send or recv, recv, count, itemsize, fn)
        check(comm, code, "allreduce")
    else:
        _run(prepare.prepare_allreduce(comm, send, recv, count, itemsize, fn, commutative))


def gather(comm: NativeComm, send: int, nbytes: int, recv: int, root: int) -> None:
    """`nbytes` of each rank to the root's `recv`, in rank order. In place at the root: its block is in `recv`."""
    _run(prepare.prepare_gather(comm, send, nbytes, recv, root))


def gatherv(
    comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts, root: int
) -> None:
    """As gather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``; both are read at the root only."""
    _run(prepare.prepare_gatherv(comm, send, nbytes, recv, counts, offsets, root))


def scatter(comm: NativeComm, send: int, recv: int, nbytes: int, root: int) -> None:
    """Blocks of `nbytes` of the root's `send` to the ranks. In place at the root (`recv` = 0): it keeps its block."""
    _run(prepare.prepare_scatter(comm, send, recv, nbytes, root))


def scatterv(
    comm: NativeComm, send: int, counts: Counts, offsets: Counts, recv: int, nbytes: int, root: int
) -> None:
    """As scatter, block i of ``counts[i]`` bytes at ``send + offsets[i]``; both are read at the root only."""
    _run(prepare.prepare_scatterv(comm, send, counts, offsets, recv, nbytes, root))


def allgather(comm: NativeComm, send: int, nbytes: int, recv: int) -> None:
    """`nbytes` of each rank to everyone's `recv`, in rank order. In place: the own block is in `recv`."""
    _run(prepare.prepare_allgather(comm, send, nbytes, recv))


def allgatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts) -> None:
    """As allgather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``."""
    _run(prepare.prepare_allgatherv(comm, send, nbytes, recv, counts, offsets))


def alltoall(comm: NativeComm, send: int, recv: int, nbytes: int) -> None:
    """Block j of `send` to rank j, where it becomes block i of `recv`. In place: `recv` holds what is sent."""
    _run(prepare.prepare_alltoall(comm, send, recv, nbytes))


def alltoallv(
    comm: NativeComm,
    send: int,
    send_counts: Counts,
    send_offsets: Counts,
    recv: int,
    counts: Counts,
    offsets: Counts,
) -> None:
    """As alltoall, with bytes and byte offsets of each block."""
    _run(prepare.prepare_alltoallv(comm, send, send_counts, send_offsets, recv, counts, offsets))


def reduce(
    comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, root: int
) -> None:
    """Reduction of all ranks' `count` elements to the root. In place at the root: its contribution is in `recv`."""
    _run(prepare.prepare_reduce(comm, send, recv, count, itemsize, fn, commutative, root))


def reduce_scatter(
    comm: NativeComm, send: int, recv: int, counts: Counts, itemsize: int, fn: int, commutative: bool
) -> None:
    """Reduction of all ranks' elements, block i of ``counts[i]`` elements to rank i.

    In place: the contribution is in `recv`, and the result replaces its start.
    """
    _run(prepare.prepare_reduce_scatter(comm, send, recv, counts, itemsize, fn, commutative))


def reduce_scatter_block(
    comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool
) -> None:
    """As reduce_scatter, with `count` elements for each rank."""
    _run(prepare.prepare_reduce_scatter_block(comm, send, recv, count, itemsize, fn, commutative))


def scan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of ranks 0 to r at rank r. In place: the contribution is in `recv`."""
    _run(prepare.prepare_scan(comm, send, recv, count, itemsize, fn, commutative))


def exscan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of ranks 0 to r - 1 at rank r; `recv` of rank 0 stays as it is. In place: the contribution is in `recv`."""
    _run(prepare.prepare_exscan(comm, send, recv, count, itemsize, fn, commutative))


def check(comm: NativeComm, code: int, name: str) -> None:
    """Raise what the code of a slot kernel means, if it is not 0."""
    if code == 0:
        return
    if code == BROKEN:
        raise broken(comm, name)
    if code >= FAILED:
        raise _mismatch(comm, code - FAILED, name)
    raise_code(comm, code, name)


def _mismatch(comm: NativeComm, error_class: int, name: str) -> errors.Exception:
    other, own, its = (
        ctypes.c_int64.from_address(comm.address + word).value
        for word in (SCRATCH.offender, SCRATCH.own_signature, SCRATCH.its_signature)
    )
    return errors.Exception(
        error_class,
        f"rank {comm.rank}: called {_called(own)}, but rank {other} of the communicator called {_called(its)}; "
        "all ranks must call the same collectives in the same order, with the same root and the same number of bytes",
    )


def _called(signature: int) -> str:
    kind, root, nbytes = read_signature(signature)
    return f"{OPERATIONS[kind]} with root {root} and {nbytes} bytes"


def _run(collective: Collective) -> None:
    try:
        collective.start().wait()
    except BaseException:
        if collective.running:
            collective.abandon()
        raise

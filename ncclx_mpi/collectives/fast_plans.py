"""Blocking collectives of plain arrays by plans that are ready.

They take what those of :mod:`ncclx_mpi.collectives.fast` take, which come here where no slot serves a call. Each returns 0; SLOW if no plan
is ready, or an argument is not plain; or UNFINISHED (:mod:`ncclx_mpi.collectives.ready`).
"""

from __future__ import annotations

from ncclx_mpi.collectives import operands
from ncclx_mpi.collectives.executor import ROOT_SHIFT
from ncclx_mpi.collectives.ready import SLOW, by_plan, is_any_ready
from ncclx_mpi.collectives.shm_oneshot import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import address_of, array_argument, itemsize_of, nbytes_of


@kernel("int64(int64)")
def barrier(comm):  # type: ignore[no-untyped-def]
    return by_plan(comm, BARRIER, 0, 1, 0, 0, 0)


@kernel(types.int64(types.int64, array_argument, types.int64))
def bcast(comm, argument, root):  # type: ignore[no-untyped-def]
    if is_any_ready(comm) == 0 or operands.spread_from(comm, argument, root) == 0:
        return SLOW
    address = address_of(argument)
    return by_plan(comm, BCAST | root << ROOT_SHIFT, nbytes_of(argument), 1, 0, address, address)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def allreduce(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    function = operands.reduced(send, recv, functions) if is_any_ready(comm) != 0 else 0
    if function == 0:
        return SLOW
    return by_plan(comm, ALLREDUCE, nbytes_of(recv), itemsize_of(recv), function, address_of(send), address_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64))
def reduce(comm, send, recv, functions, root):  # type: ignore[no-untyped-def]
    function = operands.reduced_to(comm, send, recv, functions, root) if is_any_ready(comm) != 0 else 0
    if function == 0:
        return SLOW
    call, target = REDUCE | root << ROOT_SHIFT, operands.at_root(comm, root, recv)
    return by_plan(comm, call, nbytes_of(send), itemsize_of(send), function, address_of(send), target)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def reduce_scatter_block(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    function = operands.reduced_in_blocks(comm, send, recv, functions) if is_any_ready(comm) != 0 else 0
    if function == 0:
        return SLOW
    return by_plan(comm, REDUCE_SCATTER, nbytes_of(recv), itemsize_of(recv), function, address_of(send), address_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument))
def allgather(comm, send, recv):  # type: ignore[no-untyped-def]
    if is_any_ready(comm) == 0 or operands.holds_blocks(comm, send, recv) == 0:
        return SLOW
    return by_plan(comm, ALLGATHER, nbytes_of(send), 1, 0, address_of(send), address_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument))
def alltoall(comm, send, recv):  # type: ignore[no-untyped-def]
    """In place, where both are the same, there is no ready plan: it is another one, which puts aside what is sent."""
    source, target = address_of(send), address_of(recv)
    if is_any_ready(comm) == 0 or source == target or operands.exchanged(comm, send, recv) == 0:
        return SLOW
    return by_plan(comm, ALLTOALL, operands.all_blocks(comm, recv) // load64(comm + COMM.size), 1, 0, source, target)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def gather(comm, send, recv, root):  # type: ignore[no-untyped-def]
    if is_any_ready(comm) == 0 or operands.gathered_to(comm, send, recv, root) == 0:
        return SLOW
    return by_plan(comm, GATHER | root << ROOT_SHIFT, nbytes_of(send), 1, 0, address_of(send), operands.at_root(comm, root, recv))


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def scatter(comm, send, recv, root):  # type: ignore[no-untyped-def]
    if is_any_ready(comm) == 0 or operands.scattered_from(comm, send, recv, root) == 0:
        return SLOW
    return by_plan(comm, SCATTER | root << ROOT_SHIFT, nbytes_of(recv), 1, 0, operands.at_root(comm, root, send), address_of(recv))

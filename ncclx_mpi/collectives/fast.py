"""Blocking collectives of plain arrays: one compiled call from the Python objects to the arena and back.

The arguments are unboxed and checked in the call itself (:mod:`numba_kernels.pyobject`). Whatever is not plain or not valid returns SLOW
with nothing done, and the caller resolves it in Python, where the algorithm is chosen by the same table, so that ranks which come
by different routes still meet; what a plan has carried out before goes by it again, without that. Short operations keep the GIL
(:mod:`ncclx_mpi.p2p.gil`), long ones give it away.

``functions`` is the address of a table of reduction functions by NumPy type number (int64[ELEMENTS]), zero where none was resolved yet.
"""

from __future__ import annotations

from ncclx_mpi.collectives import fast_plans, operands
from ncclx_mpi.collectives.allgather import shm_oneshot as allgather_small
from ncclx_mpi.collectives.allgather import shm_pipelined as allgather_large
from ncclx_mpi.collectives.allreduce import shm_oneshot as allreduce_small
from ncclx_mpi.collectives.allreduce import shm_pipelined as allreduce_large
from ncclx_mpi.collectives.alltoall import shm_oneshot as alltoall_small
from ncclx_mpi.collectives.alltoall import shm_pipelined as alltoall_large
from ncclx_mpi.collectives.barrier.shm_oneshot import barrier
from ncclx_mpi.collectives.bcast import shm_oneshot as bcast_small
from ncclx_mpi.collectives.bcast import shm_pipelined as bcast_large
from ncclx_mpi.collectives.gather import shm_oneshot as gather_small
from ncclx_mpi.collectives.gather import shm_pipelined as gather_large
from ncclx_mpi.collectives.ready import SLOW as SLOW
from ncclx_mpi.collectives.reduce import shm_oneshot as reduce_small
from ncclx_mpi.collectives.reduce import shm_pipelined as reduce_large
from ncclx_mpi.collectives.reduce_scatter import shm_oneshot as reduce_scatter_small
from ncclx_mpi.collectives.reduce_scatter import shm_pipelined as reduce_scatter_large
from ncclx_mpi.collectives.scatter import shm_oneshot as scatter_small
from ncclx_mpi.collectives.scatter import shm_pipelined as scatter_large
from ncclx_mpi.collectives.select import is_planned, on_lines
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
    give_gil,
)
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import address_of, array_argument, index_argument, index_of, itemsize_of, nbytes_of, writable_of

ELEMENTS = 24
"""Entries of a table of reduction functions."""


@kernel("int64(int64)", is_entry=True, nogil=False)
def barrier_now(comm):  # type: ignore[no-untyped-def]
    """Barrier: 0, SLOW, or the code of a failure."""
    return fast_plans.barrier(comm) if is_planned(comm, BARRIER) != 0 else barrier(comm)


@kernel("int64(int64, int64, int64, int64)")
def bcast_memory(comm, address, nbytes, root):  # type: ignore[no-untyped-def]
    """Bcast of checked memory through the slot: 0, or the code of a failure."""
    state = give_gil(nbytes)
    if on_lines(comm, BCAST, nbytes) != 0:
        code = bcast_small.bcast(comm, address, nbytes, root)
    else:
        code = bcast_large.bcast(comm, address, nbytes, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, index_argument), is_entry=True, nogil=False)
def bcast_array(comm, argument, root_rank):  # type: ignore[no-untyped-def]
    """Bcast of a plain array: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    if operands.of_bcast(comm, argument, root) == 0:
        return fast_plans.bcast(comm, argument, root)
    return bcast_memory(comm, address_of(argument), nbytes_of(argument), root)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def allreduce_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Allreduce of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    function = operands.of_reduction(comm, ALLREDUCE, send, recv, functions)
    if function == 0:
        return fast_plans.allreduce(comm, send, recv, functions)
    nbytes, itemsize = nbytes_of(recv), itemsize_of(recv)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    state = give_gil(nbytes)
    if on_lines(comm, ALLREDUCE, nbytes) != 0:
        code = allreduce_small.allreduce(comm, source, target, count, itemsize, function)
    else:
        code = allreduce_large.allreduce(comm, source, target, count, itemsize, function)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, index_argument), is_entry=True, nogil=False)
def reduce_arrays(comm, send, recv, functions, root_rank):  # type: ignore[no-untyped-def]
    """Reduce of a plain array; `recv` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    function = operands.of_reduce(comm, send, recv, functions, root)
    if function == 0:
        return fast_plans.reduce(comm, send, recv, functions, root)
    nbytes, itemsize = nbytes_of(send), itemsize_of(send)
    source, target, count = address_of(send), operands.at_root(comm, root, recv), nbytes // itemsize
    state = give_gil(nbytes)
    if on_lines(comm, REDUCE, nbytes) != 0:
        code = reduce_small.reduce(comm, source, target, count, itemsize, function, root)
    else:
        code = reduce_large.reduce(comm, source, target, count, itemsize, function, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def reduce_scatter_block_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Reduce_scatter_block of plain arrays: 0, SLOW, or the code of a failure."""
    function = operands.of_reduce_scatter_block(comm, send, recv, functions)
    if function == 0:
        return fast_plans.reduce_scatter_block(comm, send, recv, functions)
    nbytes, itemsize, size = nbytes_of(recv), itemsize_of(recv), load64(comm + COMM.size)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    state = give_gil(nbytes * size)
    if on_lines(comm, REDUCE_SCATTER, nbytes * size) != 0:
        first = count * load64(comm + COMM.rank)
        code = reduce_scatter_small.reduce_scatter(comm, source, target, count * size, first, count, itemsize, function)
    else:
        code = reduce_scatter_large.reduce_scatter_block(comm, source, target, count, itemsize, function)
    enter_gil(state)
    return code


@kernel("int64(int64, int64, int64, int64)")
def allgather_memory(comm, source, nbytes, target):  # type: ignore[no-untyped-def]
    """As above, an allgather; `source` = 0 means in place."""
    state = give_gil(nbytes)
    if on_lines(comm, ALLGATHER, nbytes) != 0:
        code = allgather_small.allgather(comm, source, nbytes, target)
    else:
        code = allgather_large.allgather(comm, source, nbytes, target)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def allgather_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Allgather of plain arrays, perhaps in place: 0, SLOW, or the code of a failure."""
    source, target, nbytes = address_of(send), address_of(recv), nbytes_of(send)
    if operands.of_allgather(comm, send, recv) == 0:
        if writable_of(recv) == 0 or operands.of_in_place(comm, ALLGATHER, send, recv) == 0:
            return fast_plans.allgather(comm, send, recv)
        source, nbytes = 0, operands.own_block(comm, recv)
    return allgather_memory(comm, source, nbytes, target)


@kernel("int64(int64, int64, int64, int64)")
def alltoall_memory(comm, source, target, nbytes):  # type: ignore[no-untyped-def]
    """As above, an alltoall of blocks of `nbytes`."""
    total = nbytes * load64(comm + COMM.size)
    state = give_gil(total)
    if on_lines(comm, ALLTOALL, total) != 0:
        code = alltoall_small.alltoall(comm, source, target, nbytes)
    else:
        code = alltoall_large.alltoall(comm, source, target, nbytes)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def alltoall_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Alltoall of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    if operands.of_alltoall(comm, send, recv) == 0:
        return fast_plans.alltoall(comm, send, recv)
    source, target, nbytes = address_of(send), address_of(recv), operands.all_blocks(comm, recv) // load64(comm + COMM.size)
    return alltoall_memory(comm, source, target, nbytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def gather_memory(comm, source, nbytes, target, root):  # type: ignore[no-untyped-def]
    """As above, a gather; `source` = 0 at the root means in place."""
    state = give_gil(nbytes)
    if on_lines(comm, GATHER, nbytes) != 0:
        code = gather_small.gather(comm, source, nbytes, target, root)
    else:
        code = gather_large.gather(comm, source, nbytes, target, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def gather_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Gather of plain arrays, perhaps in place; `recv` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    source, nbytes, target = address_of(send), nbytes_of(send), operands.at_root(comm, root, recv)
    if operands.of_gather(comm, send, recv, root) == 0:
        if target == 0 or writable_of(recv) == 0 or operands.of_in_place(comm, GATHER, send, recv) == 0:
            return fast_plans.gather(comm, send, recv, root)
        source, nbytes = 0, operands.own_block(comm, recv)
    return gather_memory(comm, source, nbytes, target, root)


@kernel("int64(int64, int64, int64, int64, int64)")
def scatter_memory(comm, source, target, nbytes, root):  # type: ignore[no-untyped-def]
    """As above, a scatter; `target` = 0 at the root means in place."""
    total = nbytes * load64(comm + COMM.size)
    state = give_gil(total)
    if on_lines(comm, SCATTER, total) != 0:
        code = scatter_small.scatter(comm, source, target, nbytes, root)
    else:
        code = scatter_large.scatter(comm, source, target, nbytes, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def scatter_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Scatter of plain arrays, perhaps in place; `send` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    source, nbytes, target = operands.at_root(comm, root, send), nbytes_of(recv), address_of(recv)
    if operands.of_scatter(comm, send, recv, root) == 0:
        if source == 0 or operands.of_in_place(comm, SCATTER, recv, send) == 0:
            return fast_plans.scatter(comm, send, recv, root)
        target, nbytes = 0, operands.own_block(comm, send)
    return scatter_memory(comm, source, target, nbytes, root)

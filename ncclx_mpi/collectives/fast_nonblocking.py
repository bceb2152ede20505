"""Non-blocking collectives of plain arrays on lines: checked, recorded and published in one compiled call.

The twins of :mod:`ncclx_mpi.collectives.fast`: each returns the number of what it started, by which it is waited for
(:func:`ncclx_mpi.collectives.pending.wait_for`). 0 and less, with nothing done: SLOW, minus the code of a failure, or
NO_ROOM; the caller then goes the general way, which also finds the words for what is wrong.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives import operands, pending
from ncclx_mpi.collectives.fast import SLOW
from ncclx_mpi.collectives.lines import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
)
from ncclx_mpi.collectives.select import is_planned, on_lines
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import address_of, array_argument, index_argument, index_of, itemsize_of, nbytes_of
from transports.shm.slots import BIG


@kernel("int64(int64, int64, int64)")
def _fits(comm, kind, published):  # type: ignore[no-untyped-def]
    return 1 if published <= BIG and on_lines(comm, kind, published) != 0 else 0


@kernel("int64(int64)", is_entry=True, nogil=False)
def ibarrier(comm):  # type: ignore[no-untyped-def]
    """Start a barrier."""
    return SLOW if is_planned(comm, BARRIER) != 0 else pending.start_barrier(comm)


@kernel(types.int64(types.int64, array_argument, index_argument), is_entry=True, nogil=False)
def ibcast_array(comm, argument, root_rank):  # type: ignore[no-untyped-def]
    """Start a bcast of a plain array."""
    root, nbytes = index_of(root_rank), nbytes_of(argument)
    if operands.of_bcast(comm, argument, root) == 0 or _fits(comm, BCAST, nbytes) == 0:
        return SLOW
    return pending.start_bcast(comm, address_of(argument), nbytes, root)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def iallreduce_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Start an allreduce of plain arrays, perhaps the same."""
    function, nbytes = operands.of_reduction(comm, ALLREDUCE, send, recv, functions), nbytes_of(recv)
    if function == 0 or _fits(comm, ALLREDUCE, nbytes) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    return pending.start_allreduce(comm, address_of(send), address_of(recv), nbytes // itemsize, itemsize, function)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def iscan_arrays(comm, send, recv, functions, exclusive):  # type: ignore[no-untyped-def]
    """Start a scan, or exscan, of plain arrays, perhaps the same."""
    function, nbytes = operands.of_reduction(comm, SCAN, send, recv, functions), nbytes_of(recv)
    if function == 0 or _fits(comm, SCAN, nbytes) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    return pending.start_scan(comm, address_of(send), address_of(recv), nbytes // itemsize, itemsize, function, exclusive)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, index_argument), is_entry=True, nogil=False)
def ireduce_arrays(comm, send, recv, functions, root_rank):  # type: ignore[no-untyped-def]
    """Start a reduce of a plain array; `recv` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(send)
    function = operands.of_reduce(comm, send, recv, functions, root)
    if function == 0 or _fits(comm, REDUCE, nbytes) == 0:
        return SLOW
    itemsize, target = itemsize_of(send), operands.at_root(comm, root, recv)
    return pending.start_reduce(comm, address_of(send), target, nbytes // itemsize, itemsize, function, root)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def ireduce_scatter_block_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Start a reduce_scatter_block of plain arrays."""
    function = operands.of_reduce_scatter_block(comm, send, recv, functions)
    if function == 0 or _fits(comm, REDUCE_SCATTER, nbytes_of(send)) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    count = nbytes_of(recv) // itemsize
    return pending.start_reduce_scatter_block(comm, address_of(send), address_of(recv), count, itemsize, function)


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def iallgather_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Start an allgather of plain arrays."""
    nbytes = nbytes_of(send)
    if operands.of_allgather(comm, send, recv) == 0 or _fits(comm, ALLGATHER, nbytes) == 0:
        return SLOW
    return pending.start_allgather(comm, address_of(send), nbytes, address_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def ialltoall_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Start an alltoall of plain arrays, perhaps the same."""
    total = nbytes_of(recv)
    if operands.of_alltoall(comm, send, recv) == 0 or _fits(comm, ALLTOALL, total) == 0:
        return SLOW
    return pending.start_alltoall(comm, address_of(send), address_of(recv), total // load64(comm + COMM.size))


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def igather_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Start a gather of plain arrays; `recv` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(send)
    if operands.of_gather(comm, send, recv, root) == 0 or _fits(comm, GATHER, nbytes) == 0:
        return SLOW
    return pending.start_gather(comm, address_of(send), nbytes, operands.at_root(comm, root, recv), root)


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def iscatter_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Start a scatter of plain arrays; `send` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(recv)
    if operands.of_scatter(comm, send, recv, root) == 0 or _fits(comm, SCATTER, nbytes * load64(comm + COMM.size)) == 0:
        return SLOW
    return pending.start_scatter(comm, operands.at_root(comm, root, send), address_of(recv), nbytes, root)

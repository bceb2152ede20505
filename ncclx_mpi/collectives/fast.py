"""Blocking collectives of plain arrays: one compiled call from the Python objects to the arena and back.

The arguments are unboxed and checked in the call itself (:mod:`numba_kernels.pyobject`). Whatever is not plain or not valid returns SLOW with
nothing done, and the caller resolves it in Python, where the algorithm is chosen by the same table, so that ranks which come
by different routes still meet. Short operations keep the GIL (:mod:`ncclx_mpi.p2p.gil`), long ones give it away.

``functions`` is the address of a table of reduction functions by NumPy type number (int64[ELEMENTS]), zero where none was resolved yet.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives.allgather import slot_large as allgather_large
from ncclx_mpi.collectives.allgather import slot_small as allgather_small
from ncclx_mpi.collectives.allreduce import slot_large as allreduce_large
from ncclx_mpi.collectives.allreduce import slot_small as allreduce_small
from ncclx_mpi.collectives.alltoall import slot_large as alltoall_large
from ncclx_mpi.collectives.alltoall import slot_small as alltoall_small
from ncclx_mpi.collectives.barrier.slot_small import barrier
from ncclx_mpi.collectives.bcast import slot_large as bcast_large
from ncclx_mpi.collectives.bcast import slot_small as bcast_small
from ncclx_mpi.collectives.gather import slot_large as gather_large
from ncclx_mpi.collectives.gather import slot_small as gather_small
from ncclx_mpi.collectives.lines import (
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
from ncclx_mpi.collectives.reduce import slot_large as reduce_large
from ncclx_mpi.collectives.reduce import slot_small as reduce_small
from ncclx_mpi.collectives.reduce_scatter import slot_large as reduce_scatter_large
from ncclx_mpi.collectives.reduce_scatter import slot_small as reduce_scatter_small
from ncclx_mpi.collectives.scatter import slot_large as scatter_large
from ncclx_mpi.collectives.scatter import slot_small as scatter_small
from ncclx_mpi.collectives.select import chunk_items, is_planned, on_lines
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    element_of,
    index_argument,
    index_of,
    itemsize_of,
    nbytes_of,
    writable_of,
)

SLOW = -1
ELEMENTS = 24
"""Entries of a table of reduction functions."""


@kernel("int64(int64, int64)")
def _is_root(comm, root):  # type: ignore[no-untyped-def]
    return 1 if load64(comm + COMM.rank) == root else 0


@kernel("int64(int64, int64)")
def _valid_root(comm, root):  # type: ignore[no-untyped-def]
    return 1 if 0 <= root < load64(comm + COMM.size) else 0


@kernel("int64(int64)", is_entry=True, nogil=False)
def barrier_now(comm):  # type: ignore[no-untyped-def]
    """Barrier: 0, SLOW, or the code of a failure."""
    return SLOW if is_planned(comm, BARRIER) != 0 else barrier(comm)


@kernel(types.int64(types.int64, array_argument, index_argument), is_entry=True, nogil=False)
def bcast_array(comm, argument, root_rank):  # type: ignore[no-untyped-def]
    """Bcast of a plain array: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    nbytes, address = nbytes_of(argument), address_of(argument)
    if element_of(argument) == NONE or is_planned(comm, BCAST) != 0 or _valid_root(comm, root) == 0:
        return SLOW
    if writable_of(argument) == 0 and _is_root(comm, root) == 0:
        return SLOW
    state = give_gil(nbytes)
    if on_lines(comm, BCAST, nbytes) != 0:
        code = bcast_small.bcast(comm, address, nbytes, root)
    else:
        code = bcast_large.bcast(comm, address, nbytes, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def allreduce_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Allreduce of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    element, nbytes = element_of(recv), nbytes_of(recv)
    if element == NONE or element != element_of(send) or nbytes != nbytes_of(send) or writable_of(recv) == 0:
        return SLOW
    function = load64(functions + 8 * element)
    if function == 0 or is_planned(comm, ALLREDUCE) != 0:
        return SLOW
    itemsize = itemsize_of(recv)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    state = give_gil(nbytes)
    if on_lines(comm, ALLREDUCE, nbytes) != 0:
        code = allreduce_small.allreduce(comm, source, target, count, itemsize, function)
    else:
        chunk = chunk_items(load64(comm + COMM.size), nbytes, itemsize)
        code = allreduce_large.allreduce(comm, source, target, count, itemsize, function, chunk)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, index_argument), is_entry=True, nogil=False)
def reduce_arrays(comm, send, recv, functions, root_rank):  # type: ignore[no-untyped-def]
    """Reduce of a plain array; `recv` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    element, nbytes = element_of(send), nbytes_of(send)
    if element == NONE or is_planned(comm, REDUCE) != 0 or _valid_root(comm, root) == 0:
        return SLOW
    target = address_of(send)
    if _is_root(comm, root) != 0:
        if element != element_of(recv) or nbytes != nbytes_of(recv) or writable_of(recv) == 0:
            return SLOW
        target = address_of(recv)
    function = load64(functions + 8 * element)
    if function == 0:
        return SLOW
    itemsize = itemsize_of(send)
    source, count = address_of(send), nbytes // itemsize
    state = give_gil(nbytes)
    if on_lines(comm, REDUCE, nbytes) != 0:
        code = reduce_small.reduce(comm, source, target, count, itemsize, function, root)
    else:
        chunk = chunk_items(load64(comm + COMM.size), nbytes, itemsize)
        code = reduce_large.reduce(comm, source, target, count, itemsize, function, root, chunk)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def reduce_scatter_block_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Reduce_scatter_block of plain arrays: 0, SLOW, or the code of a failure."""
    element, nbytes, size = element_of(recv), nbytes_of(recv), load64(comm + COMM.size)
    if element == NONE or element != element_of(send) or nbytes * size != nbytes_of(send) or writable_of(recv) == 0:
        return SLOW
    function = load64(functions + 8 * element)
    if function == 0 or is_planned(comm, REDUCE_SCATTER) != 0:
        return SLOW
    itemsize = itemsize_of(recv)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    state = give_gil(nbytes * size)
    if on_lines(comm, REDUCE_SCATTER, nbytes * size) != 0:
        first = count * load64(comm + COMM.rank)
        code = reduce_scatter_small.reduce_scatter(comm, source, target, count * size, first, count, itemsize, function)
    else:
        chunk = chunk_items(size, nbytes, itemsize)
        code = reduce_scatter_large.reduce_scatter_block(comm, source, target, count, itemsize, function, chunk)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def allgather_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Allgather of plain arrays: 0, SLOW, or the code of a failure."""
    nbytes = nbytes_of(send)
    if element_of(recv) == NONE or element_of(recv) != element_of(send) or writable_of(recv) == 0:
        return SLOW
    if nbytes * load64(comm + COMM.size) != nbytes_of(recv) or is_planned(comm, ALLGATHER) != 0:
        return SLOW
    source, target = address_of(send), address_of(recv)
    state = give_gil(nbytes)
    if on_lines(comm, ALLGATHER, nbytes) != 0:
        code = allgather_small.allgather(comm, source, nbytes, target)
    else:
        code = allgather_large.allgather(comm, source, nbytes, target)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def alltoall_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Alltoall of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    total, size = nbytes_of(recv), load64(comm + COMM.size)
    if element_of(recv) == NONE or element_of(recv) != element_of(send) or writable_of(recv) == 0:
        return SLOW
    if total != nbytes_of(send) or total // itemsize_of(recv) % size != 0 or is_planned(comm, ALLTOALL) != 0:
        return SLOW
    source, target, nbytes = address_of(send), address_of(recv), total // size
    state = give_gil(total)
    if on_lines(comm, ALLTOALL, total) != 0:
        code = alltoall_small.alltoall(comm, source, target, nbytes)
    else:
        code = alltoall_large.alltoall(comm, source, target, nbytes)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def gather_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Gather of plain arrays; `recv` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    nbytes, target = nbytes_of(send), 0
    if element_of(send) == NONE or is_planned(comm, GATHER) != 0 or _valid_root(comm, root) == 0:
        return SLOW
    if _is_root(comm, root) != 0:
        if element_of(recv) != element_of(send) or writable_of(recv) == 0:
            return SLOW
        if nbytes * load64(comm + COMM.size) != nbytes_of(recv):
            return SLOW
        target = address_of(recv)
    state = give_gil(nbytes)
    if on_lines(comm, GATHER, nbytes) != 0:
        code = gather_small.gather(comm, address_of(send), nbytes, target, root)
    else:
        code = gather_large.gather(comm, address_of(send), nbytes, target, root)
    enter_gil(state)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def scatter_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Scatter of plain arrays; `send` matters at the root only: 0, SLOW, or the code of a failure."""
    root = index_of(root_rank)
    nbytes, source, size = nbytes_of(recv), 0, load64(comm + COMM.size)
    if element_of(recv) == NONE or writable_of(recv) == 0 or is_planned(comm, SCATTER) != 0:
        return SLOW
    if _valid_root(comm, root) == 0:
        return SLOW
    if _is_root(comm, root) != 0:
        if element_of(recv) != element_of(send) or nbytes * size != nbytes_of(send):
            return SLOW
        source = address_of(send)
    state = give_gil(nbytes * size)
    if on_lines(comm, SCATTER, nbytes * size) != 0:
        code = scatter_small.scatter(comm, source, address_of(recv), nbytes, root)
    else:
        code = scatter_large.scatter(comm, source, address_of(recv), nbytes, root)
    enter_gil(state)
    return code

"""Non-blocking collectives of plain arrays: checked, recorded and published in one compiled call.

The twins of :mod:`ncclx_mpi.collectives.fast`: each returns the handle of what it started, which takes a ticket as that of a message does
(:mod:`ncclx_mpi.p2p.request_pool`), and is completed in the same calls. None, with nothing done: the arrays are not plain, or not
valid, or there is no room, or no free ticket; the caller then goes the general way, which also finds the words for what is wrong.
"""

from __future__ import annotations

from ncclx_mpi.algorithms import ONESHOT_UPTO
from ncclx_mpi.collectives import operands, shm_schedule
from ncclx_mpi.collectives.cma import is_shown
from ncclx_mpi.collectives.cma_tuning import is_one_sided
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
    SCAN,
    SCATTER,
    SCRATCH,
)
from ncclx_mpi.p2p.layout import COMM, ENGINE
from ncclx_mpi.p2p.request_pool import new_handle, request_of, use_ticket
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import address_of, array_argument, array_of, index_argument, index_of, itemsize_of, nbytes_of
from numba_kernels.pyslots import decrease, keeper_of, object_result, result


@kernel("int64(int64, int64, int64, int64, int64)")
def fits(comm, kind, published, send, recv):  # type: ignore[no-untyped-def]
    """Whether a collective goes by lines, each rank giving `published` bytes, or by direct copies for which all is ready.

    `send`, `recv`: addresses of this rank's buffers, 0 for one that does not matter.
    """
    if on_lines(comm, kind, published) != 0:
        return 1 if published <= ONESHOT_UPTO else 0
    if kind == SCAN or load64(comm + SCRATCH.one_sided) == 0 or is_one_sided(comm, kind) == 0:
        return 0
    if kind in (ALLTOALL, REDUCE_SCATTER) and send == recv:
        return 0
    return 1 if (send == 0 or is_shown(comm, send) != 0) and (recv == 0 or is_shown(comm, recv) != 0) else 0


@kernel("int64(int64, int64, int64)")
def handle_of(comm, first, second):  # type: ignore[no-untyped-def]
    """The handle of a collective that is about to start, and keeps its arrays alive; 0 if it cannot."""
    engine, keeper = load64(comm + COMM.engine), load64(comm + SCRATCH.keeper)
    if load64(comm + COMM.broken) != 0 or shm_schedule.has_room(comm) == 0:
        return 0
    owner = keeper_of(first if first != 0 else keeper, second, 0)
    if owner == 0:
        return 0
    handle = new_handle(engine, engine + ENGINE.lines_tickets)
    if handle != 0:
        use_ticket(handle, keeper, owner)
    decrease(owner)
    return handle


@kernel("int64(int64, int64)")
def entry_of(comm, handle):  # type: ignore[no-untyped-def]
    """Where what a new handle stands for is described; 0 if there is no handle, or no room: a finalizer that ran may have done anything."""
    entry = shm_schedule.new_entry(comm, request_of(handle)) if handle != 0 else 0
    if entry < 0:
        decrease(handle)
    return max(entry, 0)


@kernel(object_result(types.int64), is_entry=True, nogil=False)
def ibarrier(comm):  # type: ignore[no-untyped-def]
    """Start a barrier."""
    handle = handle_of(comm, 0, 0) if is_planned(comm, BARRIER) == 0 else 0
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_barrier(comm, entry)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, index_argument), is_entry=True, nogil=False)
def ibcast_array(comm, argument, root_rank):  # type: ignore[no-untyped-def]
    """Start a bcast of a plain array."""
    root, nbytes = index_of(root_rank), nbytes_of(argument)
    handle = 0
    if operands.of_bcast(comm, argument, root) != 0 and fits(comm, BCAST, nbytes, address_of(argument), 0) != 0:
        handle = handle_of(comm, array_of(argument), 0)
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_bcast(comm, entry, address_of(argument), nbytes, root)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def iallreduce_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Start an allreduce of plain arrays, perhaps the same."""
    function, nbytes = operands.of_reduction(comm, ALLREDUCE, send, recv, functions), nbytes_of(recv)
    handle = 0
    if function != 0 and fits(comm, ALLREDUCE, nbytes, address_of(send), address_of(recv)) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    itemsize = itemsize_of(recv)
    shm_schedule.describe_allreduce(comm, entry, address_of(send), address_of(recv), nbytes // itemsize, itemsize, function)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def iscan_arrays(comm, send, recv, functions, exclusive):  # type: ignore[no-untyped-def]
    """Start a scan, or exscan, of plain arrays, perhaps the same."""
    function, nbytes = operands.of_reduction(comm, SCAN, send, recv, functions), nbytes_of(recv)
    handle = 0
    if function != 0 and fits(comm, SCAN, nbytes, 0, 0) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    itemsize = itemsize_of(recv)
    shm_schedule.describe_scan(comm, entry, address_of(send), address_of(recv), nbytes // itemsize, itemsize, function, exclusive)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, types.int64, index_argument), is_entry=True, nogil=False)
def ireduce_arrays(comm, send, recv, functions, root_rank):  # type: ignore[no-untyped-def]
    """Start a reduce of a plain array; `recv` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(send)
    function = operands.of_reduce(comm, send, recv, functions, root)
    target = operands.at_root(comm, root, recv)
    handle = 0
    if function != 0 and fits(comm, REDUCE, nbytes, address_of(send), target) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv) if target != 0 else 0)
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    itemsize = itemsize_of(send)
    shm_schedule.describe_reduce(comm, entry, address_of(send), target, nbytes // itemsize, itemsize, function, root)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def ireduce_scatter_block_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Start a reduce_scatter_block of plain arrays."""
    function = operands.of_reduce_scatter_block(comm, send, recv, functions)
    handle = 0
    if function != 0 and fits(comm, REDUCE_SCATTER, operands.all_blocks(comm, send), address_of(send), address_of(recv)) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    itemsize = itemsize_of(recv)
    count = nbytes_of(recv) // itemsize
    shm_schedule.describe_reduce_scatter_block(comm, entry, address_of(send), address_of(recv), count, itemsize, function)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def iallgather_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Start an allgather of plain arrays."""
    nbytes = nbytes_of(send)
    handle, source, target = 0, address_of(send), address_of(recv)
    if operands.of_allgather(comm, send, recv) != 0 and fits(comm, ALLGATHER, nbytes, source, target) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_allgather(comm, entry, source, nbytes, target)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument), is_entry=True, nogil=False)
def ialltoall_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Start an alltoall of plain arrays, perhaps the same."""
    total = operands.all_blocks(comm, recv)
    handle, source, target = 0, address_of(send), address_of(recv)
    if operands.of_alltoall(comm, send, recv) != 0 and fits(comm, ALLTOALL, total, source, target) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_alltoall(comm, entry, source, target, total // load64(comm + COMM.size))
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def igather_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Start a gather of plain arrays; `recv` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(send)
    target = operands.at_root(comm, root, recv)
    handle = 0
    if operands.of_gather(comm, send, recv, root) != 0 and fits(comm, GATHER, nbytes, address_of(send), target) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv) if target != 0 else 0)
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_gather(comm, entry, address_of(send), nbytes, target, root)
    shm_schedule.commit(comm, entry)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def iscatter_arrays(comm, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Start a scatter of plain arrays; `send` matters at the root only."""
    root, nbytes = index_of(root_rank), nbytes_of(recv)
    source, target = operands.at_root(comm, root, send), address_of(recv)
    handle, total = 0, nbytes * load64(comm + COMM.size)
    if operands.of_scatter(comm, send, recv, root) != 0 and fits(comm, SCATTER, total, source, target) != 0:
        handle = handle_of(comm, array_of(recv), array_of(send) if source != 0 else 0)
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    shm_schedule.describe_scatter(comm, entry, source, target, nbytes, root)
    shm_schedule.commit(comm, entry)
    return result(handle)

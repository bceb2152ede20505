"""Non-blocking collectives with counts of plain arrays: checked, laid out, recorded and published in one compiled call.

What :mod:`ncclx_mpi.collectives.fast_nonblocking` is for those without. The first one of a communicator always goes the general way, on which
ranks find out whether what is large can be copied directly (:mod:`ncclx_mpi.collectives.nonblocking`).
"""

from __future__ import annotations

from ncclx_mpi.collectives import shm_schedule, shm_vector_schedule
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.cma_tuning import is_one_sided
from ncclx_mpi.collectives.fast_nonblocking import entry_of, fits, handle_of
from ncclx_mpi.collectives.fast_vector import COUNTS_BYTES, TYPED, lay_out, lay_out_counts
from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, REDUCE_SCATTER, SCRATCH
from ncclx_mpi.collectives.shm_vector_schedule import row_of
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, fill, release
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    array_of,
    element_of,
    index_argument,
    index_of,
    is_in_place,
    itemsize_of,
    nbytes_of,
    object_argument,
    object_of,
    writable_of,
)
from numba_kernels.pysequence import VECTOR, read_vector
from numba_kernels.pyslots import decrease, object_result, result


@kernel("int64(int64, int64)")
def _may_start(comm, kind):  # type: ignore[no-untyped-def]
    """Whether a collective with counts goes block by block, and all is ready for it."""
    if is_planned(comm, kind) != 0 or load64(comm + SCRATCH.by_blocks) == 0:
        return 0
    return 1 if load64(comm + COMM.size) == 1 or is_one_sided(comm, kind) != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _start(comm, kind, root, rows, first, second):  # type: ignore[no-untyped-def]
    """Start a collective of `rows`, which it gives back, and of two objects that have the memory: its handle; 0 with nothing done."""
    handle = handle_of(comm, first, second) if shm_vector_schedule.is_fit(comm, kind, root, rows) != 0 else 0
    entry = entry_of(comm, handle)
    if entry == 0:
        return 0
    shm_vector_schedule.describe(comm, entry, kind, root, rows, rows)
    shm_schedule.commit(comm, entry)
    return handle


@kernel(object_result(types.int64, types.int64, object_argument, object_argument, index_argument), is_entry=True, nogil=False)
def iexchange_vectors(comm, kind, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Start an alltoallv, alltoallw (`kind` TYPED), gatherv or scatterv of plain arrays."""
    size, root, plain, handle = load64(comm + COMM.size), index_of(root_rank), ALLTOALL if kind == TYPED else kind, 0
    vector_bytes = VECTOR.total + 16 * size
    rows = allocate(size * ROW.total + 2 * vector_bytes) if _may_start(comm, plain) != 0 and 0 <= root < size else 0
    if rows == 0:
        return result(0)
    sent = rows + size * ROW.total
    received = sent + vector_bytes
    store64(sent + VECTOR.array, 0)
    store64(received + VECTOR.array, 0)
    code = lay_out(comm, kind, object_of(send), object_of(recv), root, rows, sent, received)
    first, second = load64(sent + VECTOR.array), load64(received + VECTOR.array)  # the rows may be gone once it has started
    if code == 0:
        handle = _start(comm, plain, root, rows, first, second)
    if handle == 0:
        release(rows)
    decrease(first)
    decrease(second)
    return result(handle)


@kernel("void(int64, int64, int64)")
def _lay_out_blocks(vector, size, rows):  # type: ignore[no-untyped-def]
    """Write where the blocks of an allgatherv go."""
    fill(rows, 0, size * ROW.total)
    for other in range(size):
        row, counts = row_of(rows, other), vector + VECTOR.total
        store64(row + ROW.recv, load64(vector + VECTOR.address) + load64(counts + 8 * (size + other)))
        store64(row + ROW.recv_bytes, load64(counts + 8 * other))


@kernel(object_result(types.int64, array_argument, object_argument), is_entry=True, nogil=False)
def iallgatherv_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Start an allgatherv of plain arrays, perhaps in place."""
    size, handle, source = load64(comm + COMM.size), 0, address_of(send)
    rows = allocate(size * ROW.total + VECTOR.total + 16 * size) if _may_start(comm, ALLGATHER) != 0 else 0
    if rows == 0:
        return result(0)
    vector, own = rows + size * ROW.total, row_of(rows, load64(comm + COMM.rank))
    element = read_vector(object_of(recv), size, vector)
    whole = load64(vector + VECTOR.array)
    if element != NONE and load64(vector + VECTOR.writable) != 0:
        _lay_out_blocks(vector, size, rows)
        nbytes = load64(own + ROW.recv_bytes)
        is_own = is_in_place(send) != 0
        if is_own or (element == element_of(send) and nbytes == nbytes_of(send)):
            store64(own + ROW.send, load64(own + ROW.recv) if is_own else source)
            store64(own + ROW.send_bytes, nbytes)
            handle = _start(comm, ALLGATHER, 0, rows, whole, 0 if is_own else array_of(send))
    if handle == 0:
        release(rows)
    decrease(whole)
    return result(handle)


@kernel(object_result(types.int64, array_argument, array_argument, object_argument, types.int64), is_entry=True, nogil=False)
def ireduce_scatter_arrays(comm, send, recv, counts, functions):  # type: ignore[no-untyped-def]
    """Start a reduce_scatter of plain arrays."""
    size, rank, element, handle = load64(comm + COMM.size), load64(comm + COMM.rank), element_of(recv), 0
    if element == NONE or element != element_of(send) or writable_of(recv) == 0 or is_planned(comm, REDUCE_SCATTER) != 0:
        return result(0)
    function, nbytes = load64(functions + 8 * element), nbytes_of(send)
    firsts = allocate(8 * (size + 1) + COUNTS_BYTES) if function != 0 else 0
    if firsts == 0:
        return result(0)
    code, first, total = lay_out_counts(comm, send, recv, counts, firsts), load64(firsts + 8 * rank), load64(firsts + 8 * size)
    release(firsts)
    if code == 0 and fits(comm, REDUCE_SCATTER, nbytes, address_of(send), address_of(recv)) != 0:
        handle = handle_of(comm, array_of(send), array_of(recv))
    entry = entry_of(comm, handle)
    if entry == 0:
        return result(0)
    count, itemsize = nbytes_of(recv) // itemsize_of(recv), itemsize_of(recv)
    shm_schedule.describe_reduce_scatter(comm, entry, address_of(send), address_of(recv), total, first, count, itemsize, function)
    shm_schedule.commit(comm, entry)
    return result(handle)

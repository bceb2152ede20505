"""Blocking collectives with counts, and scans, of plain arrays: checked, laid out and carried out in one compiled call.

As in :mod:`ncclx_mpi.collectives.fast`, whatever is not plain or not valid returns SLOW with nothing done. Counts, offsets and types are
read from the Python objects themselves (:mod:`numba_kernels.pysequence`).
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather import shm_oneshot as allgather_small
from ncclx_mpi.collectives.allgather import shm_pipelined as allgather_large
from ncclx_mpi.collectives.allgather.cma import BLOCK
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.alltoall.shm_vector import exchange
from ncclx_mpi.collectives.fast import SLOW
from ncclx_mpi.collectives.operands import of_reduction
from ncclx_mpi.collectives.reduce_scatter import shm_oneshot as reduce_scatter_small
from ncclx_mpi.collectives.reduce_scatter import shm_pipelined as reduce_scatter_large
from ncclx_mpi.collectives.scan import shm_oneshot, shm_pipelined
from ncclx_mpi.collectives.select import is_planned, on_lines
from ncclx_mpi.collectives.shm_oneshot import (
    ALLGATHER,
    ALLTOALL,
    GATHER,
    NO_MEMORY,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
    give_gil,
    working_memory,
)
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import fill, release
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
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
from numba_kernels.pysequence import VECTOR, let_go, read_block, read_integers, read_typed_vector, read_vector

TYPED = -1
"""What :func:`exchange_vectors` takes as its kind for an alltoallw."""


@kernel("void(int64, int64, int64, int64)")
def _place(rows, column, vector, size):  # type: ignore[no-untyped-def]
    """Write address and bytes of each block of a vector to the two words at `column` of each row."""
    address = load64(vector + VECTOR.address)
    for other in range(size):
        row = rows + other * ROW.total + column
        store64(row, address + load64(vector + VECTOR.total + 8 * (size + other)))
        store64(row + 8, load64(vector + VECTOR.total + 8 * other))


@kernel("void(int64, int64, int64, int64)")
def _place_one(rows, column, other, vector):  # type: ignore[no-untyped-def]
    """Write the one block that this rank sends to, or receives from, rank `other`."""
    row = rows + other * ROW.total + column
    store64(row, load64(vector + VECTOR.address))
    store64(row + 8, load64(vector + VECTOR.nbytes))


@kernel("int64(int64, int64, int64, int64, int64)")
def _read_side(spec, kind, is_vector, size, vector):  # type: ignore[no-untyped-def]
    """Read what one side of an exchange gives: the element type number, or NONE."""
    if kind == TYPED:
        return read_typed_vector(spec, size, vector)
    return read_vector(spec, size, vector) if is_vector != 0 else read_block(spec, vector)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _place_side(rows, column, is_vector, size, root, vector):  # type: ignore[no-untyped-def]
    if is_vector != 0:
        _place(rows, column, vector, size)
    else:
        _place_one(rows, column, root, vector)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def lay_out(comm, kind, send, recv, root, rows, sent, received):  # type: ignore[no-untyped-def]
    """Write the rows of an exchange, with `sent` and `received` to work in: 0 or SLOW."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    fill(rows, 0, size * ROW.total)
    gives, takes = 1 if kind != SCATTER or rank == root else 0, 1 if kind != GATHER or rank == root else 0
    element, its_element = NONE, NONE
    if gives != 0:
        element = _read_side(send, kind, 1 if kind != GATHER else 0, size, sent)
        if element == NONE:
            return SLOW
        _place_side(rows, ROW.send, 1 if kind != GATHER else 0, size, root, sent)
    if takes != 0:
        its_element = _read_side(recv, kind, 1 if kind != SCATTER else 0, size, received)
        if its_element == NONE or load64(received + VECTOR.writable) == 0:
            return SLOW
        _place_side(rows, ROW.recv, 1 if kind != SCATTER else 0, size, root, received)
    own = rows + rank * ROW.total
    if gives != 0 and takes != 0 and (element != its_element or load64(own + ROW.send_bytes) != load64(own + ROW.recv_bytes)):
        return SLOW
    return 0


@kernel(types.int64(types.int64, types.int64, object_argument, object_argument, index_argument), is_entry=True, nogil=False)
def exchange_vectors(comm, kind, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Alltoallv, alltoallw (`kind` TYPED), gatherv or scatterv of plain arrays: 0, SLOW, or the code of a failure.

    As in MPI, the vector of a gatherv or scatterv matters at the root only.
    """
    size, root = load64(comm + COMM.size), index_of(root_rank)
    if is_planned(comm, ALLTOALL if kind == TYPED else kind) != 0 or root < 0 or root >= size:
        return SLOW
    vector_bytes = VECTOR.total + 16 * size
    rows = working_memory(comm, size * ROW.total + 2 * vector_bytes)
    if rows == 0:
        return NO_MEMORY
    sent = rows + size * ROW.total
    received = sent + vector_bytes
    store64(sent + VECTOR.array, 0)
    store64(received + VECTOR.array, 0)
    code = lay_out(comm, kind, object_of(send), object_of(recv), root, rows, sent, received)
    if code == 0:
        code = exchange(comm, ALLTOALL if kind == TYPED else kind, root, rows)
    let_go(sent)
    let_go(received)
    release(rows)
    return code


@kernel("int64(int64, int64, int64)")
def _lay_out_blocks(vector, size, table):  # type: ignore[no-untyped-def]
    """Write the blocks of an allgatherv; returns the bytes of the longest."""
    longest = 0
    for other in range(size):
        block, nbytes = table + other * BLOCK.total, load64(vector + VECTOR.total + 8 * other)
        store64(block + BLOCK.recv, load64(vector + VECTOR.address) + load64(vector + VECTOR.total + 8 * (size + other)))
        store64(block + BLOCK.nbytes, nbytes)
        longest = max(longest, nbytes)
    return longest


@kernel("int64(int64, int64, int64, int64)")
def allgather_blocks(comm, source, table, longest):  # type: ignore[no-untyped-def]
    """Allgatherv of the blocks of a `table`, of which `longest` is the most bytes: 0, or the code of a failure."""
    if on_lines(comm, ALLGATHER, longest) != 0:
        return allgather_small.allgatherv(comm, source, table)
    return allgather_large.spread(comm, source, table)


@kernel(types.int64(types.int64, array_argument, object_argument), is_entry=True, nogil=False)
def allgatherv_arrays(comm, send, recv):  # type: ignore[no-untyped-def]
    """Allgatherv of plain arrays, perhaps in place: 0, SLOW, or the code of a failure."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), SLOW
    if is_planned(comm, ALLGATHER) != 0:
        return SLOW
    table = working_memory(comm, size * BLOCK.total + VECTOR.total + 16 * size)
    if table == 0:
        return NO_MEMORY
    vector = table + size * BLOCK.total
    element = read_vector(object_of(recv), size, vector)
    nbytes, source = load64(vector + VECTOR.total + 8 * rank), address_of(send)
    if element != NONE and is_in_place(send) != 0:
        source = load64(vector + VECTOR.address) + load64(vector + VECTOR.total + 8 * (size + rank))
    elif element == NONE or element != element_of(send) or nbytes != nbytes_of(send):
        source = 0
    if source != 0 and load64(vector + VECTOR.writable) != 0:
        code = allgather_blocks(comm, source, table, _lay_out_blocks(vector, size, table))
    let_go(vector)
    release(table)
    return code


COUNTS_BYTES = VECTOR.total
"""What :func:`lay_out_counts` works in, beside the words that it writes."""


@kernel(types.int64(types.int64, array_argument, array_argument, object_argument, types.int64))
def lay_out_counts(comm, send, recv, counts, firsts):  # type: ignore[no-untyped-def]
    """Write the first element of each rank's block, and how many there are, to `firsts`: 0; SLOW if they do not fit the arrays."""
    size, rank, itemsize, first = load64(comm + COMM.size), load64(comm + COMM.rank), itemsize_of(recv), 0
    if read_integers(object_of(counts), size, firsts, firsts + 8 * (size + 1)) == 0:
        return SLOW
    for other in range(size + 1):
        count = load64(firsts + 8 * other)
        store64(firsts + 8 * other, first)
        first += count
    total, count = load64(firsts + 8 * size), load64(firsts + 8 * rank + 8) - load64(firsts + 8 * rank)
    return 0 if total * itemsize == nbytes_of(send) and count * itemsize == nbytes_of(recv) else SLOW


@kernel(types.int64(types.int64, array_argument, array_argument, object_argument, types.int64), is_entry=True, nogil=False)
def reduce_scatter_arrays(comm, send, recv, counts, functions):  # type: ignore[no-untyped-def]
    """Reduce_scatter of plain arrays: 0, SLOW, or the code of a failure."""
    size, rank, element = load64(comm + COMM.size), load64(comm + COMM.rank), element_of(recv)
    if element == NONE or element != element_of(send) or writable_of(recv) == 0 or is_planned(comm, REDUCE_SCATTER) != 0:
        return SLOW
    function, itemsize = load64(functions + 8 * element), itemsize_of(recv)
    if function == 0:
        return SLOW
    firsts = working_memory(comm, 8 * (size + 1) + COUNTS_BYTES)
    if firsts == 0:
        return NO_MEMORY
    code = lay_out_counts(comm, send, recv, counts, firsts)
    if code == 0:
        total, first = load64(firsts + 8 * size), load64(firsts + 8 * rank)
        count = load64(firsts + 8 * rank + 8) - first
        source, target = address_of(send), address_of(recv)
        state = give_gil(total * itemsize)
        if on_lines(comm, REDUCE_SCATTER, total * itemsize) != 0:
            code = reduce_scatter_small.reduce_scatter(comm, source, target, total, first, count, itemsize, function)
        else:
            code = reduce_scatter_large.reduce_scatter(comm, source, target, firsts, itemsize, function)
        enter_gil(state)
    release(firsts)
    return code


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def scan_arrays(comm, send, recv, functions, exclusive):  # type: ignore[no-untyped-def]
    """Scan, or exscan, of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    function = of_reduction(comm, SCAN, send, recv, functions)
    if function == 0:
        return SLOW
    nbytes, itemsize = nbytes_of(recv), itemsize_of(recv)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    state = give_gil(nbytes)
    if on_lines(comm, SCAN, nbytes) != 0:
        code = shm_oneshot.scan(comm, source, target, count, itemsize, function, exclusive)
    else:
        code = shm_pipelined.scan(comm, source, target, count, itemsize, function, exclusive)
    enter_gil(state)
    return code

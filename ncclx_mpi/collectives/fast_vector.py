"""Blocking collectives with counts, and scans, of plain arrays: checked and laid out in one compiled call.

As in :mod:`ncclx_mpi.collectives.fast`, whatever is not plain or not valid returns SLOW with nothing done. Collectives with counts take two
calls: one writes the table of blocks, the other (``exchange``, ``spread``) carries it out, and is compiled once for all of them.

Counts come as the address of int64[2 * size]: a count for each rank, then an offset for each, in elements.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives.allgather.slot_large import BLOCK
from ncclx_mpi.collectives.alltoall.slot_large import ROW
from ncclx_mpi.collectives.fast import SLOW
from ncclx_mpi.collectives.lines import SCAN
from ncclx_mpi.collectives.scan import slot_large, slot_small
from ncclx_mpi.collectives.select import chunk_items, on_lines
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    element_of,
    itemsize_of,
    nbytes_of,
    writable_of,
)

_KEEP_GIL = 128 << 10


@kernel("int64(int64, int64, int64)")
def _fits(counts, size, elements):  # type: ignore[no-untyped-def]
    """Whether every block lies within `elements` elements."""
    for other in range(size):
        count, offset = load64(counts + 8 * other), load64(counts + 8 * (size + other))
        if count < 0 or offset < 0 or offset + count > elements:
            return 0
    return 1


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _place(rows, field, address, counts, size, itemsize):  # type: ignore[no-untyped-def]
    """Write address and bytes of each block to the two words at `field` of each row."""
    for other in range(size):
        row = rows + other * ROW.total + field
        store64(row, address + load64(counts + 8 * (size + other)) * itemsize)
        store64(row + 8, load64(counts + 8 * other) * itemsize)


@kernel("void(int64, int64, int64, int64, int64)")
def _place_one(rows, field, other, address, nbytes):  # type: ignore[no-untyped-def]
    row = rows + other * ROW.total + field
    store64(row, address)
    store64(row + 8, nbytes)


@kernel("int64(int64, int64)")
def _clear(comm, rows):  # type: ignore[no-untyped-def]
    """Empty rows for all ranks; 0 if the communicator has no slot."""
    for word in range(load64(comm + COMM.size) * ROW.total // 8):
        store64(rows + 8 * word, 0)
    return load64(comm + COMM.slot)


@kernel(types.int64(types.int64, array_argument, types.int64, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def lay_out_alltoallv(comm, send, send_counts, recv, counts, rows):  # type: ignore[no-untyped-def]
    """Write the rows of an alltoallv: 0 or SLOW."""
    size = load64(comm + COMM.size)
    if _clear(comm, rows) == 0 or element_of(recv) == NONE or element_of(recv) != element_of(send) or writable_of(recv) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    if _fits(send_counts, size, nbytes_of(send) // itemsize) == 0 or _fits(counts, size, nbytes_of(recv) // itemsize) == 0:
        return SLOW
    own = 8 * load64(comm + COMM.rank)
    if load64(send_counts + own) != load64(counts + own):
        return SLOW
    _place(rows, ROW.send, address_of(send), send_counts, size, itemsize)
    _place(rows, ROW.recv, address_of(recv), counts, size, itemsize)
    return 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64, types.int64), is_entry=True, nogil=False)
def lay_out_gatherv(comm, send, recv, counts, root, rows):  # type: ignore[no-untyped-def]
    """Write the rows of a gatherv; `recv` and `counts` matter at the root only: 0 or SLOW."""
    size, rank, nbytes = load64(comm + COMM.size), load64(comm + COMM.rank), nbytes_of(send)
    if _clear(comm, rows) == 0 or element_of(send) == NONE or root < 0 or root >= size:
        return SLOW
    if rank == root:
        if counts == 0 or element_of(recv) != element_of(send) or writable_of(recv) == 0:
            return SLOW
        itemsize = itemsize_of(recv)
        if _fits(counts, size, nbytes_of(recv) // itemsize) == 0 or load64(counts + 8 * rank) * itemsize != nbytes:
            return SLOW
        _place(rows, ROW.recv, address_of(recv), counts, size, itemsize)
    _place_one(rows, ROW.send, root, address_of(send), nbytes)
    return 0


@kernel(types.int64(types.int64, array_argument, types.int64, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def lay_out_scatterv(comm, send, counts, recv, root, rows):  # type: ignore[no-untyped-def]
    """Write the rows of a scatterv; `send` and `counts` matter at the root only: 0 or SLOW."""
    size, rank, nbytes = load64(comm + COMM.size), load64(comm + COMM.rank), nbytes_of(recv)
    if _clear(comm, rows) == 0 or element_of(recv) == NONE or writable_of(recv) == 0 or root < 0 or root >= size:
        return SLOW
    if rank == root:
        if counts == 0 or element_of(recv) != element_of(send):
            return SLOW
        itemsize = itemsize_of(recv)
        if _fits(counts, size, nbytes_of(send) // itemsize) == 0 or load64(counts + 8 * rank) * itemsize != nbytes:
            return SLOW
        _place(rows, ROW.send, address_of(send), counts, size, itemsize)
    _place_one(rows, ROW.recv, root, address_of(recv), nbytes)
    return 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def lay_out_allgatherv(comm, send, recv, counts, blocks):  # type: ignore[no-untyped-def]
    """Write the blocks of an allgatherv: the address of the own one, or SLOW."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    if load64(comm + COMM.slot) == 0 or element_of(recv) == NONE or element_of(recv) != element_of(send) or writable_of(recv) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    if _fits(counts, size, nbytes_of(recv) // itemsize) == 0 or load64(counts + 8 * rank) * itemsize != nbytes_of(send):
        return SLOW
    for other in range(size):
        block = blocks + other * BLOCK.total
        store64(block + BLOCK.recv, address_of(recv) + load64(counts + 8 * (size + other)) * itemsize)
        store64(block + BLOCK.nbytes, load64(counts + 8 * other) * itemsize)
    return address_of(send)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def scan_arrays(comm, send, recv, functions, exclusive):  # type: ignore[no-untyped-def]
    """Scan, or exscan, of plain arrays of one type and size, perhaps the same: 0, SLOW, or the code of a failure."""
    element, nbytes = element_of(recv), nbytes_of(recv)
    if element == NONE or element != element_of(send) or nbytes != nbytes_of(send) or writable_of(recv) == 0:
        return SLOW
    function = load64(functions + 8 * element)
    if function == 0 or load64(comm + COMM.slot) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    source, target, count = address_of(send), address_of(recv), nbytes // itemsize
    if on_lines(SCAN, nbytes) != 0:
        return slot_small.scan(comm, source, target, count, itemsize, function, exclusive)
    state = leave_gil() if nbytes > _KEEP_GIL else 0
    chunk = chunk_items(load64(comm + COMM.size), nbytes, itemsize)
    if exclusive != 0:
        code = slot_large.exscan(comm, source, target, count, itemsize, function, chunk)
    else:
        code = slot_large.scan(comm, source, target, count, itemsize, function, chunk)
    enter_gil(state)
    return code

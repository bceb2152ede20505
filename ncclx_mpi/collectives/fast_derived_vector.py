"""Blocking collectives with counts of derived datatypes: packed, carried out as those of plain arrays, and unpacked in one compiled call.

What :mod:`ncclx_mpi.collectives.fast_derived` is for those without counts. Of a side, the blocks with gaps lie one after another in memory of
the call; the others stay where they are.
"""

from __future__ import annotations

from ncclx_mpi.collectives.allgather.cma import BLOCK
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.alltoall.shm_vector import exchange
from ncclx_mpi.collectives.fast import SLOW
from ncclx_mpi.collectives.fast_vector import TYPED, allgather_blocks
from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, GATHER, NO_MEMORY, SCATTER, working_memory
from ncclx_mpi.p2p.gaps import LONGEST
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate, fill, release
from numba_kernels.pylayouts import (
    LAYOUT,
    let_layouts_go,
    pack_row,
    read_laid_out,
    read_laid_out_blocks,
    read_laid_out_vector,
    unpack_row,
)
from numba_kernels.pyobject import NONE, index_argument, index_of, object_argument, object_of
from numba_kernels.pysequence import VECTOR, let_go, read_block, read_vector

SIDE = words("Side", "blocks packed is_derived")
"""One side of a call: how many blocks it has, the memory of those with gaps, or 0, and whether its datatypes are derived. Rows of `PLACE` and
`LAYOUT` for all blocks follow, and the vector that it is read into."""
PLACE = words("Place", "address nbytes origin")
"""Where a block is, without gaps; its bytes; and where its elements begin."""


@kernel("int64(int64, int64)")
def _place_of(side, index):  # type: ignore[no-untyped-def]
    return side + SIDE.total + index * PLACE.total


@kernel("int64(int64, int64, int64)")
def _layout_of(side, size, index):  # type: ignore[no-untyped-def]
    return _place_of(side, size) + index * LAYOUT.total


@kernel("int64(int64, int64)")
def _vector_of(side, size):  # type: ignore[no-untyped-def]
    return _layout_of(side, size, size)


@kernel("int64(int64)")
def _side_bytes(size):  # type: ignore[no-untyped-def]
    return _vector_of(0, size) + VECTOR.total + 16 * size


@kernel("int64(int64, int64, int64, int64)")
def _read_one(spec, vector, layouts, side):  # type: ignore[no-untyped-def]
    """Read one block: 1, or 0."""
    places = vector + VECTOR.total
    store64(places + 8, 0)
    if read_block(spec, vector) != NONE:
        store64(places, load64(vector + VECTOR.nbytes))
        return 1
    count = read_laid_out_blocks(spec, 1, vector, layouts)
    if count < 0:
        store64(layouts + LAYOUT.key, 0)
        return 0
    store64(side + SIDE.is_derived, 1)
    store64(places, count * load64(layouts + LAYOUT.size))
    return 1


@kernel("int64(int64, int64, int64, int64)")
def _read(side, spec, kind, size):  # type: ignore[no-untyped-def]
    """Read what is given for a side of one block, or of one for each rank: 1, or 0."""
    vector, layouts = _vector_of(side, size), _layout_of(side, size, 0)
    if load64(side + SIDE.blocks) == 1 and kind != TYPED:
        return _read_one(spec, vector, layouts, side)
    if kind == TYPED:
        store64(side + SIDE.is_derived, 1)
        return 1 if read_laid_out(spec, size, vector, layouts) != NONE else 0
    if read_vector(spec, size, vector) != NONE:
        return 1
    store64(side + SIDE.is_derived, 1)
    return 1 if read_laid_out_vector(spec, size, vector, layouts) != NONE else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _open(side, spec, kind, size, is_written):  # type: ignore[no-untyped-def]
    """Describe a side, and pack what is to be given: 1, or 0. Either way :func:`_close` it."""
    if _read(side, spec, kind, size) == 0:
        return 0
    vector, total, blocks = _vector_of(side, size), 0, load64(side + SIDE.blocks)
    if is_written != 0 and load64(vector + VECTOR.writable) == 0:
        return 0
    sizes, origin = vector + VECTOR.total, load64(vector + VECTOR.address)
    for index in range(blocks):
        place, layout = _place_of(side, index), _layout_of(side, size, index)
        nbytes, address = load64(sizes + 8 * index), origin + load64(sizes + 8 * (blocks + index))
        store64(place + PLACE.nbytes, nbytes)
        store64(place + PLACE.origin, address)
        store64(place + PLACE.address, address)
        if load64(layout + LAYOUT.key) != 0:
            total += nbytes
    if total > LONGEST:
        return 0
    if total > 0:
        packed = allocate(total)
        store64(side + SIDE.packed, packed)
        if packed == 0:
            return 0
        _pack(side, size, packed, is_written)
    return 1


@kernel("void(int64, int64, int64, int64)")
def _pack(side, size, packed, is_written):  # type: ignore[no-untyped-def]
    """Give each block with gaps its part of the packed memory, and fill that if it is to be given."""
    for index in range(load64(side + SIDE.blocks)):
        place, layout = _place_of(side, index), _layout_of(side, size, index)
        if load64(layout + LAYOUT.key) != 0:
            nbytes = load64(place + PLACE.nbytes)
            store64(place + PLACE.address, packed)
            if is_written == 0:
                pack_row(layout, load64(place + PLACE.origin), nbytes, packed)
            packed += nbytes


@kernel("void(int64, int64)")
def _unpack(side, size):  # type: ignore[no-untyped-def]
    """Put what was received where it belongs."""
    for index in range(load64(side + SIDE.blocks)):
        place, layout = _place_of(side, index), _layout_of(side, size, index)
        if load64(layout + LAYOUT.key) != 0:
            unpack_row(layout, load64(place + PLACE.address), load64(place + PLACE.nbytes), load64(place + PLACE.origin))


@kernel("void(int64, int64)")
def _close(side, size):  # type: ignore[no-untyped-def]
    """Hold nothing of a side any more. Any Python code may run."""
    if load64(side + SIDE.packed) != 0:
        release(load64(side + SIDE.packed))
    let_go(_vector_of(side, size))
    let_layouts_go(_layout_of(side, size, 0), size)


@kernel("void(int64, int64, int64, int64, int64)")
def _place(rows, column, side, size, root):  # type: ignore[no-untyped-def]
    """Write the blocks of a side to one column of the rows; the one of a side that has no more goes to the root, or comes from there."""
    blocks = load64(side + SIDE.blocks)
    for index in range(blocks):
        row, place = rows + (index if blocks == size else root) * ROW.total + column, _place_of(side, index)
        store64(row, load64(place + PLACE.address))
        store64(row + 8, load64(place + PLACE.nbytes))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _run(comm, kind, root, sent, received, rows):  # type: ignore[no-untyped-def]
    """Carry out what both sides say: 0, SLOW, or the code of a failure."""
    size, own = load64(comm + COMM.size), load64(comm + COMM.rank)
    if kind == ALLGATHER:
        return _spread(comm, sent, received, rows)
    fill(rows, 0, size * ROW.total)
    _place(rows, ROW.send, sent, size, root)
    _place(rows, ROW.recv, received, size, root)
    row = rows + own * ROW.total
    is_alike = load64(row + ROW.send_bytes) == load64(row + ROW.recv_bytes)
    if load64(sent + SIDE.blocks) > 0 and load64(received + SIDE.blocks) > 0 and not is_alike:
        return SLOW
    return exchange(comm, ALLTOALL if kind == TYPED else kind, root, rows)


@kernel("int64(int64, int64, int64, int64)")
def _spread(comm, sent, received, table):  # type: ignore[no-untyped-def]
    """An allgatherv."""
    own, longest = _place_of(received, load64(comm + COMM.rank)), 0
    if load64(_place_of(sent, 0) + PLACE.nbytes) != load64(own + PLACE.nbytes):
        return SLOW
    for index in range(load64(comm + COMM.size)):
        place, block = _place_of(received, index), table + index * BLOCK.total
        store64(block + BLOCK.recv, load64(place + PLACE.address))
        store64(block + BLOCK.nbytes, load64(place + PLACE.nbytes))
        longest = max(longest, load64(place + PLACE.nbytes))
    return allgather_blocks(comm, load64(_place_of(sent, 0) + PLACE.address), table, longest)


@kernel("UniTuple(int64, 2)(int64, int64, boolean)")
def _blocks(kind, size, is_root):  # type: ignore[no-untyped-def]
    """How many blocks this rank gives, and gets."""
    given, taken = 1 if kind in (GATHER, ALLGATHER) else size, 1 if kind == SCATTER else size
    if kind == SCATTER and not is_root:
        given = 0
    if kind == GATHER and not is_root:
        taken = 0
    return given, taken


@kernel(types.int64(types.int64, types.int64, object_argument, object_argument, index_argument), is_entry=True, nogil=False)
def exchange_derived_vectors(comm, kind, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Gatherv, Scatterv, Allgatherv, Alltoallv or Alltoallw (`kind` TYPED), of elements of which some are of derived datatypes.

    0, SLOW, or the code of a failure.
    """
    size, rank, root, code = load64(comm + COMM.size), load64(comm + COMM.rank), index_of(root_rank), SLOW
    if is_planned(comm, ALLTOALL if kind == TYPED else kind) != 0 or root < 0 or root >= size:
        return SLOW
    rows = working_memory(comm, size * ROW.total + 2 * _side_bytes(size))
    if rows == 0:
        return NO_MEMORY
    sent = rows + size * ROW.total
    received = sent + _side_bytes(size)
    fill(sent, 0, 2 * _side_bytes(size))
    given, taken = _blocks(kind, size, rank == root)
    store64(sent + SIDE.blocks, given)
    store64(received + SIDE.blocks, taken)
    is_open = given == 0 or _open(sent, object_of(send), kind, size, 0) != 0
    if is_open and taken > 0:
        is_open = _open(received, object_of(recv), kind, size, 1) != 0
    if is_open and load64(sent + SIDE.is_derived) | load64(received + SIDE.is_derived) != 0:
        code = _run(comm, kind, root, sent, received, rows)
        if code == 0:
            _unpack(received, size)
    _close(sent, size)
    _close(received, size)
    release(rows)
    return code

"""Blocking neighbourhood collectives of arrays: checked, laid out and carried out in one compiled call.

As in :mod:`ncclx_mpi.collectives.fast`, whatever is not plain or not valid returns SLOW with nothing done; so does the first call of a
communicator, whose edges compiled code does not know yet, and of a derived datatype (:mod:`numba_kernels.pylayouts`).
"""

from __future__ import annotations

from ncclx_mpi.collectives.neighbor_alltoall.shm_edges import exchange
from ncclx_mpi.collectives.neighborhood import EDGES, NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, PART
from ncclx_mpi.collectives.ready import SLOW
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, working_memory
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import fill, release
from numba_kernels.pylayouts import LAYOUT, let_layouts_go, read_laid_out
from numba_kernels.pyobject import NONE, object_argument, object_of
from numba_kernels.pysequence import VECTOR, let_go, read_block, read_vector

ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW = range(5)
"""Which collective :func:`exchange_neighbors` is."""
_ONE, _EQUAL, _ANY, _TYPED = range(4)
"""Blocks of an argument: one, of equal length, of any, of types of their own."""


@kernel("int64(int64)")
def given_blocks(which):  # type: ignore[no-untyped-def]
    """What blocks are sent."""
    if which <= ALLGATHERV:
        return _ONE
    return taken_blocks(which)


@kernel("int64(int64)")
def taken_blocks(which):  # type: ignore[no-untyped-def]
    """What blocks are received."""
    if which == ALLTOALLW:
        return _TYPED
    return _EQUAL if which in (ALLGATHER, ALLTOALL) else _ANY


@kernel("void(int64, int64, int64, int64)")
def _place(part, address, nbytes, layout):  # type: ignore[no-untyped-def]
    store64(part + PART.address, address)
    store64(part + PART.nbytes, nbytes)
    store64(part + PART.layout, layout)


@kernel("int64(int64, int64, int64, int64)")
def _read_equal(spec, degree, vector, parts):  # type: ignore[no-untyped-def]
    """Read `degree` equal blocks of an array: 1, or 0 if it is not plain, or has no equal blocks."""
    if read_block(spec, vector) == NONE:
        return 0
    address, nbytes = load64(vector + VECTOR.address), load64(vector + VECTOR.nbytes) // degree
    if nbytes * degree != load64(vector + VECTOR.nbytes) or nbytes % load64(vector + VECTOR.itemsize) != 0:
        let_go(vector)
        return 0
    for index in range(degree):
        _place(parts + index * PART.total, address + index * nbytes, nbytes, 0)
    return 1


@kernel("int64(int64, int64, int64, int64)")
def read_side(blocks, spec, degree, side):  # type: ignore[no-untyped-def]
    """Read what one side gives: 1, or 0 if it is not plain or not valid."""
    vector, parts, layouts = side, parts_of(side, degree), _layouts_of(side, degree)
    if blocks <= _EQUAL:
        return _read_equal(spec, 1 if blocks == _ONE else degree, vector, parts)
    found = read_vector(spec, degree, vector) if blocks == _ANY else read_laid_out(spec, degree, vector, layouts)
    if found == NONE:
        return 0
    sizes = vector + VECTOR.total
    for index in range(degree):
        layout = layouts + index * LAYOUT.total
        has_gaps = load64(layout + LAYOUT.key) != 0
        address = load64(vector + VECTOR.address) + load64(sizes + 8 * (degree + index))
        _place(parts + index * PART.total, address, load64(sizes + 8 * index), layout if has_gaps else 0)
    return 1


@kernel("int64(int64, int64)")
def parts_of(side, degree):  # type: ignore[no-untyped-def]
    """Where the blocks of a side are, which begins with a vector."""
    return side + VECTOR.total + 16 * degree


@kernel("int64(int64, int64)")
def _layouts_of(side, degree):  # type: ignore[no-untyped-def]
    return parts_of(side, degree) + degree * PART.total


@kernel("int64(int64)")
def side_bytes(degree):  # type: ignore[no-untyped-def]
    """Bytes to work in for one side."""
    return _layouts_of(0, degree) + degree * LAYOUT.total


@kernel("void(int64, int64)")
def empty_side(side, degree):  # type: ignore[no-untyped-def]
    """A side of which nothing has been read owns nothing."""
    store64(side + VECTOR.array, 0)
    fill(_layouts_of(side, degree), 0, degree * LAYOUT.total)


@kernel("void(int64, int64)")
def let_side_go(side, degree):  # type: ignore[no-untyped-def]
    let_go(side)
    let_layouts_go(_layouts_of(side, degree), degree)


@kernel(types.int64(types.int64, types.int64, object_argument, object_argument), is_entry=True, nogil=False)
def exchange_neighbors(comm, which, send, recv):  # type: ignore[no-untyped-def]
    """Neighbor_allgather(v), Neighbor_alltoall(v, w) of plain arrays: 0, SLOW, or the code of a failure."""
    edges = load64(comm + COMM.edges)
    if edges == 0 or load64(edges + EDGES.indegree) == 0 or load64(edges + EDGES.outdegree) == 0:
        return SLOW
    indegree, outdegree, code = load64(edges + EDGES.indegree), load64(edges + EDGES.outdegree), SLOW
    given = working_memory(comm, side_bytes(indegree) + side_bytes(outdegree))
    if given == 0:
        return NO_MEMORY
    taken = given + side_bytes(outdegree)
    empty_side(given, outdegree)
    empty_side(taken, indegree)
    is_read = read_side(given_blocks(which), object_of(send), outdegree, given) != 0
    if is_read and read_side(taken_blocks(which), object_of(recv), indegree, taken) != 0 and load64(taken + VECTOR.writable) != 0:
        kind = NEIGHBOR_ALLGATHER if which <= ALLGATHERV else NEIGHBOR_ALLTOALL
        code = exchange(comm, kind, parts_of(given, outdegree), parts_of(taken, indegree))
    let_side_go(given, outdegree)
    let_side_go(taken, indegree)
    release(given)
    return code

"""Blocking neighbourhood collectives of plain arrays: checked, laid out and carried out in one compiled call.

As in :mod:`ncclx_mpi.collectives.fast`, whatever is not plain or not valid returns SLOW with nothing done; so does the first call of a
communicator, whose edges compiled code does not know yet.
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
from numba_kernels.memory import release
from numba_kernels.pyobject import NONE, object_argument, object_of
from numba_kernels.pysequence import VECTOR, hold, let_go, read_block, read_typed_vector, read_vector

ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW = range(5)
"""Which collective :func:`exchange_neighbors` is."""
_ONE, _EQUAL, _ANY, _TYPED = range(4)
"""Blocks of an argument: one, of equal length, of any, of types of their own."""


@kernel("int64(int64)")
def _given(which):  # type: ignore[no-untyped-def]
    """What blocks are sent."""
    if which <= ALLGATHERV:
        return _ONE
    return _taken(which)


@kernel("int64(int64)")
def _taken(which):  # type: ignore[no-untyped-def]
    """What blocks are received."""
    if which == ALLTOALLW:
        return _TYPED
    return _EQUAL if which in (ALLGATHER, ALLTOALL) else _ANY


@kernel("void(int64, int64, int64)")
def _place(part, address, nbytes):  # type: ignore[no-untyped-def]
    store64(part + PART.address, address)
    store64(part + PART.nbytes, nbytes)
    store64(part + PART.layout, 0)


@kernel("int64(int64, int64, int64, int64)")
def _read_equal(spec, degree, vector, parts):  # type: ignore[no-untyped-def]
    """Read `degree` equal blocks of an array: 1, or 0 if it is not plain, or has no equal blocks."""
    if read_block(spec, vector) == NONE:
        return 0
    address, nbytes = load64(vector + VECTOR.address), load64(vector + VECTOR.nbytes) // degree
    if nbytes * degree != load64(vector + VECTOR.nbytes) or nbytes % load64(vector + VECTOR.itemsize) != 0:
        return 0
    for index in range(degree):
        _place(parts + index * PART.total, address + index * nbytes, nbytes)
    return 1


@kernel("int64(int64, int64, int64, int64, int64)")
def _read(blocks, spec, degree, vector, parts):  # type: ignore[no-untyped-def]
    """Read what one side gives: 1, or 0 if it is not plain or not valid."""
    if blocks <= _EQUAL:
        return _read_equal(spec, 1 if blocks == _ONE else degree, vector, parts)
    found = read_vector(spec, degree, vector) if blocks == _ANY else read_typed_vector(spec, degree, vector)
    if found == NONE:
        return 0
    sizes = vector + VECTOR.total
    for index in range(degree):
        offset = load64(sizes + 8 * (degree + index))
        _place(parts + index * PART.total, load64(vector + VECTOR.address) + offset, load64(sizes + 8 * index))
    return 1


@kernel("int64(int64)")
def _side_bytes(degree):  # type: ignore[no-untyped-def]
    """Bytes to work in for one side."""
    return VECTOR.total + degree * (16 + PART.total)


@kernel(types.int64(types.int64, types.int64, object_argument, object_argument), is_entry=True, nogil=False)
def exchange_neighbors(comm, which, send, recv):  # type: ignore[no-untyped-def]
    """Neighbor_allgather(v), Neighbor_alltoall(v, w) of plain arrays: 0, SLOW, or the code of a failure."""
    edges = load64(comm + COMM.edges)
    if edges == 0 or load64(edges + EDGES.indegree) == 0 or load64(edges + EDGES.outdegree) == 0:
        return SLOW
    indegree, outdegree, code = load64(edges + EDGES.indegree), load64(edges + EDGES.outdegree), SLOW
    given = working_memory(comm, _side_bytes(indegree) + _side_bytes(outdegree))
    if given == 0:
        return NO_MEMORY
    taken = given + _side_bytes(outdegree)
    store64(given + VECTOR.array, 0)
    store64(taken + VECTOR.array, 0)
    sent, received = taken - outdegree * PART.total, taken + _side_bytes(indegree) - indegree * PART.total
    is_read = _read(_given(which), object_of(send), outdegree, given, sent) != 0
    if is_read and _read(_taken(which), object_of(recv), indegree, taken, received) != 0 and load64(taken + VECTOR.writable) != 0:
        hold(given)
        hold(taken)
        code = exchange(comm, NEIGHBOR_ALLGATHER if which <= ALLGATHERV else NEIGHBOR_ALLTOALL, sent, received)
        let_go(given)
        let_go(taken)
    release(given)
    return code

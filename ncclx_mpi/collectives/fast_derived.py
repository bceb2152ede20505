"""Blocking collectives of derived datatypes: packed, carried out as those of plain arrays, and unpacked in one compiled call.

::

    array  ──pack──▶  memory of the call  ──bcast, gather, ...──▶  memory of the call  ──unpack──▶  array

Elements without gaps stay where they are, and so does the side of a call that is a plain array. Ranks that come by this way, by that of
plain arrays (:mod:`ncclx_mpi.collectives.fast`) or through Python meet, as they give the same bytes. As there, whatever is not known to
compiled code (:mod:`numba_kernels.pylayouts`), not valid, or long returns SLOW with nothing done.
"""

from __future__ import annotations

from ncclx_mpi.collectives.fast import SLOW, allgather_memory, alltoall_memory, bcast_memory, gather_memory, scatter_memory
from ncclx_mpi.collectives.operands import all_blocks
from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, BCAST, GATHER, SCATTER
from ncclx_mpi.p2p.gaps import LONGEST
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate, make_stack, release
from numba_kernels.pylayouts import LAYOUT, is_dense, pack_row, read_laid_out_blocks, unpack_row
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    array_of,
    element_of,
    index_argument,
    index_of,
    nbytes_of,
    writable_of,
)
from numba_kernels.pysequence import VECTOR
from numba_kernels.pyslots import decrease

SIDE = words("Side", "address nbytes origin packed array is_derived")
"""One side of a call: its memory without gaps, and where the elements begin; the memory that is the call's own, or 0; the object that has the
array, or 0, of which a reference is owned. The layout of the elements follows, owned too unless its key is 0; and a vector to work in."""
_sent_words, _received_words = (make_stack((SIDE.total + LAYOUT.total + VECTOR.total) // 8) for _ in range(2))


@kernel("void(int64)")
def _empty(side):  # type: ignore[no-untyped-def]
    """A side that does not matter on this rank."""
    for word in range((SIDE.total + LAYOUT.total) // 8):
        store64(side + 8 * word, 0)


@kernel(types.int64(types.int64, types.int64, array_argument, types.int64, types.int64))
def _open(comm, side, argument, blocks, is_written):  # type: ignore[no-untyped-def]
    """Describe an operand of one block, or of one for each rank: 1, or 0. Either way :func:`_close` it."""
    row, vector = side + SIDE.total, side + SIDE.total + LAYOUT.total
    if element_of(argument) != NONE:
        store64(side + SIDE.address, address_of(argument))
        nbytes = all_blocks(comm, argument) if blocks > 1 else nbytes_of(argument)
        store64(side + SIDE.nbytes, nbytes)
        return 0 if nbytes < 0 or nbytes % blocks != 0 or (is_written != 0 and writable_of(argument) == 0) else 1
    count = read_laid_out_blocks(array_of(argument), blocks, vector, row)
    if count < 0:
        store64(row + LAYOUT.key, 0)
        return 0
    nbytes, origin = count * load64(row + LAYOUT.size), load64(vector + VECTOR.address)
    store64(side + SIDE.array, load64(vector + VECTOR.array))
    store64(side + SIDE.nbytes, nbytes)
    store64(side + SIDE.origin, origin)
    store64(side + SIDE.is_derived, 1)
    if nbytes > LONGEST or (is_written != 0 and load64(vector + VECTOR.writable) == 0):
        return 0
    if nbytes == 0 or is_dense(row, count) != 0:
        store64(side + SIDE.address, origin + load64(row + LAYOUT.low))
        return 1
    packed = allocate(nbytes)
    store64(side + SIDE.packed, packed)
    store64(side + SIDE.address, packed)
    if packed != 0 and is_written == 0:
        pack_row(row, origin, nbytes, packed)
    return 1 if packed != 0 else 0


@kernel("void(int64, int64)")
def _close(side, is_received):  # type: ignore[no-untyped-def]
    """Put what was received where it belongs, and hold nothing of a side any more. Any Python code may run."""
    row, packed = side + SIDE.total, load64(side + SIDE.packed)
    if packed != 0 and is_received != 0:
        unpack_row(row, packed, load64(side + SIDE.nbytes), load64(side + SIDE.origin))
    if packed != 0:
        release(packed)
    decrease(load64(side + SIDE.array))
    decrease(load64(row + LAYOUT.key))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _run(comm, kind, sent, received, nbytes, root):  # type: ignore[no-untyped-def]
    """Carry a collective out in which each block has `nbytes`: 0, or the code of a failure."""
    source, target = load64(sent + SIDE.address), load64(received + SIDE.address)
    if kind == BCAST:
        return bcast_memory(comm, source if load64(comm + COMM.rank) == root else target, nbytes, root)
    if kind == GATHER:
        return gather_memory(comm, source, nbytes, target, root)
    if kind == SCATTER:
        return scatter_memory(comm, source, target, nbytes, root)
    return allgather_memory(comm, source, nbytes, target) if kind == ALLGATHER else alltoall_memory(comm, source, target, nbytes)


@kernel(types.int64(types.int64, types.int64, array_argument, array_argument, index_argument), is_entry=True, nogil=False)
def exchange_derived(comm, kind, send, recv, root_rank):  # type: ignore[no-untyped-def]
    """Bcast (of `send`, which is `recv`), Gather, Scatter, Allgather or Alltoall of elements of which some are of derived datatypes.

    0, SLOW, or the code of a failure.
    """
    size, rank, root, code = load64(comm + COMM.size), load64(comm + COMM.rank), index_of(root_rank), SLOW
    if is_planned(comm, kind) != 0 or root < 0 or root >= size:
        return SLOW
    sent, received = _sent_words(), _received_words()
    _empty(sent)
    _empty(received)
    given, taken = _blocks(kind, size, rank == root)
    is_open = given == 0 or _open(comm, sent, send, given, 0) != 0
    if is_open and taken > 0:
        is_open = _open(comm, received, recv, taken, 1) != 0
    nbytes = load64(sent + SIDE.nbytes) // given if given > 0 else load64(received + SIDE.nbytes) // taken
    is_alike = given == 0 or taken == 0 or nbytes * taken == load64(received + SIDE.nbytes)
    if is_open and is_alike and load64(sent + SIDE.is_derived) | load64(received + SIDE.is_derived) != 0:
        code = _run(comm, kind, sent, received, nbytes, root)
    _close(sent, 0)
    _close(received, 1 if code == 0 else 0)
    return code


@kernel("UniTuple(int64, 2)(int64, int64, boolean)")
def _blocks(kind, size, is_root):  # type: ignore[no-untyped-def]
    """How many blocks this rank gives, and gets."""
    given = size if kind == ALLTOALL or (kind == SCATTER and is_root) else 1
    taken = size if kind in (ALLGATHER, ALLTOALL) or (kind == GATHER and is_root) else 1
    if kind in (BCAST, SCATTER) and not is_root:
        given = 0
    if (kind == BCAST and is_root) or (kind == GATHER and not is_root):
        taken = 0
    return given, taken

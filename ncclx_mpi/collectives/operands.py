"""Whether plain arrays are the operands of a collective, for the calls that never leave compiled code.

Each function returns 0 unless the root is a rank, and the arrays that matter on this rank are plain, of one type, of sizes that fit each
other, and writable where they are written; the same array may be both. Those named ``of_`` return 0, too, unless the collective goes
through the communicator's slot.
Reductions return the address of their function for the elements, all others 1. ``functions`` is the table of the
operation (:mod:`ncclx_mpi.collectives.fast`).
"""

from __future__ import annotations

from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, BCAST, GATHER, REDUCE, REDUCE_SCATTER, SCATTER
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    element_of,
    is_counted,
    is_in_place,
    itemsize_of,
    nbytes_of,
    room_of,
    writable_of,
)


@kernel("int64(int64, int64)")
def _is_root(comm, root):  # type: ignore[no-untyped-def]
    return 1 if load64(comm + COMM.rank) == root else 0


@kernel("int64(int64, int64)")
def _is_rank(comm, root):  # type: ignore[no-untyped-def]
    """Whether `root` is a rank: it comes from the program."""
    return 1 if 0 <= root < load64(comm + COMM.size) else 0


@kernel(types.int64(array_argument, array_argument))
def _pair(send, recv):  # type: ignore[no-untyped-def]
    """Whether elements of one type can go from the first array to the second."""
    element = element_of(recv)
    return 1 if element != NONE and element == element_of(send) and writable_of(recv) != 0 else 0


@kernel(types.int64(types.int64, array_argument))
def all_blocks(comm, array):  # type: ignore[no-untyped-def]
    """Bytes of an array that holds a block for each rank: a count is that of one block. -1 if they are not there."""
    nbytes, size = nbytes_of(array), max(load64(comm + COMM.size), 1)
    if is_counted(array) == 0:
        return nbytes
    return nbytes * size if nbytes <= room_of(array) // size else -1


@kernel(types.int64(types.int64, array_argument, array_argument))
def holds_blocks(comm, block, array):  # type: ignore[no-untyped-def]
    """Whether elements of a block can go to an array that has room for one from each rank."""
    return 1 if _pair(block, array) != 0 and nbytes_of(block) * load64(comm + COMM.size) == all_blocks(comm, array) else 0


@kernel(types.int64(types.int64, array_argument))
def own_block(comm, array):  # type: ignore[no-untyped-def]
    """Bytes of the block of each rank in an array where a rank's own is, too; -1 if they do not fit."""
    size, total = load64(comm + COMM.size), all_blocks(comm, array)
    if element_of(array) == NONE or total < 0 or total % (size * itemsize_of(array)) != 0:
        return -1
    return total // size


@kernel(types.int64(types.int64, types.int64, array_argument))
def at_root(comm, root, array):  # type: ignore[no-untyped-def]
    """Address of an array that matters at the root only; elsewhere 0."""
    return address_of(array) if load64(comm + COMM.rank) == root else 0


@kernel(types.int64(types.int64, array_argument, types.int64))
def of_bcast(comm, argument, root):  # type: ignore[no-untyped-def]
    """The array is read at the root and written elsewhere."""
    return spread_from(comm, argument, root) if is_planned(comm, BCAST) == 0 else 0


@kernel(types.int64(array_argument, array_argument, types.int64))
def reduced(send, recv, functions):  # type: ignore[no-untyped-def]
    """As many elements in as out."""
    if _pair(send, recv) == 0 or nbytes_of(send) != nbytes_of(recv):
        return 0
    return load64(functions + 8 * element_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def reduced_in_blocks(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """`send` holds a block of the size of `recv` for each rank."""
    if _pair(send, recv) == 0 or all_blocks(comm, send) != nbytes_of(recv) * load64(comm + COMM.size):
        return 0
    return load64(functions + 8 * element_of(recv))


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64))
def reduced_to(comm, send, recv, functions, root):  # type: ignore[no-untyped-def]
    """`recv` matters at the root only."""
    if element_of(send) == NONE or _is_rank(comm, root) == 0:
        return 0
    if _is_root(comm, root) != 0 and (_pair(send, recv) == 0 or nbytes_of(send) != nbytes_of(recv)):
        return 0
    return load64(functions + 8 * element_of(send))


@kernel(types.int64(types.int64, array_argument, types.int64))
def spread_from(comm, argument, root):  # type: ignore[no-untyped-def]
    """The array is read at the root and written elsewhere."""
    if element_of(argument) == NONE or _is_rank(comm, root) == 0:
        return 0
    return 1 if writable_of(argument) != 0 or _is_root(comm, root) != 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def gathered_to(comm, send, recv, root):  # type: ignore[no-untyped-def]
    """`recv`, which matters at the root only, holds a block of the size of `send` for each rank."""
    if element_of(send) == NONE or _is_rank(comm, root) == 0:
        return 0
    return 1 if _is_root(comm, root) == 0 or holds_blocks(comm, send, recv) != 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def scattered_from(comm, send, recv, root):  # type: ignore[no-untyped-def]
    """`send`, which matters at the root only, holds a block of the size of `recv` for each rank."""
    if element_of(recv) == NONE or writable_of(recv) == 0 or _is_rank(comm, root) == 0:
        return 0
    if _is_root(comm, root) == 0:
        return 1
    return 1 if _pair(send, recv) != 0 and all_blocks(comm, send) == nbytes_of(recv) * load64(comm + COMM.size) else 0


@kernel(types.int64(types.int64, array_argument, array_argument))
def exchanged(comm, send, recv):  # type: ignore[no-untyped-def]
    """Both hold as many elements for each rank."""
    total = all_blocks(comm, recv)
    if _pair(send, recv) == 0 or total < 0 or all_blocks(comm, send) != total:
        return 0
    return 1 if total // itemsize_of(recv) % load64(comm + COMM.size) == 0 else 0


@kernel(types.int64(types.int64, types.int64, array_argument, array_argument, types.int64))
def of_reduction(comm, kind, send, recv, functions):  # type: ignore[no-untyped-def]
    """Allreduce and scans: as many elements in as out."""
    return reduced(send, recv, functions) if is_planned(comm, kind) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64))
def of_reduce(comm, send, recv, functions, root):  # type: ignore[no-untyped-def]
    """`recv` matters at the root only."""
    return reduced_to(comm, send, recv, functions, root) if is_planned(comm, REDUCE) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def of_reduce_scatter_block(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """`send` holds a block of the size of `recv` for each rank."""
    return reduced_in_blocks(comm, send, recv, functions) if is_planned(comm, REDUCE_SCATTER) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument))
def of_allgather(comm, send, recv):  # type: ignore[no-untyped-def]
    """`recv` holds a block of the size of `send` for each rank."""
    return holds_blocks(comm, send, recv) if is_planned(comm, ALLGATHER) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument))
def of_alltoall(comm, send, recv):  # type: ignore[no-untyped-def]
    """Both hold as many elements for each rank."""
    return exchanged(comm, send, recv) if is_planned(comm, ALLTOALL) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def of_gather(comm, send, recv, root):  # type: ignore[no-untyped-def]
    """`recv`, which matters at the root only, holds a block of the size of `send` for each rank."""
    return gathered_to(comm, send, recv, root) if is_planned(comm, GATHER) == 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64))
def of_scatter(comm, send, recv, root):  # type: ignore[no-untyped-def]
    """`send`, which matters at the root only, holds a block of the size of `recv` for each rank."""
    return scattered_from(comm, send, recv, root) if is_planned(comm, SCATTER) == 0 else 0


@kernel(types.int64(types.int64, types.int64, array_argument, array_argument))
def of_in_place(comm, kind, own, whole):  # type: ignore[no-untyped-def]
    """`own` says that this rank's block is in `whole`, which holds one for each rank; whether that is written matters to the caller."""
    return 1 if is_in_place(own) != 0 and is_planned(comm, kind) == 0 and own_block(comm, whole) >= 0 else 0

"""Memory of a window that all its ranks load from and store to: one piece of the arena, cut among them in the order of ranks."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ncclx_mpi import collectives, errors
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.rma.window import Part
from numba_kernels.layout import WORD

_MOST_BYTES = 1 << 62
"""More than any machine has, and less than a word holds."""


def shared_part(comm: NativeComm, size: Callable[[], int], unit: Callable[[], int]) -> Part:
    """Make this rank's part of a shared window. Collective; rank 0 allocates, and gives back.

    Parameters
    ----------
    comm
        Its ranks.
    size, unit
        Return the bytes of this rank's segment and the unit of displacements. If one raises, no rank gets memory, and this one raises it.

    Raises
    ------
    Exception
        ERR_RMA_SHARED: some ranks share no memory. ERR_NO_MEM: there is none left.
    """
    if not all(map(comm.engine.is_near, comm.world_ranks)):
        errors.fail(
            errors.ERR_RMA_SHARED,
            f"rank {comm.rank}: Win.Allocate_shared: the communicator has ranks of several nodes; "
            "Split_type(MPI.COMM_TYPE_SHARED) makes one for each",
        )
    failure: Exception | None = None
    try:
        nbytes, step = size(), unit()
    except Exception as error:
        failure, nbytes, step = error, -1, 1
    sizes = [given for (given,) in collectives.gather_words(comm, min(nbytes, _MOST_BYTES))]  # their sum may be larger than a word
    if failure is not None:
        raise failure
    if min(sizes) < 0:
        return Part(0, 0, 1)  # the rank that failed makes the window fail on all
    arena = comm.engine.arena
    heap = arena.open_heap(comm.engine.local_rank)
    offset = array("q", [-1])
    if comm.rank == 0:
        try:
            offset[0] = heap.allocate(sum(sizes)) - arena.base
        except MemoryError as error:
            failure = error
    collectives.bcast(comm, offset.buffer_info()[0], WORD, 0)
    if offset[0] < 0:
        why = f": {failure}" if failure is not None else ""
        errors.fail(errors.ERR_NO_MEM, f"rank {comm.rank}: Win.Allocate_shared: {sum(sizes)} bytes{why}")
    first = arena.base + offset[0]
    release = (lambda: heap.free(first)) if comm.rank == 0 else None
    return Part(first + sum(sizes[: comm.rank]), nbytes, step, None, release)

"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena, and what the settings force (:mod:`ncclx_mpi.algorithms`). :func:`on_lines` is
compiled too, :func:`is_planned` and :func:`chunk_items`, so that calls which never leave compiled code choose by the very same table.

====================  =======================================================  ========================================================
algorithm             chosen for                                               what runs where it is forced and cannot serve the call
====================  =======================================================  ========================================================
``shm_oneshot``       up to ``LINES_UPTO`` bytes; one rank; nothing to move    more than ``BIG`` bytes: as if none was forced
``shm_pipelined``     more, if it is the faster                                elements over ``LARGEST_ITEM`` to reduce: a plan
``cma``               more, if it is the faster                                buffers that the kernel does not copy: ``shm_pipelined``
the first plan        no slot in the arena; non-blocking and persistent calls  serves all
                      with counts or operations in Python, large scans
``reduce_scatter_*``  as that, from ``SCATTERED_FROM`` bytes                   serves all
====================  =======================================================  ========================================================

Where a communicator has no slot, forced algorithms of the slot are a plan, and so is ``shm_pipelined`` in non-blocking and persistent calls,
which otherwise go directly beyond lines, without trials, where all ranks let the kernel copy, and else as a plan. Alltoallv, alltoallw,
gatherv and scatterv have one algorithm on the slot, ``shm_vector``, whichever of its algorithms is forced. Forced algorithms are
the host's: arrays on devices are copied there for them.
"""

from __future__ import annotations

from ncclx_mpi.algorithms import FIRST_PLAN, ONESHOT, SHARED_WORK, UNFORCED
from ncclx_mpi.collectives.shm_oneshot import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
)
from ncclx_mpi.collectives.shm_pipelined import piece_of
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from transports.shm.slots import BIG, LEAST_CHUNK, split_chunk_bytes

PLAN, SMALL, LARGE = "plan", "small", "large"
"""A plan over messages; lines of the slot; streams of the slot."""

LINES_UPTO = {
    BARRIER: 0,
    BCAST: BIG,
    REDUCE: BIG,
    ALLREDUCE: 4 << 10,
    GATHER: BIG,
    SCATTER: BIG,
    ALLGATHER: BIG,
    ALLTOALL: BIG,
    REDUCE_SCATTER: BIG,
    SCAN: BIG,
    EXSCAN: BIG,
}
"""Bytes that one rank publishes up to which lines are used; never more than `BIG`."""
_UPTO = tuple(LINES_UPTO.get(kind, 0) for kind in range(max(LINES_UPTO) + 1))

SCATTERED_FROM = {REDUCE: 64 << 10, ALLREDUCE: 32 << 10}
"""Bytes of one contribution from which the plans of reductions share the work between all ranks."""

LARGEST_ITEM = LEAST_CHUNK
"""Bytes of an element up to which reductions are cut into chunks of whole elements."""


@kernel("int64(int64, int64)")
def _lines_upto(kind, forced):  # type: ignore[no-untyped-def]
    """Bytes that one rank publishes up to which lines are used; what is empty passes by them whatever is forced."""
    if forced == UNFORCED:
        return _UPTO[kind]
    return BIG if forced == ONESHOT else 0


@kernel("int64(int64, int64)")
def forced_of(comm, kind):  # type: ignore[no-untyped-def]
    """The number of the algorithm that is forced for a collective, UNFORCED for none."""
    return load64(comm + COMM.forced + 8 * kind)


@kernel("int64(int64, int64)")
def is_planned(comm, kind):  # type: ignore[no-untyped-def]
    """Whether a collective is left to plans."""
    return 1 if load64(comm + COMM.slot) == 0 or forced_of(comm, kind) >= FIRST_PLAN else 0


@kernel("int64(int64, int64, int64)")
def on_lines(comm, kind, published):  # type: ignore[no-untyped-def]
    """Whether a collective in which each rank publishes `published` bytes goes by lines; a rank that is alone passes by them."""
    return 1 if published <= _lines_upto(kind, forced_of(comm, kind)) or load64(comm + COMM.size) == 1 else 0


def algorithm(comm: NativeComm, kind: int, published: int) -> str:
    """PLAN, SMALL or LARGE for a collective in which each rank publishes up to `published` bytes."""
    forced = comm.forced[kind]
    if comm.slot < 0 or forced >= FIRST_PLAN:
        return PLAN
    return SMALL if published <= _lines_upto.py_func(kind, forced) else LARGE


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def chunk_items(size, nbytes, itemsize):  # type: ignore[no-untyped-def]
    """Elements of a chunk of a stream of up to `nbytes` that is reduced: whole lines of them where they are small."""
    items = min(piece_of(nbytes), split_chunk_bytes(size)) // itemsize
    return items // 64 * 64 if items >= 64 else items


def is_scattered(comm: NativeComm, kind: int, count: int, itemsize: int) -> bool:
    """Whether a reduction of `count` elements as a plan is cut into blocks, one for each rank."""
    forced, size = comm.forced[kind], comm.size
    if forced >= FIRST_PLAN:
        return forced in SHARED_WORK
    return size > 2 and count >= size and count * itemsize >= SCATTERED_FROM[kind]

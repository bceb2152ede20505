"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena. :func:`on_lines` is compiled too, and :func:`chunk_items`, so that
calls which never leave compiled code choose by the very same table.
"""

from __future__ import annotations

from ncclx_mpi.collectives.lines import (
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
from ncclx_mpi.collectives.streams import piece_of
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


@kernel("int64(int64, int64, int64)")
def on_lines(comm, kind, published):  # type: ignore[no-untyped-def]
    """Whether a collective in which each rank publishes `published` bytes goes by lines; a rank that is alone passes by them."""
    return 1 if published <= _UPTO[kind] or load64(comm + COMM.size) == 1 else 0


def algorithm(kind: int, has_slot: bool, published: int) -> str:
    """PLAN, SMALL or LARGE for a collective in which each rank publishes up to `published` bytes."""
    if not has_slot:
        return PLAN
    return SMALL if published <= LINES_UPTO[kind] else LARGE


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def chunk_items(size, nbytes, itemsize):  # type: ignore[no-untyped-def]
    """Elements of a chunk of a stream of up to `nbytes` that is reduced: whole lines of them where they are small."""
    items = min(piece_of(nbytes), split_chunk_bytes(size)) // itemsize
    return items // 64 * 64 if items >= 64 else items


def is_scattered(kind: int, size: int, count: int, itemsize: int) -> bool:
    """Whether a reduction of `count` elements as a plan is cut into blocks, one for each rank."""
    return size > 2 and count >= size and count * itemsize >= SCATTERED_FROM[kind]

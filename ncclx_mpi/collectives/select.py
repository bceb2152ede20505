"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena.
"""

from __future__ import annotations

from transports.shm.slots import BIG, MID, SHARED_CHUNK, split_chunk_bytes

SMALL, LARGE, PLAN = "small", "large", "plan"
"""On lines; on streams; by messages."""

SMALL_UP_TO = {
    "barrier": 0,
    "bcast": MID,
    "gather": MID,
    "scatter": MID,
    "allgather": MID,
    "alltoall": MID,
    "reduce": MID,
    "allreduce": MID,
    "reduce_scatter": MID,
    "scan": MID,
}
"""Largest contribution of a rank, in bytes, that goes by lines; never more than `BIG`."""
assert max(SMALL_UP_TO.values()) <= BIG

CHUNK = {
    "bcast": 128 << 10,
    "allgather": 128 << 10,
    "reduce": 64 << 10,
    "allreduce": 64 << 10,
    "reduce_scatter": 64 << 10,
    "scan": 64 << 10,
}
"""Bytes of a chunk of a stream."""
assert max(CHUNK.values()) <= SHARED_CHUNK

LARGEST_ITEM = 4 << 10
"""Bytes of an element that is still cut into chunks of whole elements, on any number of ranks."""

SCATTERED_FROM = {"reduce": 64 << 10, "allreduce": 32 << 10}
"""Bytes of one contribution from which the plans of reductions share the work between all ranks."""


def algorithm(name: str, has_slot: bool, nbytes: int) -> str:
    """SMALL, LARGE or PLAN for a collective to which each rank contributes `nbytes`."""
    if not has_slot:
        return PLAN
    return SMALL if nbytes <= SMALL_UP_TO[name] else LARGE


def chunk_items(name: str, size: int, itemsize: int) -> int:
    """Elements of a chunk of a reduction among `size` ranks."""
    return max(1, min(CHUNK[name], int(split_chunk_bytes.py_func(size))) // itemsize)


def is_scattered(name: str, size: int, count: int, itemsize: int) -> bool:
    """Whether a reduction of `count` elements is cut into blocks, one for each rank."""
    return size > 2 and count >= size and count * itemsize >= SCATTERED_FROM[name]

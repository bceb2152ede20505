"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena.
"""

from __future__ import annotations

SCATTERED_FROM = {"reduce": 64 << 10, "allreduce": 32 << 10}
"""Bytes of one contribution from which the plans of reductions share the work between all ranks."""


def is_scattered(name: str, size: int, count: int, itemsize: int) -> bool:
    """Whether a reduction of `count` elements is cut into blocks, one for each rank."""
    return size > 2 and count >= size and count * itemsize >= SCATTERED_FROM[name]

"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena. The first two functions are compiled too, so that the calls which never
leave compiled code choose by the very same rule.
"""

from __future__ import annotations

from numba_kernels.jit import kernel
from transports.shm.slots import BIG, MID

SCATTERED_FROM = {"reduce": 64 << 10, "allreduce": 32 << 10}
"""Bytes of one contribution from which the plans of reductions share the work between all ranks."""


@kernel("int64(int64, int64)")
def reduces_on_lines(nbytes, size):  # type: ignore[no-untyped-def]
    """Whether an allreduce goes by lines (one round) rather than streams (two rounds, but nobody reads all)."""
    return 1 if nbytes <= (MID if size <= 2 else BIG) else 0


@kernel("int64(int64)")
def sends_on_lines(nbytes):  # type: ignore[no-untyped-def]
    """Whether a bcast goes by lines (16 deep up to `MID`) rather than streams."""
    return 1 if nbytes <= MID else 0


def is_scattered(name: str, size: int, count: int, itemsize: int) -> bool:
    """Whether a reduction of `count` elements is cut into blocks, one for each rank."""
    return size > 2 and count >= size and count * itemsize >= SCATTERED_FROM[name]

"""How long a packet is on its way, and where it lies meanwhile: drawn, so that runs with one seed draw alike.

A packet that is sent at t may be read from ``t + delay + [0, jitter]`` on. One that has overtaken others waits for them in its place of the
wire (:mod:`transports.virtual.channel`), as packets do that a network delivers by several routes.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words

DELAYS = words("Delays", "delay jitter shuffled random")
"""Of a peer: ticks; whether places of its wire are drawn; the last number that was drawn."""
_FACTOR, _SUMMAND = 6364136223846793005, 1442695040888963407  # Knuth, MMIX
_MIXING = 0x9E3779B97F4A7C15


def first_number(seed: int, source: int, target: int) -> int:
    """Where the sequence of numbers for the packets from `source` to `target` begins."""
    mixed = ((seed << 24) ^ (source << 12) ^ target) * _MIXING + _SUMMAND
    return mixed & ((1 << 63) - 1)


@kernel("int64(int64, int64)")
def draw(delays, count):  # type: ignore[no-untyped-def]
    """A number from 0 to `count` - 1."""
    number = load64(delays + DELAYS.random) * _FACTOR + _SUMMAND
    store64(delays + DELAYS.random, number)
    return ((number >> 33) & 0x3FFFFFFF) % count


@kernel("int64(int64)")
def due_time(delays):  # type: ignore[no-untyped-def]
    """When a packet that is sent now may be read; 0: at once."""
    delay, jitter = load64(delays + DELAYS.delay), load64(delays + DELAYS.jitter)
    if delay + jitter == 0:
        return 0
    return ticks() + delay + draw(delays, jitter + 1)


@kernel("int64(int64, int64, int64)")
def first_place(delays, sent, count):  # type: ignore[no-untyped-def]
    """The place of a wire at which a sender that has sent so many packets begins to look for an empty one."""
    return sent % count if load64(delays + DELAYS.shuffled) == 0 else draw(delays, count)

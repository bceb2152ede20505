"""How far apart two cores are: the round trip of a flag between two processes that are pinned to them.

Under a hypervisor the two cores of one machine may be of one core complex in one minute (about 0.1 us) and of two in
the next (about 0.4 us), which changes every figure. So each round is bracketed by two looks.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import numpy as np

from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import entry
from transports.shm.store_kind import bounce

NEAR_US, FAR_US = 0.2, 0.25
NEAR, FAR, MIXED = "near", "far", "mixed"
"""The last one: between the two, or one before and the other after: the cores were moved."""
_BURSTS, _ROUNDS = 15, 2000
_PATIENCE_US = 200_000
_STRIDE = 32
"""Words of one burst: a line for each player, neither the other's neighbour."""


def flag_round_trip() -> float | None:
    """Round trip in microseconds between the first two allowed cores, median over bursts; None if there is one core only."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return None
    entry(bounce)
    rate = ticks_per_us()
    words = np.frombuffer(mmap.mmap(-1, 8 * _STRIDE * (_BURSTS + 1)), np.int64)
    for child in [_fork_player(words, cores[first], first, rate) for first in (0, 1)]:
        os.waitpid(child, 0)
    answered = words[1:_BURSTS][words[1:_BURSTS] > 0]  # in the first one the players wait for each other to start
    return float(np.median(answered)) / _ROUNDS / 1000 if answered.size else None


def _fork_player(words: Any, core: int, first: int, rate: float) -> int:
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {core})
            _play(words, first, rate)
        finally:
            os._exit(0)
    return child


def _play(words: Any, first: int, rate: float) -> None:
    """Play one side; the `first` player notes the nanoseconds of each burst in the leading words."""
    base: int = words.ctypes.data
    for burst in range(_BURSTS):
        here = base + (burst + 1) * _STRIDE * 8
        mine, theirs = (here, here + 128) if first else (here + 128, here)
        begun = time.perf_counter_ns()
        answered = entry(bounce)(mine, theirs, 0, 1 - first, _ROUNDS, int(_PATIENCE_US * rate)) > 0
        if first and answered:
            words[burst] = time.perf_counter_ns() - begun


def classify(*trips: float | None) -> str:
    """``near`` or ``far`` if all looks agree, ``mixed`` if not, ``unknown`` if there was nothing to measure."""
    seen = [trip for trip in trips if trip is not None]
    if not seen:
        return "unknown"
    if max(seen) < NEAR_US:
        return NEAR
    return FAR if min(seen) > FAR_US else MIXED

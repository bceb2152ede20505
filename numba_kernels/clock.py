"""The core's tick counter and its rate."""

from __future__ import annotations

import functools
import time

from numba_kernels.atomics import ticks
from numba_kernels.jit import entry, kernel

_MEASURE_S = 0.002


@kernel("int64()", is_entry=True)
def now():  # type: ignore[no-untyped-def]
    """The tick counter."""
    return ticks()


@functools.cache
def begin() -> tuple[int, int]:
    """Read both clocks for the first time, so that :func:`ticks_per_us` need not wait when it is asked later: ticks, and nanoseconds."""
    return entry(now)(), time.perf_counter_ns()


@functools.cache
def ticks_per_us() -> float:
    """Rate of the tick counter, measured once against the monotonic clock since :func:`begin`, over 2 ms at least."""
    ticks_0, time_0 = begin()
    while time.perf_counter_ns() - time_0 < _MEASURE_S * 1e9:
        pass
    ticks_1, time_1 = entry(now)(), time.perf_counter_ns()
    return float((ticks_1 - ticks_0) / ((time_1 - time_0) / 1000))

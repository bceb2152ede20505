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
def ticks_per_us() -> float:
    """Rate of the tick counter, measured once against the monotonic clock (2 ms)."""
    read = entry(now)
    ticks_0, time_0 = read(), time.perf_counter_ns()
    while time.perf_counter_ns() - time_0 < _MEASURE_S * 1e9:
        pass
    ticks_1, time_1 = read(), time.perf_counter_ns()
    return float((ticks_1 - ticks_0) / ((time_1 - time_0) / 1000))

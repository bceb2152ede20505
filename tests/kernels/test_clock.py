"""The rate of the tick counter, measured between two looks at both clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from numba_kernels import clock
from numba_kernels.jit import entry


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Nothing is measured before, and what a test measures is forgotten."""
    for measured in (clock.begin, clock.ticks_per_us):
        measured.cache_clear()
    yield
    for measured in (clock.begin, clock.ticks_per_us):
        measured.cache_clear()


def test_who_has_begun_early_need_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks count from the first look, and the second one is the next."""
    looks = iter([1_000_000, 9_000_000])
    monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: next(times))
    monkeypatch.setattr(clock, "entry", lambda kernel: lambda: next(looks))
    times = iter([0, 4_000_000, 4_000_000])
    clock.begin()
    assert clock.ticks_per_us() == 2000.0
    assert next(times, None) is None


def test_it_is_what_both_clocks_say() -> None:
    rate = clock.ticks_per_us()
    ticks_0, time_0 = entry(clock.now)(), time.perf_counter_ns()
    time.sleep(0.05)
    ticks_1, time_1 = entry(clock.now)(), time.perf_counter_ns()
    assert rate == pytest.approx((ticks_1 - ticks_0) * 1000 / (time_1 - time_0), rel=0.5)

"""The rate of the tick counter, measured between two looks at both clocks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from numba_kernels import clock


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
    looks, times = iter([1_000_000, 9_000_000]), iter([0, 4_000_000, 4_000_000])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: next(times)))
    monkeypatch.setattr(clock, "entry", lambda kernel: lambda: next(looks))
    clock.begin()
    assert clock.ticks_per_us() == 2000.0
    assert next(times, None) is None


def test_who_has_not_waits_until_2_ms_have_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, times = iter([0, 5_000_000]), iter([0, 1_000_000, 1_999_999, 2_000_000, 2_500_000])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: next(times)))
    monkeypatch.setattr(clock, "entry", lambda kernel: lambda: next(looks))
    assert clock.ticks_per_us() == 2000.0

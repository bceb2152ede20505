"""Trials of two ways: when they are, what they choose, and that they choose anew."""

from __future__ import annotations

import numpy as np
import pytest

from transports.shm import trial
from transports.shm.trial import FEW_FROM, FEW_TRIALS, PERIOD, STARTS, TRIALS


def ways(nbytes: int, count: int, ticks: dict[int, tuple[int, int]]) -> list[tuple[int, bool]]:
    """The way of each of `count` transfers and whether it was a trial; from transfer `first` on they take ``ticks[first]``."""
    table = np.zeros(trial.WORDS, np.int64)
    mine, taken, found = trial.trial_of(table.ctypes.data, nbytes), (0, 0), []
    for number in range(count):
        taken = ticks.get(number, taken)
        assert bool(trial.has_verdict(mine, nbytes)) == any(number % PERIOD == start + trials_of(nbytes) for start in STARTS)
        way = trial.next_way(mine, nbytes)
        found.append((way, bool(trial.is_trial(mine, nbytes))))
        if found[-1][1]:
            trial.note_time(mine, way, taken[way])
    return found


def trials_of(nbytes: int) -> int:
    return FEW_TRIALS if nbytes >= FEW_FROM else TRIALS


@pytest.mark.parametrize("nbytes", [1, 40_000, FEW_FROM - 1, FEW_FROM, 1 << 40])
def test_both_ways_are_tried_and_direct_copies_first(nbytes: int) -> None:
    found = ways(nbytes, 2 * PERIOD, {0: (10, 20)})
    for number, (way, is_trial) in enumerate(found):
        step = min(number % PERIOD - start for start in STARTS if start <= number % PERIOD)
        assert is_trial == (step < trials_of(nbytes))
        assert way == (1 - step % 2 if is_trial else 0), number


@pytest.mark.parametrize("nbytes", [40_000, FEW_FROM])
def test_what_was_slow_in_the_beginning_is_tried_again(nbytes: int) -> None:
    found = ways(nbytes, STARTS[1] + TRIALS + 1, {0: (10, 20), STARTS[1]: (10, 5)})
    assert found[trials_of(nbytes)] == (0, False) and found[-1] == (1, False)


@pytest.mark.parametrize(("last", "chosen"), [(9, 1), (12, 1), (13, 0)])
def test_the_least_time_counts_and_direct_copies_may_take_a_quarter_more(last: int, chosen: int) -> None:
    found = ways(FEW_FROM, FEW_TRIALS + 1, {0: (10, 20), 2: (10, last)})
    assert found[-1] == (chosen, False)


@pytest.mark.parametrize(("piped", "chosen"), [(89, 0), (92, 1), (79, 0)])
def test_later_trials_let_direct_copies_take_a_tenth_more_at_most(piped: int, chosen: int) -> None:
    found = ways(FEW_FROM, STARTS[2] + FEW_TRIALS + 1, {0: (100, 100), STARTS[1]: (piped, 100)})
    assert found[-1] == (chosen, False)


@pytest.mark.parametrize(("piped", "chosen"), [(79, 0), (82, 1), (89, 1)])
def test_first_trials_meet_cold_caches_and_let_them_take_a_quarter_more(piped: int, chosen: int) -> None:
    assert ways(40_000, TRIALS + 1, {0: (piped, 100)})[-1] == (chosen, False)


def test_a_move_of_the_cores_brings_a_new_verdict() -> None:
    """Far cores first, where streams take three times as long; then near ones, as recorded for an allreduce of 1 MiB."""
    ticks = {0: (300, 100), STARTS[2]: (67, 138)}
    found = ways(1 << 20, STARTS[2] + TRIALS + 1, ticks)
    assert found[TRIALS] == (1, False) and found[STARTS[2] - 1] == (1, False) and found[-1] == (0, False)

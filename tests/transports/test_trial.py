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

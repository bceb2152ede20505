"""Trials of three ways: when they are, what they choose, and that they choose anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.shm import trial
from transports.shm.shared import DIRECT, PIPED, STREAMED
from transports.shm.trial import FEW_FROM, FEW_TRIALS, PERIOD, STARTS, TRIALS

AS_BEFORE = -1
ORDER = AS_BEFORE, AS_BEFORE, DIRECT, PIPED, PIPED, PIPED, STREAMED, STREAMED, STREAMED, DIRECT, DIRECT
FEW_ORDER = AS_BEFORE, AS_BEFORE, DIRECT, PIPED, PIPED, STREAMED, DIRECT


def ways(nbytes: int, count: int, ticks: dict[int, tuple[int, int, int]]) -> list[tuple[int, bool]]:
    """The way of each of `count` transfers and whether it was a trial; from transfer `first` on they take ``ticks[first]``.

    Ticks are those of plain pipes, direct copies, and streamed pipes.
    """
    table = np.zeros(trial.WORDS, np.int64)
    mine, taken, found = trial.trial_of(table.ctypes.data, nbytes), (0, 0, 0), []
    for number in range(count):
        taken = ticks.get(number, taken)
        assert bool(trial.has_verdict(mine, nbytes)) == any(number % PERIOD == start + trials_of(nbytes) for start in STARTS)
        way = trial.next_way(mine, nbytes)
        found.append((way, bool(trial.is_trial(mine, nbytes))))
        if found[-1][1]:
            trial.note_time(mine, nbytes, way, taken[way])
    return found


def trials_of(nbytes: int) -> int:
    return FEW_TRIALS if nbytes >= FEW_FROM else TRIALS


def test_trials_end_before_the_next_begin() -> None:
    gaps = [after - start for start, after in zip(STARTS, [*STARTS[1:], PERIOD], strict=True)]
    assert min(gaps) > max(TRIALS, FEW_TRIALS)


@pytest.mark.parametrize("nbytes", [1, 40_000, FEW_FROM - 1, FEW_FROM, 1 << 40])
def test_all_ways_are_tried_each_in_a_row(nbytes: int) -> None:
    found, order = ways(nbytes, 2 * PERIOD, {0: (10, 20, 30)}), FEW_ORDER if nbytes >= FEW_FROM else ORDER
    for number, (way, is_trial) in enumerate(found):
        step = min(number % PERIOD - start for start in STARTS if start <= number % PERIOD)
        assert is_trial == (step < trials_of(nbytes))
        expected = order[step] if is_trial else PIPED
        before = PIPED if number >= len(order) else DIRECT
        assert way == (before if expected == AS_BEFORE else expected), number


@pytest.mark.parametrize("nbytes", [40_000, FEW_FROM])
def test_what_was_slow_in_the_beginning_is_tried_again(nbytes: int) -> None:
    found = ways(nbytes, STARTS[1] + TRIALS + 1, {0: (10, 20, 30), STARTS[1]: (10, 4, 30)})
    assert found[trials_of(nbytes)] == (PIPED, False) and found[-1] == (DIRECT, False)


@pytest.mark.parametrize(("last", "chosen"), [(9, DIRECT), (12, DIRECT), (13, PIPED)])
def test_the_least_time_counts_and_direct_copies_may_take_a_quarter_more(last: int, chosen: int) -> None:
    found = ways(1 << 20, TRIALS + 1, {0: (10, 20, 30), TRIALS - 1: (10, last, 30)})
    assert found[-1] == (chosen, False)


def test_the_first_way_through_a_pipe_whose_pages_are_not_there_yet_says_nothing() -> None:
    """Allreduce of 16 MiB on two near cores, as recorded: ten calls of 2.4 ms instead of 1.7 followed."""
    found = ways(32 << 20, FEW_TRIALS + 1, {0: (5266, 2594, 2792), FEW_ORDER.index(PIPED) + 1: (1932, 2594, 2792)})
    assert found[-1] == (PIPED, False)


@pytest.mark.parametrize(("piped", "chosen"), [(89, PIPED), (92, DIRECT), (79, PIPED)])
def test_later_trials_let_direct_copies_take_a_tenth_more_at_most(piped: int, chosen: int) -> None:
    found = ways(FEW_FROM, STARTS[2] + FEW_TRIALS + 1, {0: (100, 100, 100), STARTS[1]: (piped, 100, 100)})
    assert found[-1] == (chosen, False)


@pytest.mark.parametrize(("piped", "chosen"), [(79, PIPED), (82, DIRECT), (89, DIRECT)])
def test_first_trials_meet_cold_caches_and_let_them_take_a_quarter_more(piped: int, chosen: int) -> None:
    assert ways(40_000, TRIALS + 1, {0: (piped, 100, 100)})[-1] == (chosen, False)


@pytest.mark.parametrize(
    ("recorded", "chosen"),
    [
        ((64, 110, 137), PIPED), ((547, 116, 109), DIRECT), ((116, 190, 86), STREAMED), ((135, 110, 137), DIRECT), ((140, 180, 53), STREAMED)
    ],
)  # fmt: skip
def test_recorded_times(recorded: tuple[int, int, int], chosen: int) -> None:
    """Allreduce of 1 MiB on two near and on two far cores, bcast of it on four ranks of two near ones, two invented."""
    assert ways(1 << 20, STARTS[2] + TRIALS + 1, {0: recorded})[-1] == (chosen, False)


@pytest.mark.parametrize(("cold", "warm", "direct"), [(37, 22, 31), (74, 23, 46)])
def test_a_pipe_that_was_not_in_use_is_used_for_a_while_though_it_was_slower(cold: int, warm: int, direct: int) -> None:
    """Allreduce of 256 KiB and a message of 64 KiB (us / 10) on two near cores, as recorded: `warm` is once the ring has gone around."""
    table = np.zeros(trial.WORDS, np.int64)
    nbytes, used, found = 512 << 10, 0, []
    mine = trial.trial_of(table.ctypes.data, nbytes)
    for _ in range(STARTS[2] + TRIALS + 1):
        way = trial.next_way(mine, nbytes)
        used = used + 1 if way == PIPED else 0
        trial.note_time(mine, nbytes, way, {DIRECT: direct, STREAMED: 71, PIPED: warm if used > 8 else cold}[way])
        found.append(way)
    assert found[TRIALS : STARTS[1]] == [DIRECT] * (STARTS[1] - TRIALS)
    assert found[STARTS[1] + TRIALS : STARTS[2]] == [PIPED] * (STARTS[2] - STARTS[1] - TRIALS) and found[-1] == PIPED


def test_a_pipe_that_stays_slower_is_not_used_for_longer() -> None:
    found = ways(512 << 10, STARTS[3] + TRIALS + 1, {0: (37, 31, 44)})
    assert found[STARTS[2] - 1][0] == PIPED and found[STARTS[2] + TRIALS][0] == DIRECT and found[-1][0] == DIRECT


def test_a_long_transfer_fills_its_pipe_and_is_judged_at_once() -> None:
    """Allgather of 16 MiB on two near cores, as recorded in ms / 10: a program of 60 such calls never came to the third trials."""
    found = ways(32 << 20, STARTS[2], {0: (336, 281, 380)})
    assert {way for way, is_trial in found if not is_trial} == {DIRECT}


@pytest.mark.parametrize("nbytes", [40_000, 1 << 20, FEW_FROM, 16 << 20])
@given(st.lists(st.integers(1, 50), min_size=3, max_size=40))
def test_a_rank_that_notes_no_times_goes_the_same_ways(nbytes: int, ticks: list[int]) -> None:
    """One rank measures, and tells the others at each verdict; they have to go its way in every transfer before that, too."""
    first, other = np.zeros(trial.WORDS, np.int64), np.zeros(trial.WORDS, np.int64)
    mine, its = (trial.trial_of(table.ctypes.data, nbytes) for table in (first, other))
    for number in range(STARTS[3] + TRIALS + 2):
        is_told = trial.has_verdict(mine, nbytes)
        assert is_told == trial.has_verdict(its, nbytes)
        way = trial.next_way(mine, nbytes)
        found = trial.next_way(its, nbytes)
        if is_told:
            trial.settle(mine, way)
            trial.settle(its, way)
        else:
            assert found == way, number
        if trial.is_trial(mine, nbytes):
            trial.note_time(mine, nbytes, way, ticks[number % len(ticks)])


def test_a_move_of_the_cores_brings_a_new_verdict() -> None:
    """Far cores first, where plain stores take five times as long; then near ones, as recorded for an allreduce of 1 MiB."""
    ticks = {0: (547, 116, 109), STARTS[2]: (64, 110, 137)}
    found = ways(1 << 20, STARTS[2] + TRIALS + 1, ticks)
    assert found[TRIALS] == (DIRECT, False) and found[STARTS[2] - 1] == (DIRECT, False) and found[-1] == (PIPED, False)

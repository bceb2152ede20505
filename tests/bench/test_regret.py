"""What is forced for the regret of automatic choices, and what recorded times say of them."""

import subprocess
import sys

import pytest

from ncclx_mpi.bench import regret, rounds, summary
from ncclx_mpi.bench.points import KIB, MIB, Point
from ncclx_mpi.bench.sides import Side

ALLREDUCE, ALLTOALL, PINGPONG = Point("allreduce", MIB, 2), Point("alltoall", MIB, 2), Point("pingpong", MIB, 2)


def run(side: str, us: float, point: Point = ALLREDUCE, placement: str = "near") -> dict[str, object]:
    result = {"case": point.case, "bytes": point.nbytes, "ranks": point.nranks, "us": us, "wrong": 0}
    return {"side": side, "placement": placement, "results": [result]}


def forced(side: Side) -> dict[str, str]:
    return {name: value for name, value in side.environment.items() if "COPIES" in name or "STORES" in name or "ALGO" in name}


def test_nothing_is_forced_on_the_automatic_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLX_MPI_COPIES", "piped")
    monkeypatch.setenv("NCCLX_MPI_ALGO_ALLREDUCE", "ring")
    automatic, *others = regret.sides([ALLREDUCE])
    assert automatic.name == summary.OURS
    assert forced(automatic) == {}
    assert {side.name: forced(side) for side in others}["cma"] == {"NCCLX_MPI_ALGO_ALLREDUCE": "cma"}
    assert all(len(forced(side)) == (2 if "piped" in side.name else 1) for side in others)


def test_an_algorithm_is_forced_only_where_it_runs() -> None:
    small, chosen = Point("allreduce", KIB, 2), {}
    for side in regret.sides([small, ALLREDUCE, ALLTOALL, PINGPONG]):
        chosen.setdefault(side.name, []).extend(point for point in (small, ALLREDUCE, ALLTOALL, PINGPONG) if side.is_for(point))
    assert chosen["shm_oneshot"] == [small]
    assert chosen["cma"] == [small, ALLREDUCE, ALLTOALL]
    assert chosen["pairwise"] == [ALLTOALL]
    assert chosen["direct"] == [small, ALLREDUCE, ALLTOALL, PINGPONG]


def test_the_blocks_of_all_ranks_count_for_an_algorithm_of_blocks() -> None:
    assert {side.name for side in regret.sides([Point("alltoall", 8 * KIB, 2)])} >= {"shm_oneshot"}
    assert "shm_oneshot" not in {side.name for side in regret.sides([Point("alltoall", 8 * KIB, 4)])}
    assert "bruck" not in {side.name for side in regret.sides([Point("alltoallv", 8 * KIB, 4)])}


def test_regret_is_the_automatic_time_over_the_best_forced_one() -> None:
    times = {summary.OURS: [66.0, 60.0, 61.0], "direct": [50.0, 49.0, 51.0], "ring": [90.0, 91.0, 92.0]}
    rows = summary.summarize(run(side, us) for side, each in times.items() for us in each)
    assert [(row.fastest, row.ratio, regret.verdict(row)) for row in rows] == [(("direct", 50.0), 61.0 / 50.0, "FAIL")]
    assert regret.to_json(rows[0])["goal"] == regret.LIMIT
    lines = list(regret.table(rows))
    assert "direct" in lines[1] and "1.22 FAIL" in lines[1]
    assert lines[-2:] == ["# regret at most 1.15 in 0 of 1 rows", "# worst: allreduce 1 MiB, 2 ranks, cores near: 1.22, set direct"]


def test_choices_that_are_alike_are_no_regret() -> None:
    """The best of them in each round, and the best median, are no time that could have been chosen."""
    alike = [[100.0, 80.0, 120.0, 90.0, 110.0, 100.0][k:] + [100.0, 80.0, 120.0, 90.0, 110.0, 100.0][:k] for k in range(6)]
    times = {summary.OURS: alike[0], **{str(k): each[:-1] + [100.0 - k] for k, each in enumerate(alike)}}
    (row,) = summary.summarize(run(side, us) for side, each in times.items() for us in each)
    assert row.ratio > 1
    assert 0.9 < regret.regret(row) <= row.ratio


def test_one_bad_round_of_the_best_choice_changes_nothing() -> None:
    times = {summary.OURS: [61.0] * 6, "direct": [50.0, 49.0, 300.0, 50.0, 51.0, 50.0], "ring": [90.0] * 6}
    (row,) = summary.summarize(run(side, us) for side, each in times.items() for us in each)
    assert regret.regret(row) == 61.0 / 50.0


@pytest.mark.parametrize(("automatic", "forced"), [(2, 6), (6, 2)])
def test_a_row_of_few_rounds_has_no_verdict(automatic: int, forced: int) -> None:
    runs = [run(summary.OURS, 9.0)] * automatic + [run("direct", 1.0)] * forced
    rows = summary.summarize(runs)
    assert [regret.verdict(row) for row in rows] == ["few"]
    assert list(regret.table(rows))[-1] == "# regret at most 1.15 in 0 of 0 rows"


def test_rounds_that_a_placement_lacks_are_made_up_for_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near in the first round, far in the second: each lacks one, and it is far then for a look and a run, near after."""
    trips = iter([0.1] * 4 + [0.4] * 4 + [0.4, 0.4, 0.4] * 2 + [0.1, 0.1, 0.1] * 2)
    monkeypatch.setattr(rounds, "_carry_out", _measure_nothing)
    monkeypatch.setattr(rounds, "flag_round_trip", lambda: next(trips))
    found = list(
        rounds.measure([Side("one", lambda n: [], {}), Side("two", lambda n: [], {})], [[ALLREDUCE]], rounds.Effort(rounds=2))
    )
    assert [(each.side, each.round, each.placement) for each in found] == [
        *((side, number, placement) for number, placement in enumerate(("near", "far", "far", "near")) for side in ("one", "two"))
    ]
    assert next(trips, None) is None


def _measure_nothing(run: rounds.Run, side: Side, batch: list[Point], effort: rounds.Effort) -> None:
    run.results = [{"case": point.case, "bytes": point.nbytes, "ranks": point.nranks, "us": 1.0, "wrong": 0} for point in batch]


def test_a_point_whose_cores_were_moved_has_no_verdict() -> None:
    rows = summary.summarize([run(summary.OURS, 9.0, placement="mixed"), run("direct", 1.0, placement="mixed")])
    assert [regret.verdict(row) for row in rows] == [""]
    assert list(regret.table(rows))[-1] == "# regret at most 1.15 in 0 of 0 rows"


def test_a_side_measures_the_points_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(rounds, "_carry_out", lambda run, side, batch, effort: measured.append((side.name, list(batch))))
    monkeypatch.setattr(rounds, "flag_round_trip", lambda: 0.1)
    both = [Side("all", lambda n: [], {}), Side("one", lambda n: [], {}, lambda point: point == ALLTOALL)]
    list(rounds.measure(both, [[ALLREDUCE, ALLTOALL], [PINGPONG]], rounds.Effort(rounds=1)))
    assert measured == [("all", [ALLREDUCE, ALLTOALL]), ("one", [ALLTOALL]), ("all", [PINGPONG])]


@pytest.mark.parametrize(
    ("trips", "point", "runs", "placement"),
    [
        ([0.1, 0.1], ALLREDUCE, 1, "near"),
        ([0.1, 0.4, 0.4, 0.4], ALLREDUCE, 2, "far"),
        ([0.1, 0.4] * 9, ALLREDUCE, 3, "mixed"),
        ([0.1, 0.4] * 9, Point("barrier", 0, 8), 1, "mixed"),
    ],
)
def test_a_run_that_a_move_of_the_cores_spoiled_is_made_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, trips: list[float], point: Point, runs: int, placement: str
) -> None:
    measured, looks = [], iter(trips)
    monkeypatch.setattr(rounds, "_carry_out", lambda run, side, batch, effort: measured.append(batch))
    monkeypatch.setattr(rounds, "flag_round_trip", lambda: next(looks))
    (found,) = rounds.measure([Side("one", lambda n: [], {})], [[point]], rounds.Effort(rounds=1))
    assert (measured, found.placement, len(found.trips)) == ([[point]] * runs, placement, 2)


def test_what_precedes_a_point_in_its_process_is_the_same_on_all_sides() -> None:
    groups = regret.group(regret.POINTS)
    assert sorted(point for group in groups for point in group) == sorted(regret.POINTS)
    for group in groups:
        assert len({(point.nranks, point.case) for point in group}) == 1
        for side in regret.sides(group):
            served = [point for point in group if side.is_for(point)]
            assert served == group[: len(served)]


def test_peers_have_no_regret() -> None:
    words = [sys.executable, "-m", "ncclx_mpi", "bench", "--regret", "--against", "mpich"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--regret compares this engine with itself" in done.stderr

"""What the benchmark measures, how it sums up, and what it prints."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclx_mpi.bench import points, report, rounds, summary
from ncclx_mpi.bench.placement import classify, flag_round_trip
from ncclx_mpi.bench.points import MIB, Point

SMALL = Point("allreduce", 8, 2)
WORKER = Path(points.__file__).with_name("worker.py")


def run(side: str, us: float, placement: str = "far", point: Point = SMALL) -> dict[str, object]:
    result = {"case": point.case, "bytes": point.nbytes, "ranks": point.nranks, "us": us, "wrong": 0}
    return {"side": side, "placement": placement, "results": [result]}


def test_the_timed_program_needs_nothing_that_another_mpi_has_not() -> None:
    """It imported our named tuples: no side but ours ran."""
    nodes = list(ast.walk(ast.parse(WORKER.read_text())))
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "mpi4py" in imported
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names | {"numpy", "mpi4py"}


def test_sweep_stays_below_its_memory() -> None:
    everything = list(points.sweep())
    assert max(points.buffer_bytes(point) for point in everything) <= 256 * MIB
    assert {point.nranks for point in everything} == set(points.SWEEP_RANKS)
    assert Point("allreduce", 64 * MIB, 8) in everything
    assert Point("alltoall", 64 * MIB, 8) not in everything
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("8", 8), ("64K", 65536), ("64KiB", 65536), ("1M", MIB), ("10MB", 10_000_000), ("0", 0)]
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert points.parse_size(text) == nbytes
    assert points.parse_size(points.size_text(nbytes).replace(" ", "")) == nbytes


@pytest.mark.parametrize("text", ["", "x", "8G", "-1", "1.5M"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        points.parse_size(text)


def test_a_sweep_can_be_cut() -> None:
    part = list(points.sweep(["bcast", "barrier"], [2], [0, 64]))
    assert part == [Point("bcast", 0, 2), Point("bcast", 64, 2), Point("barrier", 0, 2)]


def test_groups_hold_one_rank_count_each() -> None:
    groups = rounds.group(points.GOALS, 5)
    assert sorted(point for group in groups for point in group) == sorted(points.GOALS)
    for group in groups:
        assert len({point.nranks for point in group}) == 1
        assert len(group) == 1 or all(point.case != "startup" for point in group)


def test_placement_is_far_near_or_mixed() -> None:
    assert classify(0.1, 0.11) == "near"
    assert classify(0.45, 0.4) == "far"
    assert classify(0.1, 0.45) == "mixed"
    assert classify(0.22, 0.22) == "mixed"
    assert classify(None, None) == "unknown"


def test_flag_round_trip_is_measured() -> None:
    if len(os.sched_getaffinity(0)) > 1:
        assert any(0.02 < (flag_round_trip() or 0) < 20 for _ in range(10))  # others may have the cores for a while
    else:
        assert flag_round_trip() is None


def test_rounds_of_the_same_placement_are_compared() -> None:
    runs = [run("ncclx_mpi", us) for us in (1.0, 0.8, 5.0)] + [run("mpich", 2.0), run("impi", 1.25)]
    runs += [run("ncclx_mpi", 99.0, "mixed"), run("impi", 0.5, "near")]
    far, near = summary.summarize(runs)
    assert (far.placement, far.ours, far.fastest) == ("far", 1.0, ("impi", 1.25))
    assert far.ratio == pytest.approx(0.8)
    assert (far.goal, far.verdict) == (0.9, "pass")
    assert near.ours is None
    assert near.verdict == ""


def test_a_point_that_never_had_quiet_cores_is_shown_and_not_judged() -> None:
    runs = [run("ncclx_mpi", 9.0, "mixed"), run("mpich", 1.0, "mixed")]
    (row,) = summary.summarize(runs)
    assert (row.placement, row.medians) == ("mixed", {"ncclx_mpi": 9.0, "mpich": 1.0})
    assert (row.ratio, row.goal, row.verdict, row.is_cliff) == (None, None, "", False)
    assert str(SMALL) in "".join(summary.missing([row]))
    assert "mixed" in next(report.osu([row]))


def test_a_missed_goal_fails() -> None:
    (row,) = summary.summarize([run("ncclx_mpi", 1.0), run("mpich", 1.0)])
    assert row.verdict == "FAIL"


def test_cliffs_have_a_floor() -> None:
    rows = summary.summarize([run("ncclx_mpi", 0.3), run("mpich", 0.07)])
    assert summary.cliffs(rows) == ([], 0)
    rows = summary.summarize([run("ncclx_mpi", 0.4), run("mpich", 0.07)])
    assert len(summary.cliffs(rows)[0]) == 1


def test_tables_name_everything() -> None:
    rows = summary.summarize([run("ncclx_mpi", 2.0, point=Point("allgather", MIB, 2)), run("mpich", 1.0)])
    assert any("allgather" in line and "us" in line for line in report.osu(rows))
    lines = list(report.nccl(rows))
    assert any(f"{2 * MIB} " in line and f"{2 * MIB / 2.0 / 1e3:.2f}" in line for line in lines)
    assert any(line.startswith("| allgather 1 MiB | 2 | far | 2.00 |") for line in report.markdown(rows))
    assert any("allreduce 8 B, 2 ranks" in line for line in report.comparison(rows))


def test_bench_measures_our_own_side() -> None:
    words = ["bench", "allreduce", "barrier", "-n", "2", "-b", "64", "--rounds", "1", "--seconds", "0.02", "--style", "nccl"]
    done = subprocess.run([sys.executable, "-m", "ncclx_mpi", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "# allreduce, 2 ranks" in done.stdout
    assert "# barrier, 2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("name", "sizes"), [("objects", "8,64,80"), ("nonblocking", "0,8"), ("vectors", "8"), ("persistent", "0,8")]
)
def test_bench_measures_every_case_of_a_list(name: str, sizes: str) -> None:
    words = ["bench", "--list", name, "-n", "2", "-b", sizes, "--rounds", "1", "--seconds", "0.002", "--blocks", "1"]
    done = subprocess.run([sys.executable, "-m", "ncclx_mpi", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    measured = {line.split()[1].rstrip(",") for line in done.stdout.splitlines() if "latency" in line}
    assert measured == {point.case for point in points.LISTS[name] if point.nranks == 2 and point.nbytes <= 80}


def test_lists_hold_known_cases_once() -> None:
    for name, listed in points.LISTS.items():
        assert len(set(listed)) == len(listed), name
        assert {point.case for point in listed} <= set(points.CASES)
        assert max(points.buffer_bytes(point) for point in listed) <= 256 * MIB


def test_forms_of_a_collective_count_like_it() -> None:
    for case, form in (("allreduce", "iallreduce"), ("alltoall", "alltoall_init"), ("barrier", "ibarrier"), ("ring", "ring_init")):
        blocking, other = Point(case, 64, 4), Point(form, 64, 4)
        assert other.operation == case
        assert report.total_bytes(other) == report.total_bytes(blocking)
        assert report.bus_factor(other) == report.bus_factor(blocking)


def test_bench_resumes_with_what_is_missing(tmp_path: Path) -> None:
    words = ["bench", "bcast", "-n", "2", "--seconds", "0.01", "--rounds", "1", "--json", str(tmp_path / "runs.json"), "--resume"]
    for sizes, measured in (("0,64", 1), ("64", 0), ("64,256", 1)):
        command = [sys.executable, "-m", "ncclx_mpi", *words, "-b", sizes]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("# ") == measured
    runs = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert [[result["bytes"] for result in run["results"]] for run in runs] == [[0, 64], [64, 256]]


def test_results_name_no_folder_of_the_machine_that_made_them() -> None:
    text = rounds.without_folders(
        "`/opt/v/bin/mpiexec -n 2 /home/me/x.py` failed: a/b.c:7, I/O, 'https' [/usr/lib/libmpi.so.12(+0x5)]"
    )
    assert text == "`mpiexec -n 2 x.py` failed: a/b.c:7, I/O, 'https' [libmpi.so.12(+0x5)]"


def test_bench_explains_what_it_does_not_know() -> None:
    done = subprocess.run([sys.executable, "-m", "ncclx_mpi", "bench", "allredcue"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "allredcue" in done.stderr
    assert "allreduce" in done.stderr

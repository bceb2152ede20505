"""Ranks that are bound to processors, and files of what they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import command, environment, run, run_code

from ncclx_mpi.launch.binding import bindings, threads
from ncclx_mpi.launch.files import RankFiles
from ncclx_mpi.locality.cpu_lists import ranges

CORES = [{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}]
"""A machine of eight cores of two threads; four share a cache, and all of a cache a memory, of which there are two."""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    for cpu in range(16):
        folder = tmp_path / "cpu" / f"cpu{cpu}"
        half = "0-3,8-11" if cpu % 8 < 4 else "4-7,12-15"
        texts = {"topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}", "cache/index0/level": "1", "cache/index3/level": "3"}
        for name, text in {**texts, "cache/index3/shared_cpu_list": half}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")
        node = f"node{cpu % 8 // 4}"
        (folder / node).mkdir()
        (tmp_path / "node" / node).mkdir(parents=True, exist_ok=True)
        (tmp_path / "node" / node / "cpulist").write_text(f"{half}\n")
    return tmp_path


def test_a_core_each(machine):
    found = bindings("core", 3, machine)
    assert [binding.cpus for binding in found] == CORES[:3]
    assert threads(found) == 1
    assert str(found[1]) == "core 1 (processors 1,9)"
    with pytest.raises(ValueError, match="9 ranks do not fit on 8 cores"):
        bindings("core", 9, machine)


@pytest.mark.parametrize("kind", ["l3", "numa"])
@pytest.mark.parametrize(
    ("nranks", "homes", "nthreads"), [(1, [0], 4), (2, [0, 1], 4), (5, [0, 0, 0, 1, 1], 1), (12, [0] * 6 + [1] * 6, 1)]
)
def test_parts_are_filled_evenly(machine, kind, nranks, homes, nthreads):
    found = bindings(kind, nranks, machine)
    assert [binding.where for binding in found] == [f"{kind} {home}" for home in homes]
    assert [binding.cpus for binding in found] == [set().union(*CORES[4 * home : 4 * home + 4]) for home in homes]
    assert threads(found) == nthreads


def test_processors_that_we_may_not_use_count_for_nothing(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {2, 6, 7, 15})
    assert [binding.cpus for binding in bindings("core", 3, machine)] == [{2}, {6}, {7, 15}]
    assert [(binding.cpus, binding.ncores) for binding in bindings("l3", 2, machine)] == [({2}, 1), ({6, 7, 15}, 2)]


def test_a_machine_that_hides_its_caches(machine):
    (machine / "cpu" / "cpu5" / "cache" / "index3" / "level").write_text("2\n")
    with pytest.raises(ValueError, match="--bind l3: Linux does not say here .* with 5"):
        bindings("l3", 2, machine)
    assert bindings("none", 2, machine) == []


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8-11", "1,3,5-6"])
def test_ranges(text):
    numbers = {number for part in text.split(",") for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
    assert ranges(frozenset(numbers)) == text


SHOW = (
    "import os; from ncclx_mpi import MPI, runtime; MPI.COMM_WORLD.Barrier()\n"
    "print(len(os.sched_getaffinity(0)), os.environ.get('OMP_NUM_THREADS'), runtime.engine().arena.is_crowded)"
)


def test_bound_ranks_are_not_crowded_where_each_has_a_core():
    """What is spun on, and for how long, follows from that."""
    cores = len(os.sched_getaffinity(0))
    done = run("run", "-n", "1", "--bind", "core", "--report-bindings", "-c", SHOW)
    assert done.returncode == 0, done.stderr
    bound, nthreads, is_crowded = done.stdout.split()
    assert (int(bound) <= cores, nthreads, is_crowded) == (True, "1", "False")
    assert "rank 0 on " in done.stderr and "is bound to core 0 (processor" in done.stderr and "OMP_NUM_THREADS=1" in done.stderr
    if cores > 1 and int(bound) == 1:
        done = run("run", "-n", "2", "--bind", "core", "-c", SHOW, OMP_NUM_THREADS="7")
        assert done.stdout.splitlines() == ["1 7 False"] * 2, done.stderr


def test_ranks_that_share_a_core_are_crowded():
    """However many the machine has: the launcher may use one here."""
    words = command("run", "-n", "2", "-c", SHOW)
    confine = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execv(sys.argv[1], sys.argv[1:])"
    line = [sys.executable, "-c", confine, *words]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert [words.split()[::2] for words in done.stdout.splitlines()] == [["1", "True"]] * 2, done.stderr


def test_more_ranks_than_cores_are_refused():
    done = run("run", "-n", "4096", "--bind", "core", "-c", "pass")
    assert (done.returncode, done.stdout) == (2, "")
    assert "4096 ranks do not fit on" in done.stderr


def test_a_file_of_each_rank(tmp_path):
    code = "import sys; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank; print('a', rank); print('b', file=sys.stderr); sys.exit(rank)"
    folder = tmp_path / "deep" / "er"
    done = run_code(2, code, "--output-dir")  # an argument of the program, as it comes behind it
    assert sorted(done.stdout.splitlines()) == ["a 0", "a 1"]
    done = run("run", "-n", "2", "--output-dir", str(folder), "-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert [sorted((folder / f"rank-{rank}.out").read_text().splitlines()) for rank in range(2)] == [
        [f"a {rank}", "b"] for rank in range(2)
    ]
    assert "rank 1" in done.stderr


def test_lines_of_two_streams_are_not_mixed(tmp_path):
    files = RankFiles(str(tmp_path), [98, 99, 100], 200)
    for stream, data in ((1, b"out "), (2, b"err\nmore "), (1, b"put\n"), (2, b"err"), (2, b""), (1, b"left")):
        files(99, stream, data)
    files.close()
    assert (tmp_path / "rank-099.out").read_bytes() == b"err\nout put\nmore errleft"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-098.out", "rank-099.out", "rank-100.out"]


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    done = run("run", "-n", "2", "--output-dir", str(tmp_path / "file"), "-c", "pass")
    assert done.returncode == 2
    assert "File exists" in done.stderr

"""The programs that come with mpi4py run on ours as they are: its runner with all its options, its benchmarks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import mpi4py
import pytest
from programs import run

import ncclx_mpi

WORLD = "import mpi4py; from mpi4py import MPI; print(MPI.COMM_WORLD.size, mpi4py.rc.threads, MPI.Query_thread())"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--mpi-library"], os.path.dirname(ncclx_mpi.__file__)),
        (["-rc", "threads=False", "-mpi-library"], os.path.dirname(ncclx_mpi.__file__)),
        (["--mpi-lib-version"], f"ncclx_mpi {ncclx_mpi.__version__}"),
        (["--mpi-std-version"], "MPI 4.1"),
        (["--version"], f"mpi4py {mpi4py.__version__}"),
        (["--prefix"], os.path.dirname(mpi4py.__file__)),
        (["-c", "import sys; print(sys.argv[1:])", "--mpi-library"], "['--mpi-library']"),
        (["-rc", "threads=False", "-c", WORLD], "1 False 0"),
        (["--rc=thread_level=serialized,errors=fatal", "-c", WORLD], "1 True 2"),
        (["-m", "mpi4py.bench", "helloworld", "-q"], ""),
    ],
)
def test_options_of_the_runner(options: list[str], wanted: str) -> None:
    done = run("run", "-n", "1", "-m", "mpi4py.run", *options)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, wanted, "")


def test_the_runner_by_the_name_of_the_package() -> None:
    for options, wanted in (["--mpi-library"], os.path.dirname(ncclx_mpi.__file__)), (["-c", WORLD], "1 True 3"):
        done = run("run", "-n", "1", "-m", "mpi4py", *options)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, wanted, "")


def test_the_runner_refuses_and_explains() -> None:
    for options, wanted in (
        (["-h"], "show MPI library path"),
        (["--no-such"], "Unknown option: --no-such"),
        ([], "No path specified"),
    ):
        done = run("run", "-n", "1", "-m", "mpi4py.run", *options)
        assert done.returncode == int(options != ["-h"]) and wanted in done.stdout + done.stderr


def test_the_runner_ends_the_job_with_the_status_of_the_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: sys.exit(7)\nMPI.COMM_WORLD.recv(source=1)")
    assert run("run", "-n", "2", "-m", "mpi4py", str(script)).returncode == 7


@pytest.mark.parametrize(
    ("nranks", "words", "wanted"),
    [
        (2, "helloworld", r"(Hello, World! I am process [01] of 2 on .*\.\n){2}"),
        (3, "--no-threads ringtest -l 3 -n 100", r"time for 3 loops = .* \(3 processes, 100 bytes\)\n"),
        (2, "pingpong -m 1024 -n 2048 -l 2 -s 1", r"# MPI PingPong Test\n.*\n +1024 .*\n +2048 .*\n"),
        (2, "--thread-level single pingpong -m 64 -n 64 -l 2 -s 1 -p --no-header --no-stats", r" +64 +[\d.]+\n"),
        (2, "pingpong -m 64 -n 64 -l 2 -s 1 -a numpy -p -o --protocol 5 --threshold 8 --no-header", r" +64 .*\n"),
        (3, "futures -m 64 -n 64 -l 2 -s 1 -t 5 --no-header -c 2 -a numpy", r" +64 .*\n"),
        (1, "futures -m 64 -n 64 -l 2 -s 1 -t 5 --no-header -w 2 -o", r" +64 .*\n"),
    ],
)
def test_benchmarks(nranks: int, words: str, wanted: str) -> None:
    done = run("run", "-n", str(nranks), "-m", "mpi4py.bench", *words.split())
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(wanted, done.stdout), done.stdout

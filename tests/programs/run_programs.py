"""Programs of others, unchanged, with their own tests: on MPICH, and on ncclx_mpi in its place.

    python tests/programs/run_programs.py                    # all; installs into a temporary folder, then removes it
    python tests/programs/run_programs.py pybnb --keep DIR   # one; the environments stay in DIR, and are used again

It needs a package index, so CI does not run it. Each program comes from its source distribution, with its tests, as it was published.
Tests passed on all ranks together, and tests that failed (Python 3.11, mpi4py 4.1.2, MPICH 5.0.2, two cores):

    program                    MPICH    ncclx_mpi
    schwimmbad 0.4.2          18 / 0       18 / 0
    maybempi 0.1.2            18 / 0       18 / 0
    mpi-pytest 2026.0         30 / 0       30 / 0
    pybnb 0.6.2              457 / 1      457 / 1
    pyske 0.1.1              336 / 0      336 / 0
    distwq 1.3.3               5 / 0        5 / 0
    libensemble 1.6.1        112 / 0      112 / 0
    pylops-mpi 0.8.0        4239 / 0     4239 / 0
    runtests 0.0.28           18 / 0       18 / 0

What fails on both is a test of a NumPy that was. Left out are tests that need Pyomo, that start processes while they run (distwq's
`spawn`), that import `mpi4py.MPI` in a new interpreter without a launcher (maybempi's of one process), or that transform by another
package (mpi4py-fft for pylops-mpi's); of libensemble, those that go without MPI, or look for an mpiexec to start other programs with.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
SECONDS = 600
"""That one launch may take."""

_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=")


class Launch(NamedTuple):
    """One command of a program: on how many ranks, in which folder of its sources, and what Python is given."""

    nranks: int
    words: tuple[str, ...]
    folder: str = "."

    def is_pytest(self) -> bool:
        return self.words[:2] == ("-m", "pytest")


class Program(NamedTuple):
    """A program of the package index: its version, what else it needs, and how its tests are run.

    Our ranks are started by MPICH's launcher, too, where `by_mpiexec` says so: ``mpiexec -n 2 python -m ncclx_mpi``.
    """

    name: str
    version: str
    needs: tuple[str, ...]
    launches: tuple[Launch, ...]
    by_mpiexec: bool = False


def pytest(nranks: int, *words: str, folder: str = ".") -> Launch:
    """The program's tests by pytest, on each rank."""
    return Launch(nranks, (*_PYTEST, *words), folder)


PROGRAMS = (
    Program(
        "schwimmbad",
        "0.4.2",
        ("dill", "multiprocess", "joblib"),
        (
            pytest(1, "tests/test_pools.py", "tests/test_utils.py"),
            Launch(3, ("tests/test_mpi.py",)),
            Launch(3, ("tests/test_mpi_with_dill.py",)),
        ),
    ),
    Program(
        "maybempi",
        "0.1.2",
        (),
        (pytest(2, "src/maybempi/tests/mpi"), pytest(4, "src/maybempi/tests/mpi")),
        by_mpiexec=True,  # it looks for the variables of that launcher
    ),
    Program(
        "mpi-pytest",
        "2026.0",
        (),
        (
            pytest(1, "tests", "-m", "parallel[1] or not parallel"),
            pytest(2, "tests", "-m", "parallel[2]"),
            pytest(3, "tests", "-m", "parallel[3]"),
        ),
    ),
    Program(
        "pybnb",
        "0.6.2",
        ("six", "sortedcontainers", "coverage", "runtests"),
        (
            pytest(1, "src/tests", "--ignore=src/tests/pyomo", "--ignore=src/tests/mpi"),
            *(pytest(nranks, "src/tests/mpi", "--ignore=src/tests/mpi/pyomo") for nranks in (1, 2, 4)),
        ),
    ),
    Program("pyske", "0.1.1", (), tuple(pytest(nranks, "pyske/test/list") for nranks in (1, 2, 3))),
    Program("distwq", "1.3.3", (), tuple(pytest(nranks, "test_mpi_distwq.py", "-k", "basic", folder="tests") for nranks in (2, 3))),
    Program(
        "libensemble",
        "1.6.1",
        ("psutil", "pyyaml", "tomli", "pydantic", "gest-api", "scipy"),
        tuple(
            Launch(4, (f"test_{name}.py",), "libensemble/tests/functionality_tests")
            for name in (
                "1d_splitcomm",
                "1d_subcomm",
                "1d_super_simple",
                "1d_uniform_sampling_with_comm_dup",
                "calc_exception",
                "cancel_in_alloc",
                "comms",
                "elapsed_time_abort",
                "evaluate_existing_plus_gen",
                "fast_alloc",
                "mpi_comms",
                "mpi_runners",
                "new_field",
                "persistent_sim_uniform_sampling",
                "persistent_uniform_sampling",
                "persistent_uniform_sampling_async",
                "persistent_uniform_sampling_cancel",
                "persistent_uniform_sampling_nonblocking",
                "persistent_uniform_sampling_running_mean",
                "sim_dirs_per_calc",
                "sim_dirs_per_worker",
                "sim_dirs_with_exception",
                "uniform_sampling",
                "uniform_sampling_cancel",
                "uniform_sampling_one_residual_at_a_time",
                "worker_exceptions",
                "workflow_dir",
                "zero_resource_workers",
            )
        ),
    ),
    Program(
        "pylops-mpi",
        "0.8.0",
        ("pylops", "pyproximal", "matplotlib", "scipy"),
        tuple(pytest(nranks, "tests", "--noconftest", "--ignore=tests/test_ffts.py") for nranks in (2, 3, 4)),
    ),
    Program("runtests", "0.0.28", ("coverage",), tuple(pytest(nranks, "runtests/mpi/tests/test_mpiworld.py") for nranks in (2, 4))),
)


class Score(NamedTuple):
    """Tests of all ranks."""

    passed: int
    failed: int

    def __add__(self, other: Score) -> Score:  # type: ignore[override]
        return Score(self.passed + other.passed, self.failed + other.failed)


def main() -> int:
    """Run what the command line asks for; 0 if ncclx_mpi passes as many tests of each program as MPICH."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(program.name for program in PROGRAMS)], help="programs (all)")
    parser.add_argument("--keep", type=Path, help="folder for the environments, which are used again")
    parser.add_argument("--verbose", action="store_true", help="show what the programs print")
    options = parser.parse_args()
    chosen = [program for program in PROGRAMS if program.name in options.names or not options.names]
    with tempfile.TemporaryDirectory(prefix="ncclx-programs-") as temporary:
        folder: Path = (options.keep or Path(temporary)).resolve()
        return compare(chosen, folder, options.verbose)


def compare(programs: list[Program], folder: Path, is_verbose: bool) -> int:
    """Print a row for each program."""
    needs = {word for program in programs for word in program.needs}
    mpich = environment(folder / "mpich", ["mpi4py>=4.1,<4.2", "mpich"], needs, programs)
    ours = environment(folder / "ncclx_mpi", [str(CHECKOUT)], needs, programs)
    print(f"{'program':24}{'MPICH':>18}{'ncclx_mpi':>18}", flush=True)
    worse = 0
    for program in programs:
        way = with_both(mpich, ours) if program.by_mpiexec else with_ncclx(ours)
        scores = [run(program, unpack(program, each.path.parent), each, is_verbose) for each in (with_mpich(mpich), way)]
        cells = [f"{score.passed} / {score.failed}" for score in scores]
        print(f"{program.name + ' ' + program.version:24}{cells[0]:>18}{cells[1]:>18}", flush=True)
        worse += scores[1].passed < scores[0].passed
    return int(bool(worse))


def environment(folder: Path, base: list[str], needs: set[str], programs: list[Program]) -> Path:
    """A virtual environment with an MPI, the programs, and what they need."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([*install, *base, "numpy", "pytest", *sorted(needs)], check=True)
    subprocess.run([*install, "--no-deps", *(f"{each.name}=={each.version}" for each in programs)], check=True)
    return folder


def unpack(program: Program, venv: Path) -> Path:
    """The folder of a program's sources, from its source distribution, for one environment: what tests leave fails the next ones."""
    target = venv / "sources" / program.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    download = [str(venv / "bin" / "python"), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*download, "-d", str(target), f"{program.name}=={program.version}"], check=True)
    with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
        archive.extractall(target, filter="data")
    return next(path for path in target.iterdir() if path.is_dir())


class Way(NamedTuple):
    """How a launch becomes a command: what comes before the number of ranks, and after it."""

    launcher: tuple[str, ...]
    python: tuple[str, ...]
    path: Path

    def command(self, launch: Launch) -> list[str]:
        return [*self.launcher, str(launch.nranks), *self.python, *launch.words]


def with_mpich(mpich: Path) -> Way:
    """By MPICH's launcher, with mpi4py as it is."""
    return Way((str(mpich / "bin" / "mpiexec"), "-n"), (str(mpich / "bin" / "python"),), mpich / "bin")


def with_ncclx(ours: Path) -> Way:
    """By our launcher."""
    return Way((str(ours / "bin" / "ncclx"), "run", "-n"), (), ours / "bin")


def with_both(mpich: Path, ours: Path) -> Way:
    """By MPICH's launcher, with our MPI."""
    python = str(ours / "bin" / "python"), "-m", "ncclx_mpi"
    return Way((str(mpich / "bin" / "mpiexec"), "-n"), python, ours / "bin")


def run(program: Program, sources: Path, way: Way, is_verbose: bool) -> Score:
    """The tests of a program on one MPI."""
    score = Score(0, 0)
    for launch in program.launches:
        command = way.command(launch)
        status, text = output_of(command, sources / launch.folder, way.path)
        found = counted(text) if launch.is_pytest() else Score(launch.nranks, 0) if status == 0 else Score(0, launch.nranks)
        if is_verbose or status not in (0, 5):
            print(f"$ {' '.join(command)}\n{text if is_verbose else text[-2000:]}\nstatus {status}: {found}", flush=True)
        score += found
    return score


def output_of(command: list[str], folder: Path, path: Path) -> tuple[int, str]:
    """Exit status and output; what runs too long is ended, with all that it started."""
    environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        text, _ = process.communicate()
        return 124, text.decode(errors="replace")
    return process.returncode, text.decode(errors="replace")


def counted(text: str) -> Score:
    """What the last lines of pytest say, added up over the ranks."""
    return Score(sum(_numbers(text, "passed")), sum(_numbers(text, "failed")) + sum(_numbers(text, "errors?")))


def _numbers(text: str, word: str) -> Iterator[int]:
    return (int(number) for number in re.findall(rf"(\d+) {word}\b", text))


if __name__ == "__main__":
    sys.exit(main())

"""Whole programs, from start to exit, on this library and on mpi4py over other MPIs: ``python benchmarks/programs.py --peer mpich=PYTHON``.

PYTHON is that of an environment in which mpi4py and the wheel of that MPI are; its ``mpiexec`` lies beside it. Programs are those of
``examples`` that know nothing of this library, and with ``--demos FOLDER`` the scripts in that folder of mpi4py's source distribution.
Each runs in turn on all sides, after one run that does not count; the median of each side counts, and ours is divided by that of the
fastest peer. The goals: a median of the ratios of at most 1.0, and none above 1.1.

Every side runs without matplotlib, whose pictures some programs show for seconds where it is installed.

``--json FILE`` adds to what is in the file already, so that a long measurement can be made in pieces, with ``--only PATTERN``. Before,
compile all modules to bytecode on every side (``python -m compileall``), or imports are timed without it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parents[1] / "examples"
OURS = "ours"
GOAL_MEDIAN, GOAL_WORST = 1.0, 1.1
Seconds = dict[str, list[float]]


class Program(NamedTuple):
    """A script, from the folder of examples or of demos, and how it is started."""

    path: str
    ranks: int = 2
    arguments: tuple[str, ...] = ()
    stdin: str = ""


_PLAIN = ("pi.py", "kmeans.py", "heat2d.py", "heat3d.py", "halo_exchange.py", "task_farm.py")
_DEMOS = (
    Program("helloworld.py"),
    *(Program(f"osu_{name}.py") for name in ("latency", "bw", "bibw", "multi_lat", "barrier")),
    *(Program(f"osu_{name}.py") for name in ("bcast", "allgather", "alltoall", "alltoallv", "gather", "scatter")),
    *(Program(f"compute-pi/{name}.py", stdin="100\n") for name in ("cpi-cco", "cpi-rma")),
    Program("compute-pi/cpi-dpm.py", ranks=1, arguments=("2",), stdin="100\n"),
    Program("mandelbrot/mandelbrot.py"),
    *(Program(f"nxtval/nxtval-{name}.py") for name in ("threads", "onesided", "scalable", "mpi3")),
    *(Program(f"profiling/{name}.py") for name in ("cpi", "ring", "threads")),
    Program("reductions/test_reductions.py", arguments=("-q",)),
    Program("sequential/test_seq.py"),
    Program("threads/sendrecv.py", ranks=1),
    *(Program(f"mpi-ref-v1/ex-2.{number}.py") for number in ("01", "08", "16", "29", "32", "34", "35")),
    *(
        Program(f"mpi-ref-v1/ex-3.{number}.py")
        for number in ("01", "02", "03", "04", "05", "06", "07", "08", "09", "11", "12", "13")
    ),
    *(Program(f"init-fini/test_{number}.py") for number in range(7)),
    Program("init-fini/test_mpi40.py"),
    *(
        Program("-m", arguments=("mpi4py.futures", f"futures/run_{name}.py"))
        for name in ("cpi", "hello", "primes", "julia", "mandelbrot")
    ),
)
"""Those that need no compiler, no network and no GPU."""


def main() -> None:
    """Measure, print the table and keep the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=PYTHON")
    parser.add_argument(
        "--ours", default=sys.executable, metavar="PYTHON", help="of an environment with this library; else this one"
    )
    parser.add_argument("--demos", type=Path, metavar="FOLDER", help="'demo' of mpi4py's source distribution")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="PATTERN", help="programs whose names match this regular expression")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a run has failed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    pythons = {OURS: options.ours, **dict(peer.split("=", 1) for peer in options.peer)}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "matplotlib.py").write_text("raise ImportError('not measured')\n")
        os.environ["PYTHONPATH"] = folder
        _measure_all(options, pythons)


def _measure_all(options: argparse.Namespace, pythons: dict[str, str]) -> None:
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"seconds": {}, "failed": {}}
    for folder, program in programs(options.demos):
        name = shown(program)
        if re.search(options.only, name):
            times, failed = measure(folder, program, pythons, options.rounds, options.limit)
            kept["seconds"][name] = times
            kept["failed"].pop(name, None)
            if failed:
                kept["failed"][name] = failed
            print(line(name, times), *(f"  {side}: {why}" for side, why in failed.items()), sep="\n", flush=True)
            if options.json:
                options.json.write_text(json.dumps({**described(options), **kept}, indent=1) + "\n")
    print(verdict(kept["seconds"]))


def programs(demos: Path | None) -> list[tuple[Path, Program]]:
    """All that can be run here, each with the folder to run it in."""
    found = [(EXAMPLES, Program(name)) for name in _PLAIN]
    return found + [(demos, program) for program in _DEMOS if demos]


def shown(program: Program) -> str:
    """Its name in tables."""
    return " ".join((program.path, *program.arguments)) + f" ({program.ranks})"


def measure(folder: Path, program: Program, pythons: dict[str, str], rounds: int, limit: float) -> tuple[Seconds, dict[str, str]]:
    """Seconds of each run of each side, in turn, and why a side is left out."""
    folder, program = at_home(folder, program)
    times: Seconds = {side: [] for side in pythons}
    failed: dict[str, str] = {}
    for number in range(rounds + 1):
        for side, python in pythons.items():
            if side in failed:
                continue
            try:
                taken = run(started(side, python, program), folder, program.stdin, limit)
            except RuntimeError as error:
                failed[side] = str(error)
                times.pop(side)
            else:
                if number:
                    times[side].append(round(taken, 4))
    return times, failed


def at_home(folder: Path, program: Program) -> tuple[Path, Program]:
    """The folder of the script itself, whose neighbours it may open, and the program as it is called from there."""
    script = folder / program.path
    return (folder, program) if program.path == "-m" else (script.parent, program._replace(path=script.name))


def started(side: str, python: str, program: Program) -> list[str]:
    """The command line of one side."""
    words = [program.path, *program.arguments]
    if side == OURS:
        return [python, "-m", "ncclx_mpi", "run", "-n", str(program.ranks), *words]
    return [str(Path(python).parent / "mpiexec"), "-n", str(program.ranks), python, *words]


def run(command: list[str], folder: Path, stdin: str, limit: float) -> float:
    """Seconds from start to exit; RuntimeError if the program failed or took too long."""
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    printed_by(command, environment, limit, stdin, cwd=folder, stderr=subprocess.STDOUT)
    return time.perf_counter() - began


def printed_by(command: list[str], environment: dict[str, str], limit: float, stdin: str = "", **where: Any) -> str:
    """What a program prints; RuntimeError if it failed or took too long: then all that it started is ended."""
    job = subprocess.Popen(
        command, env=environment, start_new_session=True, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **where
    )
    try:
        printed, _ = job.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        raise RuntimeError(f"took more than {limit:.0f} s") from error
    if job.returncode:
        raise RuntimeError(f"ended with {job.returncode}: {printed.strip()[-300:]}")
    return str(printed)


def ratio(times: Seconds) -> float | None:
    """Ours divided by the fastest peer, by medians; None if either is missing."""
    peers = [statistics.median(values) for side, values in times.items() if side != OURS]
    return statistics.median(times[OURS]) / min(peers) if peers and OURS in times else None


def line(name: str, times: Seconds) -> str:
    """One line of the table."""
    medians = "  ".join(f"{side} {statistics.median(values):7.3f} s" for side, values in times.items())
    found = ratio(times)
    return f"{name:48} {medians}  {'' if found is None else f'{found:.2f} x'}"


def verdict(seconds: dict[str, Seconds]) -> str:
    """The ratios of all programs beside the goals."""
    ratios = {name: found for name, times in seconds.items() if (found := ratio(times)) is not None}
    if not ratios:
        return "nothing was compared"
    above = [f"{name} {found:.2f}" for name, found in sorted(ratios.items(), key=lambda pair: -pair[1]) if found > GOAL_WORST]
    return (
        f"{len(ratios)} programs, ours / fastest: median {statistics.median(ratios.values()):.2f} (goal {GOAL_MEDIAN}), "
        f"worst {max(ratios.values()):.2f} (goal {GOAL_WORST}); above the goal: {', '.join(above) or 'none'}"
    )


def described(options: argparse.Namespace) -> dict[str, Any]:
    """When, where and with what."""
    names = [name for name in ("ncclx_mpi", "mpi4py", "numpy") if _has(name)]
    model = next((text.split(":")[1].strip() for text in _cpuinfo() if text.startswith("model name")), platform.machine())
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in names} | {name: _wheel(peer) for name, peer in _pairs(options.peer)},
        "what": "wall time in s of whole programs, in turn; in parentheses the number of ranks",
    }


def _pairs(peers: list[str]) -> list[tuple[str, str]]:
    return [(name, python) for name, _, python in (peer.partition("=") for peer in peers)]


def _wheel(python: str) -> str:
    """What that environment's mpi4py says of the library below it."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version().strip(chr(0)).split(chr(10))[0])"
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={**os.environ, "PATH": path}, check=True)
    return re.sub(r"\s+", " ", done.stdout).strip()


def _has(name: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(name))
    return False


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()

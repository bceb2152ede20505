"""What a start takes, from outside: ``python -m benchmarks.start --mpich PYTHON [--before PYTHON] [--json FILE]``.

Whole programs, in turn, ours and mpi4py over MPICH: an import, one barrier of 2 and of 64 ranks under ``ncclx run`` and ``mpiexec``, of 2
ranks below MPICH's ``mpiexec``, and Python that does nothing. PYTHON is that of an environment in which mpi4py and the wheel of MPICH are, or
another version of this library. Install this library as users do: an editable installation, or one without bytecode, takes longer.

The goals, by the least and by the median: 1.5 times MPICH, 2 times below ``mpiexec``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.programs import described

IMPORT = "from {package} import MPI"
BARRIER = "MPI.COMM_WORLD.Barrier()\n"
GOALS = {"import": 1.5, "run2": 1.5, "run2numpy": 1.5, "mpiexec2": 2.0, "run64": 1.5}
_LARGE = 64
Sides = dict[str, list[str]]


def programs(folder: Path, ours: str, before: str | None, mpich: str) -> dict[str, Sides]:
    """The command of each side of each case."""
    for name, first in (("barrier", ""), ("with_numpy", "import numpy\n")):
        (folder / f"{name}.py").write_text(f"{first}{IMPORT.format(package='mpi4py')}\n{BARRIER}")
    mpiexec = str(Path(mpich).parent / "mpiexec")
    plain, with_numpy = str(folder / "barrier.py"), str(folder / "with_numpy.py")
    mine = {"ours": ours} | ({"before": before} if before else {})

    def run(ranks: int, script: str) -> Sides:
        found = {side: [str(Path(python).parent / "ncclx"), "run", "-n", str(ranks), script] for side, python in mine.items()}
        return found | {"mpich": [mpiexec, "-n", str(ranks), mpich, script]}

    return {
        "import": {side: [python, "-c", IMPORT.format(package="ncclx_mpi")] for side, python in mine.items()}
        | {"mpich": [mpich, "-c", IMPORT.format(package="mpi4py")]},
        "run2": run(2, plain),
        "run2numpy": run(2, with_numpy),
        "mpiexec2": {side: [mpiexec, "-n", "2", python, "-m", "ncclx_mpi", plain] for side, python in mine.items()}
        | {"mpich": [mpiexec, "-n", "2", mpich, plain]},
        f"run{_LARGE}": run(_LARGE, plain),
        "python": {"nothing": [ours, "-c", "pass"], "numpy": [ours, "-c", "import numpy"]},
    }


def taken(words: Sequence[str], folder: str) -> float:
    """Milliseconds from start to end of a program, in a folder where Python finds no other version of what it imports."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    begun = time.perf_counter()
    # without a limit, with which it would look for the end every 50 ms
    subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, cwd=folder, check=True)
    return round((time.perf_counter() - begun) * 1e3, 1)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--mpich", metavar="PYTHON", required=True)
    parser.add_argument("--before", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--large-rounds", type=int, default=2, help=f"of {_LARGE} ranks")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(args)
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = programs(Path(folder), options.ours, options.before, options.mpich)
        for number in range(-2, options.rounds):  # two that do not count: they compile, and see that all is compiled
            for case, sides in cases.items():
                for side, words in sides.items():
                    if case == f"run{_LARGE}" and not 0 <= number < options.large_rounds:
                        continue
                    ms = taken(words, folder)
                    if number >= 0:
                        times.setdefault(case, {}).setdefault(side, []).append(ms)
    report(times)
    if options.json:
        about = described(argparse.Namespace(peer=[f"mpich={options.mpich}"]))
        found = {**about, "what": "wall time in ms of whole programs, in turn", "ms": times}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def report(times: dict[str, dict[str, list[float]]]) -> None:
    """Print least and median of each case, and what ours are of MPICH's."""
    for case, sides in times.items():
        line = "  ".join(f"{side} {min(found):.0f} ({statistics.median(found):.0f})" for side, found in sides.items())
        if "mpich" in sides:
            ratios = [pick(sides["ours"]) / pick(sides["mpich"]) for pick in (min, statistics.median)]
            line += f"  {ratios[0]:.2f} ({ratios[1]:.2f}) of {GOALS[case]:g}"
        print(f"{case:10} {line}")


if __name__ == "__main__":
    main()

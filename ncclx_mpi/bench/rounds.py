"""Runs the sides in turn, in short runs, so that what changes on the machine meets all of them alike."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ncclx_mpi.bench.placement import FAR, MIXED, NEAR, classify, flag_round_trip
from ncclx_mpi.bench.points import Point
from ncclx_mpi.bench.sides import Side

_WORKER = str(Path(__file__).with_name("worker.py"))
_HELLO = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
_RUN_LIMIT_S = 600.0
_TRIES = 3
"""Times that a run is made, at most, because the cores were moved."""


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes
    ----------
    rounds
        Times that every side runs.
    seconds
        Time for one point in one run.
    blocks
        Blocks that one point is timed in, at most.
    """

    rounds: int = 7
    seconds: float = 0.2
    blocks: int = 7


SWEEP = Effort(rounds=5, seconds=0.02, blocks=5)
"""For the thousand points of the sweep: some 15 minutes against three peers."""


@dataclass
class Run:
    """One start of one side: what it measured, and how the cores were placed before and after.

    Attributes
    ----------
    trips
        Flag round trips in microseconds, before and after.
    results
        The worker's answers; empty if the run failed.
    failure
        Why it failed.
    """

    side: str
    nranks: int
    round: int
    trips: list[float | None] = field(default_factory=list)
    placement: str = "unknown"
    library: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""


def measure(
    sides: Sequence[Side], groups: Iterable[Sequence[Point]], effort: Effort, earlier: Iterable[dict[str, Any]] = ()
) -> Iterator[Run]:
    """Yield the runs: for each round and each group of points (all of one rank count), every side once that is for any of them.

    Where the cores were moved, each placement has had less than its rounds: as many more follow, of what the placement of that moment lacks.
    What `earlier` runs (as dictionaries) hold is not measured again.
    """
    batches, done = list(groups), _Done(earlier)
    for number in range(2 * effort.rounds):
        for batch in batches:
            for side in sides:
                wanted = [point for point in batch if side.is_for(point)]
                if done.has(side, number, wanted) or (number >= effort.rounds and not done.lacks(side, wanted, effort.rounds)):
                    continue
                run = _steady_run(side, wanted, number, effort)
                done.add(asdict(run))
                yield run


class _Done:
    """What has been measured: the points that each side has in each round, and how often in which placement."""

    def __init__(self, runs: Iterable[dict[str, Any]]) -> None:
        self._points: dict[tuple[str, int], set[Point]] = defaultdict(set)
        self._counts: dict[tuple[Point, str], Counter[str]] = defaultdict(Counter)
        for run in runs:
            self.add(run)

    def add(self, run: dict[str, Any]) -> None:
        points = {Point(result["case"], result["bytes"], result["ranks"]) for result in run["results"]}
        self._points[run["side"], run["round"]] |= points
        for point in points:
            self._counts[point, run["placement"]][run["side"]] += 1

    def has(self, side: Side, number: int, wanted: Iterable[Point]) -> bool:
        """Whether these points of a round need not be measured."""
        return self._points[side.name, number].issuperset(wanted)

    def lacks(self, side: Side, wanted: Iterable[Point], rounds: int) -> bool:
        """Whether sides were compared in the placement that the cores have now, and this one less than so many times."""
        counts = {
            placement: [self._counts[point, placement] for point in wanted if point.has_placement] for placement in (NEAR, FAR)
        }
        few = [placement for placement, each in counts.items() if any(count and count[side.name] < rounds for count in each)]
        return bool(few) and classify(flag_round_trip()) in few


def _steady_run(side: Side, wanted: Sequence[Point], number: int, effort: Effort) -> Run:
    """Carry a run out; once more, a few times at most, if the cores were moved meanwhile and that spoils it."""
    tries, is_spoiled = 0, True
    while is_spoiled and tries < _TRIES:
        tries, run = tries + 1, Run(side.name, wanted[0].nranks, number)
        run.trips.append(flag_round_trip())
        _carry_out(run, side, wanted, effort)
        run.trips.append(flag_round_trip())
        run.placement = classify(*run.trips)
        is_spoiled = run.placement == MIXED and not run.failure and any(point.has_placement for point in wanted)
    return run


def group(points: Iterable[Point], largest: int = 5) -> list[list[Point]]:
    """Cut points into runs: one rank count and similar sizes each, few enough that the cores stay where they are."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda point: (point.nranks, point.case == "startup", point.nbytes)):
        last = groups[-1] if groups else []
        alike = last and last[0].nranks == point.nranks and (last[0].case == "startup") == (point.case == "startup")
        if alike and len(last) < largest:
            last.append(point)
        else:
            groups.append([point])
    return groups


def _carry_out(run: Run, side: Side, batch: Sequence[Point], effort: Effort) -> None:
    with tempfile.TemporaryDirectory(prefix="ncclx-bench-") as folder:
        try:
            if batch[0].case == "startup":
                run.results = [_time_startup(side, batch[0].nranks, folder)]
            else:
                _run_worker(run, side, batch, effort, Path(folder))
        except (subprocess.SubprocessError, OSError) as error:
            run.failure = without_folders(str(error))  # results files are published
            print(f"# {side.name}, {run.nranks} ranks: {error}", file=sys.stderr, flush=True)


def without_folders(text: str) -> str:
    """Return `text` with each absolute path cut to its last name."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:'\"`(\[]+/)+", "", text)


def _run_worker(run: Run, side: Side, batch: Sequence[Point], effort: Effort, folder: Path) -> None:
    plan = {"points": [(p.case, p.nbytes) for p in batch], "seconds": effort.seconds, "blocks": effort.blocks}
    (folder / "points.json").write_text(json.dumps(plan))
    command = side.command(run.nranks, _WORKER, str(folder / "points.json"), str(folder / "results.json"))
    _run(command, side.environment, str(folder))
    report = json.loads((folder / "results.json").read_text())
    run.library, run.results = report["library"], report["results"]


def _time_startup(side: Side, nranks: int, folder: str) -> dict[str, Any]:
    begun = time.perf_counter()
    _run(side.command(nranks, "-c", _HELLO), side.environment, folder)
    taken = (time.perf_counter() - begun) * 1e6
    return {"case": "startup", "bytes": 0, "ranks": nranks, "calls": 1, "us": taken, "wrong": 0}


def _run(command: list[str], environment: dict[str, str], folder: str) -> None:
    """Run to the end, or end the whole process group; raises SubprocessError with what it printed last."""
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=_RUN_LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        tail = "\n".join(output.strip().splitlines()[-12:])
        raise subprocess.SubprocessError(f"`{' '.join(command)}` ended with status {process.returncode}:\n{tail}")

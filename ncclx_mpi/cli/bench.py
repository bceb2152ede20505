"""``ncclx bench``: measure, alone or against real MPI libraries."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ncclx_mpi import __version__
from ncclx_mpi.bench import points, regret, report, rounds, sides, summary, tune
from ncclx_mpi.bench.points import Point
from ncclx_mpi.cli.info import processor
from ncclx_mpi.cli.main import program_name

_BATCH, _SWEEP_BATCH = 5, 120
"""Points of one run: few, so that the cores stay where they are; in a sweep so many that starting takes the lesser part of the time."""

_STYLES = {"osu": report.osu, "nccl": report.nccl, "table": report.comparison}


def main(args: list[str]) -> int:
    """Measure, print the tables, and return 1 if a goal is missed."""
    options = _parse(args)
    if options.tune:
        return _tune(options)
    try:
        wanted = _points(options)
        contestants = list(regret.sides(wanted)) if options.regret else [sides.ours(), *_peers(options)]
        runs = _earlier_runs(options)
    except (ValueError, OSError) as error:
        print(f"{program_name()} bench: {error}", file=sys.stderr)
        return 2
    effort = _effort(options)
    batches = regret.group(wanted) if options.regret else rounds.group(wanted, _SWEEP_BATCH if options.sweep else _BATCH)
    if options.peers_only:
        contestants = contestants[1:]
    for run in rounds.measure(contestants, batches, effort, list(runs)):
        runs.append(dataclasses.asdict(run))
        total = effort.rounds * sum(any(map(side.is_for, batch)) for side in contestants for batch in batches)
        _show_progress(len(runs), total, run)
        if options.json:
            _save(options.json, runs, effort, regret.to_json if options.regret else summary.Row.to_json)
    rows = summary.summarize(runs)
    _print(rows, runs, options)
    return _status(rows, runs, options)


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"{program_name()} bench", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"default: all of the list; of {', '.join(points.CASES)}")
    parser.add_argument("-n", "--ranks", default="", help="ranks, such as 2,8")
    parser.add_argument("-b", "--bytes", default="", help="sizes, such as 8,64K,1M (bytes from one rank to one other)")
    parser.add_argument("--list", choices=points.LISTS, default="standard", help="the points; only the standard list has goals")
    parser.add_argument("--sweep", action="store_true", help="0 B to 64 MiB, every collective, 1, 2, 3, 4 and 8 ranks")
    parser.add_argument("--regret", action="store_true", help="automatic choices against each of them forced, 64 KiB to 16 MiB")
    parser.add_argument(
        "--tune",
        type=Path,
        metavar="FILE",
        help="under a launcher: measure all plans on the ranks of this job, show the regret of choices, and write a tuning table",
    )
    parser.add_argument("--against", default="", metavar="PEER,...", help=f"compare with {', '.join(sides.PEERS)}")
    parser.add_argument("--peer-python", action="append", default=[], metavar="PEER=PATH", help="use this interpreter")
    parser.add_argument("--peers-only", action="store_true", help="leave our own side out")
    parser.add_argument("--rounds", type=int, help="times that every side runs, in turn (7, in a sweep 5)")
    parser.add_argument("--seconds", type=float, help="time for one point in one run (0.2, in a sweep 0.02)")
    parser.add_argument("--blocks", type=int, help="blocks that a point is timed in, at most (7, in a sweep 5)")
    parser.add_argument("--style", choices=_STYLES, default=None, help="table; default: osu alone, table with peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs and the summary, after every run")
    parser.add_argument("--resume", action="store_true", help="measure only what the file of --json does not hold yet")
    options = parser.parse_args(args)
    if options.regret and (options.sweep or options.against or options.peers_only or options.style or options.list != "standard"):
        parser.error(
            "--regret compares this engine with itself: it goes with cases, -n, -b, --rounds, --seconds, --blocks, --json, --resume"
        )
    others = ("ranks", "sweep", "regret", "against", "peers_only", "style", "json", "resume")
    if options.tune and (any(getattr(options, name) for name in others) or options.list != "standard"):
        parser.error("--tune measures the job in which it runs: it goes with cases, -b, --rounds, --seconds, --blocks")
    return options


def _tune(options: argparse.Namespace) -> int:
    from ncclx_mpi.cli.tune import measure

    try:
        nbytes = [points.parse_size(text) for text in options.bytes.split(",") if text]
    except ValueError as error:
        print(f"{program_name()} bench: {error}", file=sys.stderr)
        return 2
    return measure(options.tune, options.case, nbytes, _effort(options), _machine())


def _effort(options: argparse.Namespace) -> rounds.Effort:
    """Return the usual effort for the list, or for the sweep, with what the options change."""
    usual = tune.EFFORT if options.tune else regret.EFFORT if options.regret else rounds.SWEEP if options.sweep else rounds.Effort()
    given = {name: value for name in ("rounds", "seconds", "blocks") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(usual, **given)


def _earlier_runs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the runs of the file that is resumed; of ranks, cases and sizes beyond this call, too."""
    if not options.resume:
        return []
    if not options.json:
        raise ValueError("--resume goes on with the file of --json; name it")
    if not options.json.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(options.json.read_text())["runs"]
    return [run for run in runs if not run["failure"]]


def _peers(options: argparse.Namespace) -> list[sides.Side]:
    interpreters = dict(text.split("=", 1) for text in options.peer_python if "=" in text)
    names = [name for name in options.against.split(",") if name]
    return [sides.peer(name, interpreters.get(name)) for name in names]


def _points(options: argparse.Namespace) -> list[Point]:
    """Return what the options select: a list's points, the sweep, or cases x sizes x ranks."""
    unknown = [case for case in options.case if case not in points.CASES]
    if unknown:
        raise ValueError(f"unknown case {unknown[0]!r}; there are {', '.join(points.CASES)}")
    ranks = [int(text) for text in options.ranks.split(",") if text]
    nbytes = [points.parse_size(text) for text in options.bytes.split(",") if text]
    if options.sweep:
        return list(points.sweep(options.case or points.COLLECTIVES, ranks or points.SWEEP_RANKS, nbytes or points.SWEEP_BYTES))
    if options.case and nbytes:
        return [Point(case, size, n) for case in options.case for n in ranks or [2] for size in nbytes]
    listed = [
        point
        for point in (regret.POINTS if options.regret else points.LISTS[options.list])
        if (not options.case or point.case in options.case)
        and (not ranks or point.nranks in ranks)
        and (not nbytes or point.nbytes in nbytes)
    ]
    if not listed:
        name = "regret" if options.regret else options.list
        raise ValueError(f"the {name} list has no such point; give the sizes with -b")
    return listed


def _show_progress(done: int, total: int, run: rounds.Run) -> None:
    state = run.placement if not run.failure else "FAILED"
    print(f"# {done}/{max(done, total)} round {run.round + 1} {run.side} n={run.nranks} cores {state}", file=sys.stderr, flush=True)


def _print(rows: Sequence[summary.Row], runs: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    style = options.style or ("table" if options.against else "osu")
    print(f"# ncclx_mpi {__version__}, {_machine()}")
    if options.regret:
        print("\n".join(regret.table(rows)))
        return
    for name, library in sorted({(run["side"], run["library"]) for run in runs if run["library"]}):
        print(f"# {name}: {library}")
    lines: Iterable[str]
    lines = report.nccl(rows, _wrong(runs)) if style == "nccl" else _STYLES[style](rows)
    for line in lines:
        print(line)
    if options.sweep and options.against:
        _print_cliffs(rows)
    elif options.against and options.list == "standard":
        for line in summary.missing(rows):
            print(f"# {line}")


def _print_cliffs(rows: Sequence[summary.Row]) -> None:
    out, allowed = summary.cliffs(rows)
    compared = sum(row.ratio is not None for row in rows)
    print(f"# {len(out)} of {compared} points are out of tolerance ({allowed} may be):")
    for line in report.comparison(out):
        print(f"#   {line}")


def _wrong(runs: Iterable[dict[str, Any]]) -> dict[Point, int]:
    """Return the wrong elements of our side, by point."""
    counts: dict[Point, int] = {}
    for run in runs:
        for result in run["results"] if run["side"] == summary.OURS else ():
            point = Point(result["case"], result["bytes"], result["ranks"])
            counts[point] = counts.get(point, 0) + result["wrong"]
    return counts


def _status(rows: Sequence[summary.Row], runs: Sequence[dict[str, Any]], options: argparse.Namespace) -> int:
    """Return 1 for a missed goal, a regret or a cliff too many, a wrong result or a failed run."""
    failed = any(run["failure"] for run in runs) or any(_wrong(runs).values())
    out, allowed = summary.cliffs(rows)
    verdicts = [regret.verdict(row) if options.regret else row.verdict for row in rows]
    slow = len(out) > allowed if options.sweep else "FAIL" in verdicts
    return int(failed or slow)


def _save(
    path: Path, runs: Sequence[dict[str, Any]], effort: rounds.Effort, to_json: Callable[[summary.Row], dict[str, Any]]
) -> None:
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": {name: version(name) for name in ("numpy", "numba", "mpi4py")} | {"ncclx_mpi": __version__},
        "effort": dataclasses.asdict(effort),
        "summary": [to_json(row) for row in summary.summarize(runs)],
        "runs": list(runs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text("{\n" + ",\n".join(f'"{name}": {_text(value)}' for name, value in document.items()) + "\n}\n")
    partial.replace(path)


def _text(value: Any) -> str:
    """Return JSON with an item of a list in each line and no more digits than were measured: a sweep has 22,000 results."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f" {_text(item)}" for item in value) + "\n]"
    return json.dumps(_rounded(value))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _machine() -> str:
    return f"{len(os.sched_getaffinity(0))} cores, {processor()}, Python {platform.python_version()}"

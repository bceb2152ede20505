"""What benchmarks have in common that run one program on this library and on mpi4py over other MPIs, in turns.

Such a benchmark is a script that is its own program: ``script.py --worker ARGUMENTS...``, started on the ranks of each side, prints the times
of its cases as one JSON object. Command line, starting, tables and files are here. Programs do not import this module, only what starts them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.programs import OURS, described, printed_by
from ncclx_mpi.bench import sides
from ncclx_mpi.bench.sides import Side

Times = dict[str, dict[str, list[float]]]
"""Of each case, on each side, of each round."""
_SPAWNING = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "I_MPI_SPAWN": "1"}
"""What Open MPI (on few cores) and Intel MPI want where a program spawns processes."""


def parser(doc: str | None, ranks: int, rounds: int = 5) -> argparse.ArgumentParser:
    """The options that all have."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="mpich, openmpi or impi, each beside its mpiexec"
    )
    found.add_argument("--before", metavar="PYTHON", help="of an environment with another version of this library")
    found.add_argument("-n", type=int, default=ranks, help="ranks")
    found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument(
        "--only", default="", metavar="PATTERN", help="cases whose names match this regular expression are shown and kept"
    )
    found.add_argument("--limit", type=float, default=120, help="seconds after which a run has failed")
    found.add_argument("--json", type=Path, metavar="FILE")
    return found


def all_sides(options: argparse.Namespace) -> list[Side]:
    """Ours first, then the version before, then the peers."""
    own = sides.ours()
    found = [own._replace(name=OURS)]
    if options.before:
        environment = {name: value for name, value in own.environment.items() if name != "PYTHONPATH"}
        found.append(Side("before", lambda n: [options.before, "-m", "ncclx_mpi", "run", "-n", str(n)], environment))
    for name, _, python in (peer.partition("=") for peer in options.peer):
        side = sides.peer(name, python)
        found.append(side._replace(environment=side.environment | _SPAWNING))
    return found


def measure(script: str, options: argparse.Namespace, *arguments: str, ranks: int = 0, before: Sequence[str] = ()) -> Times:
    """Run a program on all sides, round by round; `before` are words for Python in front of the script."""
    times: Times = {}
    for number in range(options.rounds):
        for side in all_sides(options):
            words = side.command(ranks or options.n, *before, script, "--worker", *arguments)
            print(f"round {number + 1} of {options.rounds}: {side.name}", file=sys.stderr, flush=True)
            try:
                printed = printed_by(words, side.environment, options.limit)
            except RuntimeError as error:
                if side.name in (OURS, "before"):
                    raise
                print(f"{side.name}: {error}", file=sys.stderr)  # what a peer cannot do, or only sometimes, has no time there
                continue
            for case, taken in json.loads(printed).items():
                if re.search(options.only, case):
                    times.setdefault(case, {}).setdefault(side.name, []).append(taken)
    return times


def report(
    times: Times, options: argparse.Namespace, what: str, unit: str, pick: Callable[[list[float]], float] = statistics.median
) -> None:
    """Print what `pick` makes of all rounds, and ours over that of the fastest peer, and keep it with all times."""
    rows = {case: _row(by_side, pick) for case, by_side in times.items()}
    for case, row in rows.items():
        print(f"{case:44s}", *(f"{name} {value:9.3f}" for name, value in row.items()))
    if options.json:
        facts: dict[str, Any] = described(options) | {"what": what, "unit": unit, "n": options.n, "rounds": options.rounds}
        kept = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}, "all": {}}
        kept["rows"] |= rows
        kept["all"] |= {
            case: {side: [round(one, 4) for one in each] for side, each in by_side.items()} for case, by_side in times.items()
        }
        options.json.write_text(json.dumps({**facts, **kept}, indent=1) + "\n")


def _row(by_side: dict[str, list[float]], pick: Callable[[list[float]], float]) -> dict[str, float]:
    picked = {side: pick(each) for side, each in by_side.items()}
    row = {side: round(value, 3) for side, value in picked.items()}
    peers = [value for side, value in picked.items() if side not in (OURS, "before")]
    if peers:
        row["ours/fastest"] = round(picked[OURS] / min(peers), 2)
    if "before" in picked:
        row["ours/before"] = round(picked[OURS] / picked["before"], 2)
    return row

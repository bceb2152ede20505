"""What the automatic choice of a plan between hosts costs beside the best one: ``python benchmarks/plan_regret.py``, as root.

Hosts are namespaces, as in ``between_hosts.py``, with as many ranks on each as ``--layouts`` says: ``2x4`` is two hosts of four. Five
collectives of 8 B to 16 MiB go by the automatic choice, and by each plan that is forced, call by call in random order. Of each call the time
of the slowest rank counts, of these the mean, and of the rounds the least. The regret is the time of the plan that was chosen over the best
one's, where that was measured twice, chosen and forced, the lesser; how far the two are apart says what noise is left.

With ``--tune`` the choice is made as where somebody has measured: first, in jobs of their own, ``ncclx bench --tune`` writes a table of these
hosts, by which the measured jobs choose.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))

import between_hosts  # noqa: E402

COLLECTIVES = ("allreduce", "bcast", "allgather", "alltoall", "reduce_scatter")
SIZES = (8, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20)
AUTO = "auto"
GOAL = 1.15
_BYTES, _MOST, _FEWEST = 32 << 20, 100, 6
"""A plan is called so often that this many bytes go, but not more than the second, nor less than the third."""


def main() -> None:
    """Run all layouts, and print a line for each point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", default="2x2,2x4,4x1")
    parser.add_argument("--only", default=",".join(COLLECTIVES), help="collectives: allreduce,bcast")
    parser.add_argument("--tune", action="store_true", help="choose by a table that is measured before")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = options.only.split(",")
    if options.rank:
        bind(options.rank)
        if options.table:
            tune(options.table, only)
        else:
            be_rank(only)
        return
    points: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for layout in options.layouts.split(","):
            table = str(Path(folder, layout)) if options.tune else ""
            for point, found in measured(layout, options.rounds, options.only, table):
                for name, us in found["us"].items():
                    points.setdefault(f"{layout} {point}", {}).setdefault(name, []).append(us)
                points[f"{layout} {point}"]["chosen"] = [found["chosen"]]
    report(points)
    if options.json:
        about = {"date": time.strftime("%Y-%m-%d"), "unit": "us", "goal": GOAL, "by_table": options.tune, "rounds": points}
        Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def measured(layout: str, rounds: int, only: str, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The points of all rounds, after the table was measured that they choose by, if one is named."""
    hosts, ranks = map(int, layout.split("x"))
    words = ["--rank", str(ranks), "--only", only]

    def said(*more: str, **variables: str) -> dict[str, Any]:
        (found,) = between_hosts.said_by_all(between_hosts.ours(ranks, *words, *more, count=hosts, program=HERE), **variables)
        return found

    with between_hosts.hosts(count=hosts):
        if table:
            print(f"{layout}: table", file=sys.stderr)
            said("--table", table)
        for number in range(rounds):
            print(f"{layout}: round {number + 1} of {rounds}", file=sys.stderr)
            yield from said(**({"NCCLX_MPI_TUNING_FILE": table} if table else {})).items()


def report(points: dict[str, dict[str, Any]]) -> None:
    """A line for each point, and how many hold."""
    held = 0
    for point, times in points.items():
        best = {name: min(us) for name, us in times.items() if name != "chosen"}
        first = min(best, key=lambda name: best[name])
        (chosen,) = times["chosen"]
        regret, noise = min(best[AUTO], best[chosen]) / best[first], best[AUTO] / best[chosen]
        held += regret <= GOAL
        print(f"{point:32} {best[AUTO]:11.1f} us by {chosen:24} {regret:5.2f} x {first:24} itself forced {noise:5.2f}")
    print(f"{held} of {len(points)} within {GOAL}")


def bind(ranks: int) -> None:
    """To the core that this rank has, so that the hosts use all alike."""
    from mpi4py import MPI

    between_hosts.bind(MPI.COMM_WORLD.rank, ranks)


def tune(table: str, only: list[str]) -> None:
    """Be a rank of the jobs that write a table, as a user has it written."""
    from mpi4py import MPI

    from ncclx_mpi.cli import bench

    size = MPI.COMM_WORLD.size
    scattered = [name for name in only if name == "reduce_scatter"]  # of which a size is said for each rank
    for cases, sizes in (
        ([name for name in only if name not in scattered], SIZES),
        ([f"{name}_block" for name in scattered], [max(each // size, 4) for each in SIZES]),
    ):
        status = bench.main(["--tune", table, *cases, "-b", ",".join(map(str, sizes))]) if cases else 0
        if status:
            raise SystemExit(status)
    if MPI.COMM_WORLD.rank == 0:
        print("{}", flush=True)


def be_rank(only: list[str]) -> None:
    """Measure all points, and say them."""
    from mpi4py import MPI

    from ncclx_mpi.algorithms import PLAN, Case, choose, rows_of

    comm, found = MPI.COMM_WORLD, {}
    nodes, table = comm._state.native.nodes, comm._state.native.table
    for name in only:
        names = [row.name for row in rows_of(name) if row.kind == PLAN]
        comms = {AUTO: comm, **{each: between_hosts.flat_twin(comm, name, each)[between_hosts.FLAT] for each in names}}
        for size in SIZES:
            nbytes = max(size, 4 * comm.size) if name == "reduce_scatter" else size  # an element for each rank
            calls = {each: between_hosts.call_of(name, comms[each], nbytes) for each in comms}
            us = between_hosts.means_in_turn(comm, calls, max(_FEWEST, min(_MOST, _BYTES // nbytes)))
            case = Case(comm.size, nbytes * (comm.size if name == "alltoall" else 1), 4, nodes=nodes, table=table)
            found[f"{name} {nbytes}"] = {"us": us, "chosen": choose(name, case).name}
        for each in names:
            comms[each].Free()
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

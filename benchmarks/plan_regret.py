"""What the automatic choice of a plan between hosts costs beside the best one: ``python benchmarks/plan_regret.py``, as root.

Hosts are namespaces, as in ``between_hosts.py``, with as many ranks on each as ``--layouts`` says: ``2x4`` is two hosts of four. Five
collectives of 8 B to 16 MiB go by the automatic choice, and by each plan that is forced, call by call in random order. Of each call the time
of the slowest rank counts, of these the mean, and of the rounds the least. The regret is the automatic one's over the best one's; what is
forced and is what was chosen anyway says how far two runs of one plan are apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

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
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = options.only.split(",")
    if options.rank:
        be_rank(options.rank, only)
        return
    points: dict[str, dict[str, list[float]]] = {}
    for layout in options.layouts.split(","):
        hosts, ranks = map(int, layout.split("x"))
        with between_hosts.hosts(count=hosts):
            for number in range(options.rounds):
                print(f"{layout}: round {number + 1} of {options.rounds}", file=sys.stderr)
                words = [str(HERE), "--rank", str(ranks), "--only", options.only]
                lines = [[*line[: line.index(str(between_hosts.HERE))], *words] for line in between_hosts.ours(ranks, count=hosts)]
                (said,) = between_hosts.said_by_all(lines)
                for point, found in said.items():
                    for name, us in found["us"].items():
                        points.setdefault(f"{layout} {point}", {}).setdefault(name, []).append(us)
                    points[f"{layout} {point}"]["chosen"] = [found["chosen"]]
    report(points)
    if options.json:
        about = {"date": time.strftime("%Y-%m-%d"), "unit": "us", "goal": GOAL, "rounds": points}
        Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def report(points: dict[str, dict[str, Any]]) -> None:
    """A line for each point, and how many hold."""
    held = 0
    for point, times in points.items():
        best = {name: min(us) for name, us in times.items() if name != "chosen"}
        first = min(best, key=lambda name: best[name])
        (chosen,) = times["chosen"]
        regret, noise = best[AUTO] / best[first], best[AUTO] / best[chosen]
        held += regret <= GOAL
        print(f"{point:32} {best[AUTO]:11.1f} us by {chosen:24} {regret:5.2f} x {first:24} itself forced {noise:5.2f}")
    print(f"{held} of {len(points)} within {GOAL}")


def be_rank(ranks: int, only: list[str]) -> None:
    """Measure all points, and say them."""
    from mpi4py import MPI

    from ncclx_mpi.algorithms import PLAN, Case, choose, rows_of
    from ncclx_mpi.nodes import NodeMap

    comm, found, dice = MPI.COMM_WORLD, {}, np.random.default_rng(1)
    between_hosts.bind(comm.rank // ranks + comm.rank)
    nodes = NodeMap(tuple(rank // ranks for rank in range(comm.size)))
    for name in only:
        names = [row.name for row in rows_of(name) if row.kind == PLAN]
        comms = {AUTO: comm, **{each: between_hosts.flat_twin(comm, name, each)[between_hosts.FLAT] for each in names}}
        for size in SIZES:
            nbytes = max(size, 4 * comm.size) if name == "reduce_scatter" else size  # an element for each rank
            calls = {each: between_hosts.call_of(name, comms[each], nbytes) for each in comms}
            times = {each: np.zeros(max(_FEWEST, min(_MOST, _BYTES // nbytes)) + 1) for each in comms}
            for number in range(len(times[AUTO])):
                for each in dice.permutation(list(calls)):  # whether ranks that share a core sleep depends on what was before
                    comm.Barrier()
                    begun = time.perf_counter()
                    calls[each]()
                    times[each][number] = (time.perf_counter() - begun) * 1e6
            us = {}
            for each, own in times.items():
                slowest = np.zeros_like(own)
                comm.Allreduce(own, slowest, op=MPI.MAX)
                us[each] = float(np.mean(slowest[1:]))  # the first call makes the plan, and what it needs
            case = Case(comm.size, nbytes * (comm.size if name == "alltoall" else 1), 4, nodes=nodes)
            found[f"{name} {nbytes}"] = {"us": us, "chosen": choose(name, case).name}
        for each in names:
            comms[each].Free()
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""How much of a non-blocking collective goes on while the rank computes, without and with a thread that makes progress.

python benchmarks/overlap.py [--ranks 2] [--rounds 5] [--processors LIST] [--json FILE]

As OSU's micro-benchmarks have it: `pure` is the time of a call and its wait; then call, as much work as takes `pure`, and wait, which takes
`overall`. Overlap is 100 (1 - (overall - work) / pure) %, and not less than 0. `others_wait` is how long the others
wait where rank 0 does ten times the work after it has started its part. The work is so many products of small matrices, whatever time
they take: a thread that takes the processor away from them makes `overall` longer. Ranks share memory, or are joined by a simulated
network whose packets take 50 us, during which processors have nothing to do for it. Settings take turns; medians of calls, then of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NBYTES = 1 << 20
CALLS = 40
WAYS = {
    "shared memory": {},
    "network of 50 us": {"NCCLX_MPI_TOPOLOGY": "nolocal", "NCCLX_MPI_NETWORK": "delay=50"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processors", default="", help="for threads of their own, one a rank")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = ["off", "on", *filter(None, [options.processors])]
    rounds = [
        (way, setting, _run(options.ranks, {**variables, "NCCLX_MPI_PROGRESS_THREAD": setting}))
        for _ in range(options.rounds)
        for way, variables in WAYS.items()
        for setting in settings
    ]
    rows = [_row(way, setting, [found for *key, found in rounds if key == [way, setting]]) for way in WAYS for setting in settings]
    for row in rows:
        for call, figures in row["calls"].items():
            print(f"{row['way']:18} {row['thread']:6} {call:11}", *(f"{name} {value:8.1f}" for name, value in figures.items()))
    if options.json:
        about = {"ranks": options.ranks, "rounds": options.rounds, "bytes": NBYTES, "cores": os.cpu_count()}
        options.json.write_text(
            json.dumps({**about, "date": time.strftime("%Y-%m-%d"), "unit": "us", "rows": rows}, indent=1) + "\n"
        )


def _run(nranks: int, variables: dict[str, str]) -> dict[str, dict[str, float]]:
    """What the ranks of one job measure."""
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), __file__, "--worker"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def _row(way: str, setting: str, found: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    calls = {
        call: {name: round(statistics.median(each[call][name] for each in found), 1) for name in figures}
        for call, figures in found[0].items()
    }
    return {"way": way, "thread": setting, "calls": calls}


def worker() -> None:
    """Measure on this rank, and print what the slowest rank saw on the first."""
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    count = NBYTES // 8
    own, every = np.full(count * comm.size, comm.rank + 1.0), np.zeros(count * comm.size)
    calls: dict[str, Callable[[], Any]] = {
        "Iallreduce": lambda: comm.Iallreduce(own[:count], every[:count]),
        "Ialltoall": lambda: comm.Ialltoall(own, every),
        "Iallgather": lambda: comm.Iallgather(own[:count], every),
    }
    found = {}
    for name, call in calls.items():
        pure = _median(comm, lambda call=call: call().Wait())
        products = max(1, round(pure / _median(comm, _work(100)) * 100))
        work = _median(comm, _work(products))
        overall = _median(comm, lambda call=call, products=products: _both(call, _work(products)))
        overlap = min(max(0.0, 100 * (1 - (overall - work) / pure)), 100.0)
        times = {"pure": pure, "work": work, "overall": overall, "others_wait": _others_wait(comm, call, _work(products))}
        found[name] = {**{key: seconds * 1e6 for key, seconds in times.items()}, "overlap_percent": overlap}
    if comm.rank == 0:
        print(json.dumps(found))


def _work(products: int) -> Callable[[], None]:
    import numpy as np

    one, other, result = np.ones((24, 24)), np.ones((24, 24)), np.zeros((24, 24))

    def work() -> None:
        for _ in range(products):
            np.dot(one, other, out=result)

    return work


def _both(call: Callable[[], Any], work: Callable[[], None]) -> None:
    request = call()
    work()
    request.Wait()


def _others_wait(comm: Any, call: Callable[[], Any], work: Callable[[], None]) -> float:
    """Seconds that other ranks wait while rank 0, which has started its part, does ten times the work before it waits."""

    def once() -> None:
        request = call()
        for _ in range(0 if comm.rank else 10):
            work()
        request.Wait()

    return _median(comm, once, comm.rank > 0)


def _median(comm: Any, function: Callable[[], Any], counts: bool = True) -> float:
    """Seconds of the function, of the rank that is slowest of those that count; the first calls do not."""
    from mpi4py import MPI

    times = []
    for _ in range(CALLS):
        comm.Barrier()
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    found: float = comm.allreduce(statistics.median(times[5:]) if counts else 0.0, op=MPI.MAX)
    return found


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()

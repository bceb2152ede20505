"""Workers that a program starts, and tasks for a pool of them, ours beside mpi4py over other MPIs, in turns.

python benchmarks/spawning.py [--peer NAME=PYTHON]... [--rounds 5] [--json FILE]

- Spawn: 4 processes that find their parent, meet it in a barrier and disconnect; until all of that is done.
- MPIPoolExecutor: 1,000 tasks of 1 KiB there and back for 4 workers, from the first submit to the last result, with the start of the workers
  in it ("and boot") and, in a second thousand, without. Workers are spawned, or ranks of ``-m mpi4py.futures``.

Times are seconds, in the program. A peer that fails in a round has no time of it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

WORKERS, TASKS, NBYTES = 4, 1000, 1 << 10
SPAWNED = "from mpi4py import MPI; parent = MPI.Comm.Get_parent(); parent.Barrier(); parent.Disconnect()"


def main() -> None:
    from benchmarks import in_turn

    options = in_turn.parser(__doc__, ranks=1).parse_args()
    times = in_turn.measure(__file__, options, "spawn", ranks=1)
    times |= in_turn.measure(__file__, options, "pool", ranks=1)
    times |= in_turn.measure(__file__, options, "ranks", ranks=1 + WORKERS, before=("-m", "mpi4py.futures"))
    in_turn.report(times, options, "4 processes that a program starts, and a pool of 4 workers", "s")


def spawn() -> dict[str, float]:
    """Seconds from Spawn to the end of Disconnect."""
    from mpi4py import MPI

    begun = time.perf_counter()
    workers = MPI.COMM_SELF.Spawn(sys.executable, args=["-c", SPAWNED], maxprocs=WORKERS)
    workers.Barrier()
    workers.Disconnect()
    return {"Spawn, Barrier, Disconnect": time.perf_counter() - begun}


def same(data: bytes) -> bytes:
    """A task."""
    return data


def tasks(kind: str) -> dict[str, float]:
    """Seconds of a thousand tasks, twice."""
    from mpi4py.futures import MPIPoolExecutor

    data, found = bytes(NBYTES), {}
    with MPIPoolExecutor(WORKERS) as pool:
        for name in (f"1,000 tasks and boot, {kind}", f"1,000 tasks, {kind}"):
            begun = time.perf_counter()
            futures = [pool.submit(same, data) for _ in range(TASKS)]
            assert all(len(future.result()) == NBYTES for future in futures)
            found[name] = time.perf_counter() - begun
    return found


def worker(what: str) -> None:
    """Measure, and print."""
    print(json.dumps(spawn() if what == "spawn" else tasks("spawned" if what == "pool" else "ranks")))


if __name__ == "__main__":
    worker(sys.argv[2]) if sys.argv[1:2] == ["--worker"] else main()

"""What waiting costs those who do not wait, and large messages, ours beside mpi4py over other MPIs, in turns.

python benchmarks/waits.py [--peer NAME=PYTHON]... [--before PYTHON] [--rounds 5] [--json FILE]

- 3, 4 and 8 ranks, of which two compute for 1 to 10 ms and then all meet in a barrier: milliseconds of a turn. Where ranks outnumber cores,
  what a wait does decides how many cores those two have.
- 1 GiB between two ranks: milliseconds of a call, of ours through shared memory, as in containers whose kernel does not copy between
  processes (``NCCLX_MPI_COPIES=piped``); a peer does what it does.

Ranks are not bound. The best of some calls counts, then the median of rounds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

CROWDS = (3, 4, 8)
LARGE, STEPS = 1 << 30, 20_000


def main() -> None:
    from benchmarks import in_turn

    options = in_turn.parser(__doc__, ranks=2).parse_args()
    times = in_turn.measure(__file__, options, "large", ranks=2)
    steps = int(STEPS / min(compute(STEPS) for _ in range(50)))
    for ranks in CROWDS:
        times |= in_turn.measure(__file__, options, "crowd", str(steps), ranks=ranks)
    in_turn.report(times, options, "waiting ranks beside two that compute, and messages of 1 GiB", "ms")


def crowd(comm: Any, steps: str) -> dict[str, float]:
    """Two ranks compute, and all meet; `steps` take one millisecond where nothing else runs."""
    found = {}
    for milliseconds in (1, 3, 5, 10):
        turns = 400 // milliseconds
        comm.Barrier()
        begun = time.perf_counter()
        for _ in range(turns):
            if comm.rank < 2:
                compute(int(steps) * milliseconds)
            comm.Barrier()
        found[f"{comm.size} ranks, two compute for {milliseconds} ms"] = (time.perf_counter() - begun) / turns * 1e3
    return found


def compute(steps: int) -> float:
    """Count, and say how many milliseconds that took."""
    begun, total = time.perf_counter(), 0
    for step in range(steps):
        total += step
    return (time.perf_counter() - begun) * 1e3


def large(comm: Any) -> dict[str, float]:
    """A gigabyte each way."""
    import numpy as np

    sent, received = np.ones(LARGE, np.uint8), np.ones(LARGE, np.uint8)

    def there_and_back() -> None:
        if comm.rank == 0:
            comm.Send(sent, 1)
            comm.Recv(received, 1)
        else:
            comm.Recv(received, 0)
            comm.Send(sent, 0)

    calls: dict[str, Callable[[], None]] = {
        "ping-pong": there_and_back,
        "Bcast": lambda: comm.Bcast(sent),
        "Alltoall": lambda: comm.Alltoall(sent, received),
        "Ibcast": lambda: comm.Ibcast(sent).Wait(),
    }
    return {f"{name} of 1 GiB": min(timed(comm, call) for _ in range(3)) for name, call in calls.items()}


def timed(comm: Any, call: Callable[[], None]) -> float:
    """Milliseconds of a call that all begin together."""
    comm.Barrier()
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def worker(part: str, *arguments: str) -> None:
    """Measure a part on this rank, and print its times on the first."""
    os.environ["NCCLX_MPI_COPIES"] = "piped"
    from mpi4py import MPI

    found = {"crowd": crowd, "large": large}[part](MPI.COMM_WORLD, *arguments)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    worker(*sys.argv[2:]) if sys.argv[1:2] == ["--worker"] else main()

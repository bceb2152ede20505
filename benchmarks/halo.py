"""Halos of a periodic 2 x 2 grid through neighbourhood collectives, ours beside mpi4py over other MPIs, in turns.

python benchmarks/halo.py [--peer NAME=PYTHON]... [--rounds 5] [--json FILE]

Each rank has 64 x 64 cells and exchanges the faces with its four neighbours: packed ones by Neighbor_alltoall and Neighbor_alltoallv, also
without blocking, with the request waited for at once, and by a persistent one; and by Neighbor_alltoallw where they are, two of them
strided. Times are microseconds of a call, medians of blocks of calls, then of rounds.
Ranks are not bound: there are more of them than cores on a small machine, and they go where the system puts them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

CELLS = 64
BLOCKS = 5
FACES = {"1 KiB": (1 << 10, 60), "256 KiB": (256 << 10, 12)}
"""Bytes of a face, and how many calls are a block."""


def main() -> None:
    from benchmarks import in_turn

    options = in_turn.parser(__doc__, ranks=4).parse_args()
    times = in_turn.measure(__file__, options)
    in_turn.report(times, options, "neighbourhood collectives of a periodic grid with 2 dimensions", "us")


def cases(grid: Any, mpi: Any, nbytes: int) -> dict[str, Callable[[], None]]:
    """The same halo in several ways."""
    import numpy as np

    depth = nbytes // CELLS // 8
    send, recv = np.ones((4, nbytes // 8)), np.zeros((4, nbytes // 8))
    counts = [nbytes // 8] * 4
    cells = np.ones((CELLS + 2, CELLS + 2, depth))

    def face(*begin: int) -> Any:
        sizes = [1 if first in (0, CELLS + 1) or is_edge else CELLS for first, is_edge in zip(begin[::2], begin[1::2], strict=True)]
        return mpi.DOUBLE.Create_subarray(cells.shape, [*sizes, depth], [*begin[::2], 0]).Commit()

    inner = [face(1, True, 1, False), face(CELLS, True, 1, False), face(1, False, 1, True), face(1, False, CELLS, True)]
    halo = [face(0, True, 1, False), face(CELLS + 1, True, 1, False), face(1, False, 0, True), face(1, False, CELLS + 1, True)]
    ones, zeros = [1] * 4, [0] * 4
    persistent = grid.Neighbor_alltoall_init(send, recv)

    def again() -> None:
        persistent.Start()
        persistent.Wait()

    return {
        "Neighbor_alltoall": lambda: grid.Neighbor_alltoall(send, recv),
        "Neighbor_alltoallv": lambda: grid.Neighbor_alltoallv([send, counts], [recv, counts]),
        "Ineighbor_alltoall": lambda: grid.Ineighbor_alltoall(send, recv).Wait(),
        "Ineighbor_alltoallv": lambda: grid.Ineighbor_alltoallv([send, counts], [recv, counts]).Wait(),
        "Neighbor_alltoall_init": again,
        "Neighbor_alltoallw": lambda: grid.Neighbor_alltoallw([cells, ones, zeros, inner], [cells, ones, zeros, halo]),
    }


def worker() -> None:
    """Measure all cases on this rank, and print them on the first."""
    from mpi4py import MPI

    grid = MPI.COMM_WORLD.Create_cart([2, 2], [True, True])
    found = {}
    for name, (nbytes, loops) in FACES.items():
        for case, call in cases(grid, MPI, nbytes).items():
            times = []
            for _ in range(1 + BLOCKS):
                grid.Barrier()
                begun = time.perf_counter()
                for _ in range(loops):
                    call()
                times.append((time.perf_counter() - begun) / loops)
            found[f"{case}, faces of {name}"] = statistics.median(times[1:]) * 1e6
    if grid.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()

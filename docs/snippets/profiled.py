# ranks: 2
import cProfile
import pstats
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def work(field: np.ndarray) -> float:
    """What a rank does by itself."""
    return float(np.sin(field).sum())


def simulate() -> None:
    field, total = np.linspace(0, 1, 10_000), np.empty(1)
    for _ in range(20):
        comm.Allreduce(np.array([work(field)]), total)


comm.Barrier()  # what ranks wait for each other at start is not of interest
profile = cProfile.Profile()
profile.runcall(simulate)
if len(sys.argv) > 1:
    profile.dump_stats(f"{sys.argv[1]}/rank-{comm.rank}.prof")  # a file for each rank

calls = {function: numbers[0] for (_, _, function), numbers in pstats.Stats(profile).stats.items()}
for rank, found in enumerate(comm.gather(calls) or []):
    print(f"rank {rank}: {found['work']} calls of work, {[n for name, n in found.items() if 'Allreduce' in name]} of Allreduce")

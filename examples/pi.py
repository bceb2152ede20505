"""Pi by the midpoint rule: every rank integrates every size-th slice of 4 / (1 + x^2), one Allreduce adds the parts.

ncclx run -n 4 examples/pi.py [slices]
"""

import math
import sys

import numpy as np
from mpi4py import MPI


def partial_sum(slices: int, rank: int, size: int) -> float:
    """Return one rank's part of the integral."""
    x = (np.arange(rank, slices, size) + 0.5) / slices
    return float(np.sum(4 / (1 + x * x)) / slices)


def main() -> None:
    comm = MPI.COMM_WORLD
    slices = np.array(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, dtype="i8")
    comm.Bcast(slices, root=0)
    part = np.array(partial_sum(int(slices), comm.rank, comm.size))
    pi = np.empty_like(part)
    comm.Allreduce(part, pi, op=MPI.SUM)
    assert abs(pi - math.pi) < 1e-9
    if comm.rank == 0:
        print(f"pi is {pi:.10f}, computed by {comm.size} ranks")


if __name__ == "__main__":
    main()

# ranks: 2
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine, total = np.ones(1000), np.empty(1000)
late = call = 0.0
for _ in range(5):
    time.sleep(0.2 * comm.rank)  # rank 1 has more work
    start = MPI.Wtime()
    comm.Barrier()
    middle = MPI.Wtime()
    comm.Allreduce(mine, total)
    late, call = late + middle - start, call + MPI.Wtime() - middle
waited = comm.gather(late)
if waited is not None:
    print("ranks that others waited for:", [rank for rank, seconds in enumerate(waited) if seconds < max(waited) / 2])

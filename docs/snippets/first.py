# ranks: 4
import numpy as np
from mpi4py import MPI  # under `ncclx run` this is ncclx_mpi.MPI

comm = MPI.COMM_WORLD
total = np.empty(3)
comm.Allreduce(np.full(3, comm.rank + 1.0), total)
if comm.rank == 0:
    print(total)

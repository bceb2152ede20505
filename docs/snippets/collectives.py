# ranks: 4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine = np.full(3, comm.rank, dtype="i4")
total = np.empty_like(mine)
comm.Allreduce(mine, total, op=MPI.SUM)

everyone = np.empty((comm.size, 3), dtype="i4")
comm.Allgather(mine, everyone)

names = comm.gather(f"rank {comm.rank}", root=0)
if comm.rank == 0:
    print(total, everyone[:, 0], names)

# ranks: 2
from mpi4py import MPI

try:
    import cupy as xp  # where there is a GPU
except ImportError:
    import numpy as xp

comm = MPI.COMM_WORLD
field = xp.zeros((4, 6))
field[1:-1, 1:-1] = comm.rank + 1

column = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()  # a column of the field: strided memory, on the device too
if comm.rank == 0:
    comm.Sendrecv([field.ravel()[4:], 1, column], 1, recvbuf=[field.ravel()[5:], 1, column])
else:
    comm.Sendrecv([field.ravel()[1:], 1, column], 0, recvbuf=[field.ravel(), 1, column])

total = xp.empty(1)
comm.Allreduce(field.sum(keepdims=True).ravel(), total)
if comm.rank == 0:
    print(field[1], float(total[0]))

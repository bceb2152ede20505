# ranks: 2
from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    import cupy as xp  # where there is a GPU

    mine = xp.cuda.Stream(non_blocking=True)
    mine.use()
    comm.prepare(heap=1 << 20, reductions=[(MPI.SUM, MPI.DOUBLE)])
    enqueued = comm.in_stream(mine)
except ImportError:
    import numpy as xp

    enqueued = comm  # the same calls, blocking

gradient = xp.arange(4.0) + comm.rank
enqueued.Allreduce(MPI.IN_PLACE, gradient)  # behind what computes the gradient
weights = 10 - gradient / comm.size  # enqueued behind the call
if comm.rank == 0:
    print(weights)  # CuPy waits for its stream here
if enqueued is not comm:
    comm.check()

# ranks: 2
import contextlib

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()  # a GPU for each rank, as far as there are some
    mine = xp.cuda.Stream(non_blocking=True)
except (ImportError, RuntimeError):  # no CuPy, or no GPU
    xp, mine = np, contextlib.nullcontext()

right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
with mine:  # CuPy enqueues what follows in this stream
    values = xp.full(1_000_000, comm.rank + 1.0)
    for _ in range(10):
        values *= 2  # enqueued, and perhaps not done when the next line runs

    total = xp.empty_like(values)
    comm.Allreduce(values, total)  # comes after the kernels above, in the same stream

    fetched = xp.empty_like(values)
    comm.Sendrecv(values, dest=right, recvbuf=fetched, source=left)  # 8 MB: from GPU memory to GPU memory

    table = xp.arange(20.0).reshape(4, 5) + 100 * comm.rank
    column = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()  # four numbers, each five after the one before
    cells = table.ravel()  # the same memory, in one dimension
    comm.Sendrecv([cells[4:], 1, column], dest=right, recvbuf=[cells, 1, column], source=left)  # last column to first

    if comm.rank == 0:
        print(f"arrays of {xp.__name__} on {comm.size} ranks")
        print("sum of all ranks:", float(total[0]), float(total[-1]))
        print("from rank", left, "came", float(fetched[0]))
        print(table)

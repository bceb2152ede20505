# ranks: 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
n, rank = comm.size, comm.rank
mine = np.array([rank])
all_of_them = np.zeros(n, int)


def show(name: str, value: np.ndarray) -> None:
    """Print what every rank has, from rank 0."""
    values = comm.gather(value.tolist())
    if values is not None:
        print(f"{name:15}", *values)


news = np.array([42 if rank == 0 else 0])
comm.Bcast(news, root=0)
show("Bcast", news)

piece = np.zeros(1, int)
comm.Scatter(np.arange(n) * 10 if rank == 0 else None, piece, root=0)
show("Scatter", piece)

comm.Gather(mine, all_of_them, root=0)
show("Gather", all_of_them)

comm.Allgather(mine, all_of_them)
show("Allgather", all_of_them)

comm.Alltoall(10 * rank + np.arange(n), all_of_them)
show("Alltoall", all_of_them)

total = np.zeros(1, int)
comm.Reduce(mine, total, op=MPI.SUM, root=0)
show("Reduce", total)

comm.Allreduce(mine, total, op=MPI.SUM)
show("Allreduce", total)

comm.Reduce_scatter_block(rank * np.ones(n, int), total, op=MPI.SUM)
show("Reduce_scatter", total)

comm.Scan(mine, total, op=MPI.SUM)
show("Scan", total)
comm.Barrier()

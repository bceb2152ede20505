# ranks: 4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2), periods=[True, False])
mine = np.array([10.0 * grid.coords[0] + grid.coords[1]])

around = np.full(4, -1.0)  # above, below, left, right; beyond an end it stays as it is
grid.Neighbor_allgather(mine, around)

names = grid.neighbor_alltoall([f"{grid.rank} to {peer}" for peer in grid.outedges])
if grid.rank == 0:
    print(grid.dims, grid.outedges, around)
    print(names)

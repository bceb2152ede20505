# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
tokens = np.arange(6.0) + 10 * comm.rank  # six tokens for four experts, two on each rank
splits = np.array([2, 1, 0, 3])  # how many each expert gets: the router may write them just before
areas = np.full((comm.size, 6), -1.0)  # room for six from each rank
every = np.empty((comm.size, 4), int)
comm.Alltoallv_dynamic(tokens, areas, splits, allsplits=every)
if comm.rank == 1:
    print(areas, every[:, 2:].tolist())

areas *= 2  # the experts' work
result = np.empty(6)
comm.Alltoallv_dynamic_combine(areas, result, every)
if comm.rank == 1:
    print(result)

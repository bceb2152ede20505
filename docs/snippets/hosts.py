# ranks: 4
from mpi4py import MPI

comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank)
if comm.rank == 0:
    print(f"{comm.size} ranks, whose numbers sum up to {total}")

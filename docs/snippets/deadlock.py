# ranks: 2
import ncclx_mpi

ncclx_mpi.rc.timeout = 0.5

from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    comm.recv(source=1 - comm.rank)  # both receive, nobody sends
except MPI.Exception as error:
    if comm.rank == 0:
        print("raised:", "rank 1" in str(error))

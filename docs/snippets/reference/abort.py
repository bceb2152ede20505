# ranks: 2
# ends with: 7
# example: Comm.Abort
from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.Abort(7)  # ends all ranks; the job ends with this status
MPI.COMM_WORLD.recv(source=1)

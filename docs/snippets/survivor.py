# ranks: 3
# ends with: 137
import os
import signal

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.Barrier()
except MPI.Exception as error:
    if comm.rank == 0:
        print("a rank has died:", error.Get_error_class() == MPI.ERR_PROC_FAILED)

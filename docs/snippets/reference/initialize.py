# ranks: 2
# example: Init_thread Finalize
import mpi4py

mpi4py.rc.initialize = False  # before MPI is imported
from mpi4py import MPI

assert MPI.Init_thread(MPI.THREAD_MULTIPLE) == MPI.THREAD_MULTIPLE
assert MPI.COMM_WORLD.allreduce(1) == 2
MPI.Finalize()
assert MPI.Is_finalized()

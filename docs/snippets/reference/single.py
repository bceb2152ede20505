# ranks: 2
# example: Init
import mpi4py

mpi4py.rc.initialize = False  # before MPI is imported
from mpi4py import MPI

MPI.Init()  # one thread makes calls
assert MPI.Query_thread() == MPI.THREAD_SINGLE

# ranks: 3
# ends with: 137
import os
import signal

from mpi4py import MPI

comm = MPI.COMM_WORLD.Dup()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.Barrier()
    is_well = True
except MPI.Exception:
    is_well = False
    comm.Revoke()  # whoever has not noticed does now
if not comm.Agree(is_well):  # the same answer on all ranks that live
    comm = comm.Shrink()
total = comm.allreduce(1)
if comm.rank == 0:
    print("going on with", total, "ranks")

# ranks: 4
# ends with: 137
import os
import signal

import numpy as np
from mpi4py import MPI

TERMS = 1000
comm = MPI.COMM_WORLD.Dup()
for attempt in range(3):
    numbers = np.arange(1 + comm.rank, TERMS + 1, comm.size)  # this rank's share, of as many ranks as there are now
    if attempt == 0 and comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # a machine that fails
    total = np.empty(1)
    try:
        comm.Allreduce(np.array([(1.0 / numbers**2).sum()]), total)
        is_well = True
    except MPI.Exception as error:
        is_well = False
        assert error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED)
        comm.Revoke()  # whoever still waits in this communicator stops
    if comm.Agree(is_well):  # whether all are well: the same answer on all ranks that live
        break
    comm = comm.Shrink()  # those that live, in the same order

if comm.rank == 0:
    print(f"{comm.size} ranks, attempt {attempt + 1}: {total[0]:.6f}")

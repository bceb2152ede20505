# run by: restart.py
import sys

import numpy as np
from mpi4py import MPI

ROWS, COLUMNS = 12, 4
name, is_restart = sys.argv[1], len(sys.argv) > 2
comm = MPI.COMM_WORLD
mine = ROWS // comm.size  # rows of each rank
field = np.zeros((mine, COLUMNS))

# What this rank sees of the file: its rows of the whole field, behind a header of eight bytes, which says how many steps are done.
whole = MPI.DOUBLE.Create_subarray([ROWS, COLUMNS], [mine, COLUMNS], [mine * comm.rank, 0]).Commit()
steps = np.zeros(1, int)

if is_restart:
    file = MPI.File.Open(comm, name, MPI.MODE_RDONLY)
    file.Read_at_all(0, steps)
    file.Set_view(8, MPI.DOUBLE, whole)
    file.Read_all(field)
    file.Close()
else:
    field[:] = np.arange(mine * comm.rank, mine * (comm.rank + 1))[:, None]  # each row its number

field += 1  # a step of the simulation
steps += 1

file = MPI.File.Open(comm, name, MPI.MODE_WRONLY | MPI.MODE_CREATE)
if comm.rank == 0:
    file.Write_at(0, steps)
file.Set_view(8, MPI.DOUBLE, whole)
file.Write_all(field)
file.Close()

firsts = comm.gather(field[:, 0].astype(int).tolist())
if comm.rank == 0:
    print(f"{comm.size} ranks, after step {steps[0]}:", *firsts)

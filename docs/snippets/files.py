# ranks: 3
import os
import pathlib
import shutil
import tempfile

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
path = os.path.join(folder, "columns.bin")

# A matrix of 4 rows and 2 columns a rank, by rows in the file: each rank sees its own columns.
columns = MPI.DOUBLE.Create_subarray([4, 2 * comm.size], [4, 2], [0, 2 * comm.rank]).Commit()
mine = np.full((4, 2), float(comm.rank))

file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE)
file.Set_view(0, MPI.DOUBLE, columns)
file.Write_all(mine)
file.Close()

if comm.rank == 0:
    print(np.fromfile(path).reshape(4, -1)[0])

# A log: each record goes behind the last one, whoever writes it; ordered, in the order of ranks.
log = MPI.File.Open(comm, os.path.join(folder, "log"), MPI.MODE_WRONLY | MPI.MODE_CREATE)
log.Write_ordered(f"rank {comm.rank} was here\n".encode())
log.Close()
if comm.rank == 0:
    print(pathlib.Path(folder, "log").read_text(), end="")

try:
    MPI.File.Open(comm, os.path.join(folder, "absent"))
except MPI.Exception as error:
    if comm.rank == 0:
        print(error.Get_error_class() == MPI.ERR_NO_SUCH_FILE)
        shutil.rmtree(folder)

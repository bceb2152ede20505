# ranks: 1
import sys

from mpi4py import MPI

parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    workers = MPI.COMM_WORLD.Spawn(sys.executable, [__file__], maxprocs=3)
    workers.bcast(10, root=MPI.ROOT)
    print("from three workers:", workers.reduce(None, root=MPI.ROOT))
    workers.Disconnect()
else:
    number = parent.bcast(None, root=0)
    parent.reduce(number + parent.rank, root=0)
    parent.Disconnect()

# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: operations
results = []
for op in (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.BAND, MPI.BOR, MPI.BXOR, MPI.LAND, MPI.LOR, MPI.LXOR):
    result = np.empty(1, int)
    comm.Allreduce(np.array([rank + 2]), result, op=op)  # of 2 and 3
    results.append(int(result[0]))
assert results == [5, 6, 3, 2, 2, 3, 1, 1, 1, 0]
assert comm.allreduce((rank + 2, rank), op=MPI.MAXLOC) == (3, 1)  # the largest, and where it is; MINLOC the smallest

# example: datatypes
data = np.zeros(4, "f4") if rank else np.arange(4, dtype="f4")
comm.Bcast([data, 4, MPI.FLOAT], root=0)  # what [data, MPI.FLOAT], and data alone, stand for
assert data.tolist() == [0, 1, 2, 3]

# example: handles
assert MPI.COMM_WORLD.size == 2 and MPI.COMM_SELF.size == 1
assert not MPI.COMM_NULL and not MPI.REQUEST_NULL  # null handles are false
total = np.array([rank + 1.0])
comm.Allreduce(MPI.IN_PLACE, total)  # the result replaces the operand
assert total[0] == 3

# example: errors
try:
    comm.Send(np.zeros(1), dest=99)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_RANK

# example: numbers
status = MPI.Status()
comm.send("word", dest=other, tag=3)
comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
comm.send("nobody gets it", dest=MPI.PROC_NULL)
assert (status.source, status.tag) == (other, 3)

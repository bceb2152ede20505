# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.arange(4.0), dest=1, tag=7)
    comm.send({"answer": 42, "table": np.eye(2)}, dest=1)
else:
    numbers = np.empty(4)
    comm.Recv(numbers, source=0, tag=7)
    message = comm.recv(source=0)
    print(numbers, message["answer"], message["table"].trace())

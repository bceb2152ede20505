# ranks: 4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
tasks = [7, 1, 30, 2, 2, 9, 50, 4, 1, 12]  # what they cost, nobody knows in advance
itemsize = MPI.INT64_T.Get_size()
window = MPI.Win.Allocate(itemsize if comm.rank == 0 else 0, itemsize, comm=comm)
if comm.rank == 0:
    np.frombuffer(window, dtype=np.int64)[:] = 0  # the number of the next task
comm.Barrier()

one, ticket, done = np.array([1]), np.empty(1, int), {}
window.Lock_all()
while True:
    window.Fetch_and_op(one, ticket, target_rank=0, op=MPI.SUM)  # takes a number and leaves the next one, in one step
    window.Flush(0)
    if ticket[0] >= len(tasks):
        break
    done[int(ticket[0])] = sum(range(tasks[ticket[0]]))
window.Unlock_all()
window.Free()

everything = comm.gather(done)
if everything is not None:
    merged = [item for part in everything for item in part.items()]
    print(len(merged), "tasks done, each once:", sorted(number for number, _ in merged) == list(range(len(tasks))))
    print(dict(sorted(merged)))

# ranks: 4
from mpi4py import MPI

comm = MPI.COMM_WORLD  # all ranks of this job
greetings = comm.gather(f"rank {comm.rank} of {comm.size}")  # a list at rank 0, None elsewhere
if greetings is not None:
    print("\n".join(greetings))

# run by: two_nodes.py
from mpi4py import MPI

comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks that share this one's memory
total = comm.allreduce(comm.rank)
lines = comm.gather(f"rank {comm.rank} is rank {node.rank} of {node.size} on its node; the sum of all ranks is {total}")
if comm.rank == 0:
    print("\n".join(lines))

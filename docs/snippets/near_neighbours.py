# run by: reordered.py
from mpi4py import MPI

comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED).bcast(comm.rank)  # its first rank stands for it

for reorder in (False, True):
    grid = comm.Create_cart([2, 4], reorder=reorder)
    nodes = grid.allgather(node)
    far = [peer for peer in grid.outedges if peer != MPI.PROC_NULL and nodes[peer] != node]
    faces = grid.allreduce(len(far)) // 2
    if comm.rank == 0:
        print(f"reorder={reorder}: nodes {nodes[:4]} over {nodes[4:]}, {faces} faces between them")

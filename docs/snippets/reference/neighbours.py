# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Topocomm.Neighbor_allgather
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
grid.Neighbor_allgather(np.array([rank]), around)
assert around.tolist() == [other, other]

# example: Topocomm.Neighbor_allgatherv
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(rank + 1, rank), np.zeros(2 * (other + 1), int)
grid.Neighbor_allgatherv(mine, [around, [other + 1, other + 1]])
assert (around == other).all()

# example: Topocomm.Neighbor_alltoall
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
grid.Neighbor_alltoall(np.array([10 * rank, 10 * rank + 1]), around)
assert around.tolist() == [10 * other + 1, 10 * other]

# example: Topocomm.Neighbor_alltoallv
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(3, int)
grid.Neighbor_alltoallv([np.full(3, rank), [1, 2]], [around, [2, 1]])
assert around.tolist() == [other] * 3

# example: Topocomm.Neighbor_alltoallw
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(2, rank, "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]
grid.Neighbor_alltoallw([mine, ([1, 1], [0, 4]), types], [around, ([1, 1], [0, 4]), types])
assert around.tolist() == [other, other]

# example: Topocomm.Ineighbor_allgather
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
request = grid.Ineighbor_allgather(np.array([rank]), around)
request.Wait()
assert around.tolist() == [other, other]

# example: Topocomm.Ineighbor_allgatherv
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(rank + 1, rank), np.zeros(2 * (other + 1), int)
request = grid.Ineighbor_allgatherv(mine, [around, [other + 1, other + 1]])
request.Wait()
assert (around == other).all()

# example: Topocomm.Ineighbor_alltoall
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
request = grid.Ineighbor_alltoall(np.array([10 * rank, 10 * rank + 1]), around)
request.Wait()
assert around.tolist() == [10 * other + 1, 10 * other]

# example: Topocomm.Ineighbor_alltoallv
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(3, int)
request = grid.Ineighbor_alltoallv([np.full(3, rank), [1, 2]], [around, [2, 1]])
request.Wait()
assert around.tolist() == [other] * 3

# example: Topocomm.Ineighbor_alltoallw
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(2, rank, "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]
request = grid.Ineighbor_alltoallw([mine, ([1, 1], [0, 4]), types], [around, ([1, 1], [0, 4]), types])
request.Wait()
assert around.tolist() == [other, other]

# example: Topocomm.Neighbor_allgather_init
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
request = grid.Neighbor_allgather_init(np.array([rank]), around)
request.Start()
request.Wait()
assert around.tolist() == [other, other]

# example: Topocomm.Neighbor_allgatherv_init
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(rank + 1, rank), np.zeros(2 * (other + 1), int)
request = grid.Neighbor_allgatherv_init(mine, [around, [other + 1, other + 1]])
request.Start()
request.Wait()
assert (around == other).all()

# example: Topocomm.Neighbor_alltoall_init
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(2, int)
request = grid.Neighbor_alltoall_init(np.array([10 * rank, 10 * rank + 1]), around)
request.Start()
request.Wait()
assert around.tolist() == [10 * other + 1, 10 * other]

# example: Topocomm.Neighbor_alltoallv_init
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = np.zeros(3, int)
request = grid.Neighbor_alltoallv_init([np.full(3, rank), [1, 2]], [around, [2, 1]])
request.Start()
request.Wait()
assert around.tolist() == [other] * 3

# example: Topocomm.Neighbor_alltoallw_init
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
mine, around = np.full(2, rank, "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]
request = grid.Neighbor_alltoallw_init([mine, ([1, 1], [0, 4]), types], [around, ([1, 1], [0, 4]), types])
request.Start()
request.Wait()
assert around.tolist() == [other, other]

# example: Topocomm.neighbor_allgather
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
assert grid.neighbor_allgather(f"of rank {rank}") == [f"of rank {other}"] * 2

# example: Topocomm.neighbor_alltoall
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
around = grid.neighbor_alltoall([f"{rank} to the one before", f"{rank} to the one behind"])
assert around == [f"{other} to the one behind", f"{other} to the one before"]

# example: Topocomm.indegree Topocomm.outdegree Topocomm.degrees
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
assert (grid.indegree, grid.outdegree) == grid.degrees == (2, 2)

# example: Topocomm.inedges Topocomm.outedges Topocomm.inoutedges
grid = comm.Create_cart([2], periods=[True])  # each rank is before and behind the other one
assert grid.inedges == grid.outedges == [other, other]
assert grid.inoutedges == ([other, other], [other, other])

# example: Cartcomm.dim Cartcomm.ndim Cartcomm.Get_dim
grid = comm.Create_cart([2, 1])
assert grid.dim == grid.ndim == grid.Get_dim() == 2

# example: Cartcomm.dims
grid = comm.Create_cart([2, 1])
assert grid.dims == [2, 1]

# example: Cartcomm.periods
grid = comm.Create_cart([2, 1], periods=[True, False])
assert grid.periods == [True, False]

# example: Cartcomm.coords Cartcomm.Get_coords
grid = comm.Create_cart([2, 1])
assert grid.coords == grid.Get_coords(rank) == [rank, 0]

# example: Cartcomm.topo Cartcomm.Get_topo
grid = comm.Create_cart([2], periods=[True])
assert grid.topo == grid.Get_topo() == ([2], [True], [rank])

# example: Cartcomm.Get_cart_rank
grid = comm.Create_cart([2, 1])
assert grid.Get_cart_rank([1, 0]) == 1

# example: Cartcomm.Shift
grid = comm.Create_cart([2])
before, behind = grid.Shift(direction=0, disp=1)
assert (before, behind) == ((MPI.PROC_NULL, 1) if rank == 0 else (0, MPI.PROC_NULL))

# example: Cartcomm.Sub
grid = comm.Create_cart([2, 1])
column = grid.Sub([True, False])  # ranks that differ in the first coordinate
assert column.size == 2 and column.dims == [2]

# example: Graphcomm.dims Graphcomm.Get_dims Graphcomm.nnodes Graphcomm.nedges
graph = comm.Create_graph([1, 2], [1, 0])  # 0 - 1
assert graph.dims == graph.Get_dims() == (graph.nnodes, graph.nedges) == (2, 2)

# example: Graphcomm.topo Graphcomm.Get_topo Graphcomm.index Graphcomm.edges
graph = comm.Create_graph([1, 2], [1, 0])
assert graph.topo == graph.Get_topo() == (graph.index, graph.edges) == ([1, 2], [1, 0])

# example: Graphcomm.neighbors Graphcomm.nneighbors Graphcomm.Get_neighbors Graphcomm.Get_neighbors_count
graph = comm.Create_graph([1, 2], [1, 0])
assert graph.neighbors == graph.Get_neighbors(rank) == [other]
assert graph.nneighbors == graph.Get_neighbors_count(rank) == 1

# example: Distgraphcomm.Get_dist_neighbors Distgraphcomm.Get_dist_neighbors_count
graph = comm.Create_dist_graph_adjacent([other], [other])
sources, destinations, weights = graph.Get_dist_neighbors()
assert (sources, destinations, weights) == ([other], [other], None)
assert graph.Get_dist_neighbors_count() == (1, 1, False)

# example: Intracomm.Create_cart
grid = comm.Create_cart([2, 1], periods=[True, False], reorder=False)
assert grid.Get_topology() == MPI.CART

# example: Intracomm.Create_graph
graph = comm.Create_graph([1, 2], [1, 0])  # rank 0 has one neighbour, rank 1 one more: 1 and 0
assert graph.Get_topology() == MPI.GRAPH

# example: Intracomm.Create_dist_graph_adjacent
graph = comm.Create_dist_graph_adjacent(sources=[other], destinations=[other])  # each rank says who its own are
assert graph.Get_topology() == MPI.DIST_GRAPH

# example: Intracomm.Create_dist_graph
graph = comm.Create_dist_graph([rank], [1], [other])  # any rank may say any edge
assert graph.outedges == [other]

# example: Intracomm.Cart_map
assert comm.Cart_map([2]) in (0, 1)  # the rank that this one would have in such a grid

# example: Intracomm.Graph_map
assert comm.Graph_map([1, 2], [1, 0]) in (0, 1)

# example: Compute_dims
assert MPI.Compute_dims(12, 2) == [4, 3]

# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Intracomm.Alltoallv_dynamic
tokens, splits = np.arange(3) + 10 * rank, np.array([1, 2])  # one for rank 0, two for rank 1: read when the call executes
areas, every = np.full((size, 3), -1), np.empty((size, 2), int)
comm.Alltoallv_dynamic(tokens, areas, splits, allsplits=every)
assert areas.tolist() == ([[0, -1, -1], [10, -1, -1]] if rank == 0 else [[1, 2, -1], [11, 12, -1]])

# example: Intracomm.Ialltoallv_dynamic
tokens, splits, areas = np.arange(3), np.array([1, 2]), np.full((size, 3), -1)
comm.Ialltoallv_dynamic(tokens, areas, splits).Wait()
assert (areas[:, 0] == rank).all()

# example: Intracomm.Alltoallv_dynamic_init
tokens, splits, areas = np.arange(3), np.array([3, 0]), np.full((size, 3), -1)
request = comm.Alltoallv_dynamic_init(tokens, areas, splits)
splits[:] = 1, 2  # each start reads it as it is then
request.Start()
request.Wait()
assert (areas[:, 0] == rank).all()

# example: Intracomm.Alltoallv_dynamic_combine
tokens, areas, every = np.arange(3), np.full((size, 3), -1), np.empty((size, 2), int)
comm.Alltoallv_dynamic(tokens, areas, np.array([1, 2]), allsplits=every)
areas *= 2  # the experts' work
results = np.empty(3, int)
comm.Alltoallv_dynamic_combine(areas, results, every)  # back to where they came from
assert results.tolist() == [0, 2, 4]

# example: Intracomm.Ialltoallv_dynamic_combine
tokens, areas, every = np.arange(3), np.full((size, 3), -1), np.empty((size, 2), int)
comm.Alltoallv_dynamic(tokens, areas, np.array([1, 2]), allsplits=every)
results = np.empty(3, int)
comm.Ialltoallv_dynamic_combine(areas, results, every).Wait()
assert results.tolist() == [0, 1, 2]

# example: Intracomm.Alltoallv_dynamic_combine_init
tokens, areas, every = np.arange(3), np.full((size, 3), -1), np.empty((size, 2), int)
comm.Alltoallv_dynamic(tokens, areas, np.array([1, 2]), allsplits=every)
results = np.empty(3, int)
request = comm.Alltoallv_dynamic_combine_init(areas, results, every)
request.Start()
request.Wait()
assert results.tolist() == [0, 1, 2]

# example: Intracomm.prepare Intracomm.in_stream Intracomm.check
try:
    import cupy as xp

    stream = xp.cuda.Stream(non_blocking=True)
    stream.use()
    comm.prepare(heap=1 << 20, reductions=[(MPI.SUM, MPI.DOUBLE)])  # once, all ranks together
    calls = comm.in_stream(stream)
except ImportError:  # no GPU: the same calls, which block
    xp, stream, calls = np, None, comm
total = xp.full(4, rank + 1.0)
calls.Allreduce(MPI.IN_PLACE, total)  # enqueued, and back
if stream is not None:
    stream.synchronize()
    comm.check()  # raises what went wrong in calls of the stream
assert (total == 3).all()

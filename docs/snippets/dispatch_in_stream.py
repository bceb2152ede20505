# ranks: 2
from mpi4py import MPI

try:
    import cupy as xp  # where there is a GPU

    stream = xp.cuda.Stream(non_blocking=True)  # it may be being captured into a graph
    stream.use()
except ImportError:
    import numpy as xp

    stream = None

comm = MPI.COMM_WORLD
tokens, results = xp.arange(6.0) + 10 * comm.rank, xp.empty(6)
areas, every = xp.zeros((comm.size, 6)), xp.zeros((comm.size, 4), int)
splits = xp.zeros(4, int)
if stream is not None:
    comm.prepare()
dispatch = comm.Alltoallv_dynamic_init(tokens, areas, splits, allsplits=every)
combine = comm.Alltoallv_dynamic_combine_init(areas, results, every)
splits[:] = xp.asarray([2, 1, 0, 3])  # kernels that write the split lengths
dispatch.Start(stream=stream)
if stream is None:
    dispatch.Wait()  # on the host; a stream keeps the order by itself
areas *= 2  # kernels again
combine.Start(stream=stream)
if stream is None:
    combine.Wait()
else:
    stream.synchronize()
    combine.check()
if comm.rank == 1:
    print(results)

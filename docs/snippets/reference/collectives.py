# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Comm.Barrier
comm.Barrier()

# example: Comm.Bcast
data = np.arange(3) if rank == 0 else np.zeros(3, int)
comm.Bcast(data, root=0)
assert data.tolist() == [0, 1, 2]

# example: Comm.Gather
everyone = np.zeros(2, int)
comm.Gather(np.array([rank]), everyone, root=0)
assert everyone.tolist() == ([0, 1] if rank == 0 else [0, 0])

# example: Comm.Gatherv
mine, together = np.full(rank + 1, rank), np.zeros(3, int)  # one element of rank 0, two of rank 1
comm.Gatherv(mine, [together, [1, 2]], root=0)
assert together.tolist() == ([0, 1, 1] if rank == 0 else [0, 0, 0])

# example: Comm.Scatter
piece = np.zeros(1, int)
comm.Scatter(np.array([5, 6]) if rank == 0 else None, piece, root=0)
assert piece[0] == 5 + rank

# example: Comm.Scatterv
piece = np.zeros(rank + 1, int)
comm.Scatterv([np.arange(3), [1, 2]] if rank == 0 else None, piece, root=0)
assert piece.tolist() == ([0] if rank == 0 else [1, 2])

# example: Comm.Allgather
everyone = np.zeros(2, int)
comm.Allgather(np.array([rank]), everyone)
assert everyone.tolist() == [0, 1]

# example: Comm.Allgatherv
mine, together = np.full(rank + 1, rank), np.zeros(3, int)
comm.Allgatherv(mine, [together, [1, 2]])
assert together.tolist() == [0, 1, 1]

# example: Comm.Alltoall
blocks, received = np.array([10 * rank, 10 * rank + 1]), np.zeros(2, int)
comm.Alltoall(blocks, received)
assert received.tolist() == [rank, 10 + rank]

# example: Comm.Alltoallv
blocks, received = np.full(3, rank), np.zeros(2 * (rank + 1), int)  # one element for rank 0, two for rank 1
comm.Alltoallv([blocks, [1, 2]], [received, [rank + 1, rank + 1]])
assert received.tolist() == ([0, 1] if rank == 0 else [0, 0, 1, 1])

# example: Comm.Alltoallw
blocks, received = np.array([rank, rank], "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]  # those of each block, whose displacements are in bytes
comm.Alltoallw([blocks, ([1, 1], [0, 4]), types], [received, ([1, 1], [0, 4]), types])
assert received.tolist() == [0, 1]

# example: Comm.Reduce
total = np.zeros(1)
comm.Reduce(np.array([rank + 1.0]), total, op=MPI.SUM, root=0)
assert total[0] == (3 if rank == 0 else 0)

# example: Comm.Allreduce
total = np.zeros(1)
comm.Allreduce(np.array([rank + 1.0]), total, op=MPI.SUM)
assert total[0] == 3

# example: Comm.Reduce_scatter_block
piece = np.zeros(1, int)
comm.Reduce_scatter_block(np.array([rank, 10]), piece, op=MPI.SUM)
assert piece[0] == (1 if rank == 0 else 20)

# example: Comm.Reduce_scatter
piece = np.zeros(rank + 1, int)
comm.Reduce_scatter(np.array([rank, 10, 20]), piece, recvcounts=[1, 2], op=MPI.SUM)
assert piece.tolist() == ([1] if rank == 0 else [20, 40])

# example: Intracomm.Scan
sofar = np.zeros(1, int)
comm.Scan(np.array([rank + 1]), sofar, op=MPI.SUM)
assert sofar[0] == (1 if rank == 0 else 3)

# example: Intracomm.Exscan
before = np.zeros(1, int)
comm.Exscan(np.array([rank + 1]), before, op=MPI.SUM)
assert before[0] == (0 if rank == 0 else 1)  # of rank 0 it stays as it was

# example: Comm.Ibarrier
request = comm.Ibarrier()
request.Wait()

# example: Comm.Ibcast
data = np.arange(3) if rank == 0 else np.zeros(3, int)
request = comm.Ibcast(data, root=0)
request.Wait()
assert data.tolist() == [0, 1, 2]

# example: Comm.Igather
everyone = np.zeros(2, int)
request = comm.Igather(np.array([rank]), everyone, root=0)
request.Wait()
assert everyone.tolist() == ([0, 1] if rank == 0 else [0, 0])

# example: Comm.Igatherv
mine, together = np.full(rank + 1, rank), np.zeros(3, int)  # one element of rank 0, two of rank 1
request = comm.Igatherv(mine, [together, [1, 2]], root=0)
request.Wait()
assert together.tolist() == ([0, 1, 1] if rank == 0 else [0, 0, 0])

# example: Comm.Iscatter
piece = np.zeros(1, int)
request = comm.Iscatter(np.array([5, 6]) if rank == 0 else None, piece, root=0)
request.Wait()
assert piece[0] == 5 + rank

# example: Comm.Iscatterv
piece = np.zeros(rank + 1, int)
request = comm.Iscatterv([np.arange(3), [1, 2]] if rank == 0 else None, piece, root=0)
request.Wait()
assert piece.tolist() == ([0] if rank == 0 else [1, 2])

# example: Comm.Iallgather
everyone = np.zeros(2, int)
request = comm.Iallgather(np.array([rank]), everyone)
request.Wait()
assert everyone.tolist() == [0, 1]

# example: Comm.Iallgatherv
mine, together = np.full(rank + 1, rank), np.zeros(3, int)
request = comm.Iallgatherv(mine, [together, [1, 2]])
request.Wait()
assert together.tolist() == [0, 1, 1]

# example: Comm.Ialltoall
blocks, received = np.array([10 * rank, 10 * rank + 1]), np.zeros(2, int)
request = comm.Ialltoall(blocks, received)
request.Wait()
assert received.tolist() == [rank, 10 + rank]

# example: Comm.Ialltoallv
blocks, received = np.full(3, rank), np.zeros(2 * (rank + 1), int)  # one element for rank 0, two for rank 1
request = comm.Ialltoallv([blocks, [1, 2]], [received, [rank + 1, rank + 1]])
request.Wait()
assert received.tolist() == ([0, 1] if rank == 0 else [0, 0, 1, 1])

# example: Comm.Ialltoallw
blocks, received = np.array([rank, rank], "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]  # those of each block, whose displacements are in bytes
request = comm.Ialltoallw([blocks, ([1, 1], [0, 4]), types], [received, ([1, 1], [0, 4]), types])
request.Wait()
assert received.tolist() == [0, 1]

# example: Comm.Ireduce
total = np.zeros(1)
request = comm.Ireduce(np.array([rank + 1.0]), total, op=MPI.SUM, root=0)
request.Wait()
assert total[0] == (3 if rank == 0 else 0)

# example: Comm.Iallreduce
total = np.zeros(1)
request = comm.Iallreduce(np.array([rank + 1.0]), total, op=MPI.SUM)
request.Wait()
assert total[0] == 3

# example: Comm.Ireduce_scatter_block
piece = np.zeros(1, int)
request = comm.Ireduce_scatter_block(np.array([rank, 10]), piece, op=MPI.SUM)
request.Wait()
assert piece[0] == (1 if rank == 0 else 20)

# example: Comm.Ireduce_scatter
piece = np.zeros(rank + 1, int)
request = comm.Ireduce_scatter(np.array([rank, 10, 20]), piece, recvcounts=[1, 2], op=MPI.SUM)
request.Wait()
assert piece.tolist() == ([1] if rank == 0 else [20, 40])

# example: Intracomm.Iscan
sofar = np.zeros(1, int)
request = comm.Iscan(np.array([rank + 1]), sofar, op=MPI.SUM)
request.Wait()
assert sofar[0] == (1 if rank == 0 else 3)

# example: Intracomm.Iexscan
before = np.zeros(1, int)
request = comm.Iexscan(np.array([rank + 1]), before, op=MPI.SUM)
request.Wait()
assert before[0] == (0 if rank == 0 else 1)  # of rank 0 it stays as it was

# example: Comm.Barrier_init
request = comm.Barrier_init()
request.Start()
request.Wait()

# example: Comm.Bcast_init
data = np.arange(3) if rank == 0 else np.zeros(3, int)
request = comm.Bcast_init(data, root=0)
request.Start()
request.Wait()
assert data.tolist() == [0, 1, 2]

# example: Comm.Gather_init
everyone = np.zeros(2, int)
request = comm.Gather_init(np.array([rank]), everyone, root=0)
request.Start()
request.Wait()
assert everyone.tolist() == ([0, 1] if rank == 0 else [0, 0])

# example: Comm.Gatherv_init
mine, together = np.full(rank + 1, rank), np.zeros(3, int)  # one element of rank 0, two of rank 1
request = comm.Gatherv_init(mine, [together, [1, 2]], root=0)
request.Start()
request.Wait()
assert together.tolist() == ([0, 1, 1] if rank == 0 else [0, 0, 0])

# example: Comm.Scatter_init
piece = np.zeros(1, int)
request = comm.Scatter_init(np.array([5, 6]) if rank == 0 else None, piece, root=0)
request.Start()
request.Wait()
assert piece[0] == 5 + rank

# example: Comm.Scatterv_init
piece = np.zeros(rank + 1, int)
request = comm.Scatterv_init([np.arange(3), [1, 2]] if rank == 0 else None, piece, root=0)
request.Start()
request.Wait()
assert piece.tolist() == ([0] if rank == 0 else [1, 2])

# example: Comm.Allgather_init
everyone = np.zeros(2, int)
request = comm.Allgather_init(np.array([rank]), everyone)
request.Start()
request.Wait()
assert everyone.tolist() == [0, 1]

# example: Comm.Allgatherv_init
mine, together = np.full(rank + 1, rank), np.zeros(3, int)
request = comm.Allgatherv_init(mine, [together, [1, 2]])
request.Start()
request.Wait()
assert together.tolist() == [0, 1, 1]

# example: Comm.Alltoall_init
blocks, received = np.array([10 * rank, 10 * rank + 1]), np.zeros(2, int)
request = comm.Alltoall_init(blocks, received)
request.Start()
request.Wait()
assert received.tolist() == [rank, 10 + rank]

# example: Comm.Alltoallv_init
blocks, received = np.full(3, rank), np.zeros(2 * (rank + 1), int)  # one element for rank 0, two for rank 1
request = comm.Alltoallv_init([blocks, [1, 2]], [received, [rank + 1, rank + 1]])
request.Start()
request.Wait()
assert received.tolist() == ([0, 1] if rank == 0 else [0, 0, 1, 1])

# example: Comm.Alltoallw_init
blocks, received = np.array([rank, rank], "i4"), np.zeros(2, "i4")
types = [MPI.INT32_T, MPI.INT32_T]  # those of each block, whose displacements are in bytes
request = comm.Alltoallw_init([blocks, ([1, 1], [0, 4]), types], [received, ([1, 1], [0, 4]), types])
request.Start()
request.Wait()
assert received.tolist() == [0, 1]

# example: Comm.Reduce_init
total = np.zeros(1)
request = comm.Reduce_init(np.array([rank + 1.0]), total, op=MPI.SUM, root=0)
request.Start()
request.Wait()
assert total[0] == (3 if rank == 0 else 0)

# example: Comm.Allreduce_init
total = np.zeros(1)
request = comm.Allreduce_init(np.array([rank + 1.0]), total, op=MPI.SUM)
request.Start()
request.Wait()
assert total[0] == 3

# example: Comm.Reduce_scatter_block_init
piece = np.zeros(1, int)
request = comm.Reduce_scatter_block_init(np.array([rank, 10]), piece, op=MPI.SUM)
request.Start()
request.Wait()
assert piece[0] == (1 if rank == 0 else 20)

# example: Comm.Reduce_scatter_init
piece = np.zeros(rank + 1, int)
request = comm.Reduce_scatter_init(np.array([rank, 10, 20]), piece, recvcounts=[1, 2], op=MPI.SUM)
request.Start()
request.Wait()
assert piece.tolist() == ([1] if rank == 0 else [20, 40])

# example: Intracomm.Scan_init
sofar = np.zeros(1, int)
request = comm.Scan_init(np.array([rank + 1]), sofar, op=MPI.SUM)
request.Start()
request.Wait()
assert sofar[0] == (1 if rank == 0 else 3)

# example: Intracomm.Exscan_init
before = np.zeros(1, int)
request = comm.Exscan_init(np.array([rank + 1]), before, op=MPI.SUM)
request.Start()
request.Wait()
assert before[0] == (0 if rank == 0 else 1)  # of rank 0 it stays as it was

# example: Comm.barrier
comm.barrier()

# example: Comm.bcast
word = comm.bcast("hello" if rank == 0 else None, root=0)
assert word == "hello"

# example: Comm.gather
words = comm.gather(f"of rank {rank}", root=0)
assert words == (["of rank 0", "of rank 1"] if rank == 0 else None)

# example: Comm.scatter
word = comm.scatter(["for 0", "for 1"] if rank == 0 else None, root=0)
assert word == f"for {rank}"

# example: Comm.allgather
assert comm.allgather({"rank": rank}) == [{"rank": 0}, {"rank": 1}]

# example: Comm.alltoall
assert comm.alltoall([f"{rank} to 0", f"{rank} to 1"]) == [f"0 to {rank}", f"1 to {rank}"]

# example: Comm.reduce
total = comm.reduce(rank + 1, op=MPI.SUM, root=0)
assert total == (3 if rank == 0 else None)

# example: Comm.allreduce
longest = comm.allreduce("a" * (rank + 1), op=lambda one, two: max(one, two, key=len))  # any function of two objects
assert longest == "aa"

# example: Intracomm.scan
assert comm.scan(rank + 1) == (1 if rank == 0 else 3)

# example: Intracomm.exscan
assert comm.exscan(rank + 1) == (None if rank == 0 else 1)

# ranks: 1
import numpy as np

from ncclx_mpi.testing import guarded, guarded_arrays, twins

given = [np.array([1, 2]), np.array([3, 4])]  # what each of two ranks gives

# example: twins.bcast
assert [got.tolist() for got in twins.bcast(given, root=1)] == [[3, 4], [3, 4]]

# example: twins.gather
at_root, elsewhere = twins.gather(given, root=0)
assert at_root.tolist() == [1, 2, 3, 4] and elsewhere is None

# example: twins.scatter
assert [got.tolist() for got in twins.scatter(np.arange(3), counts=[1, 2])] == [[0], [1, 2]]

# example: twins.allgather
assert [got.tolist() for got in twins.allgather(given)] == [[1, 2, 3, 4]] * 2

# example: twins.alltoall
assert [got.tolist() for got in twins.alltoall(given, counts=[[1, 1], [1, 1]])] == [[1, 3], [2, 4]]

# example: twins.reduce
at_root, elsewhere = twins.reduce(given, np.add, root=0)
assert at_root.tolist() == [4, 6] and elsewhere is None

# example: twins.allreduce
assert [got.tolist() for got in twins.allreduce(given, np.maximum)] == [[3, 4]] * 2

# example: twins.reduce_scatter
assert [got.tolist() for got in twins.reduce_scatter(given, np.add, counts=[1, 1])] == [[4], [6]]

# example: twins.scan
assert [got.tolist() for got in twins.scan(given, np.add)] == [[1, 2], [4, 6]]

# example: twins.exscan
nothing, before = twins.exscan(given, np.add)
assert nothing is None and before.tolist() == [1, 2]

# example: twins.operation
add = twins.operation("sum", "f32")  # rounds as compiled code does
assert add(np.array([1], "f4"), np.array([2], "f4"))[0] == 3

# example: guarded.guarded
memory = guarded.guarded(100)  # whoever reads memory[100] ends by SIGSEGV
assert memory.nbytes == 100 and not memory.any()

# example: guarded.guarded_copy
assert guarded.guarded_copy(np.arange(3)).view(int).tolist() == [0, 1, 2]

# example: guarded.forbid
import ctypes
import mmap

pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
second = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + mmap.PAGESIZE
guarded.forbid(second, mmap.PAGESIZE)
assert pages[0] == 0  # the first page is as it was

# example: guarded_arrays.guarded_arrays
with guarded_arrays.guarded_arrays():
    data = np.zeros(100)  # between unreadable pages
assert data.sum() == 0

# example: twins.epochs
posted, completed = twins.epochs([{(0, 1)}, {(0, 1), (1, 0)}], size=2)
assert posted[1, 0] == completed[0, 1] == 2

# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Win.Create Win.Free
memory = np.zeros(4, int)
window = MPI.Win.Create(memory, disp_unit=8, comm=comm)
window.Fence()
window.Put(np.array([7]), target_rank=other, target=2)  # to the third element
window.Fence()
assert memory.tolist() == [0, 0, 7, 0]
window.Free()

# example: Win.Allocate Win.tomemory
window = MPI.Win.Allocate(32, disp_unit=8, comm=comm)
memory = np.frombuffer(window.tomemory(), dtype=int)
assert memory.size == 4
window.Free()

# example: Win.Allocate_shared Win.Shared_query
window = MPI.Win.Allocate_shared(8, disp_unit=8, comm=comm)
np.frombuffer(window, dtype=int)[0] = rank
comm.Barrier()
theirs, disp_unit = window.Shared_query(other)  # their memory itself
assert np.frombuffer(theirs, dtype=int)[0] == other
comm.Barrier()
window.Free()

# example: Win.Create_dynamic Win.Attach Win.Detach
window, memory = MPI.Win.Create_dynamic(comm=comm), np.array([rank])
window.Attach(memory)  # whenever there is some
where = comm.sendrecv(MPI.Get_address(memory), dest=other, source=other)
window.Lock(other, MPI.LOCK_SHARED)
fetched = np.empty(1, int)
window.Get(fetched, other, [where, 1, MPI.INT64_T])
window.Unlock(other)
assert fetched[0] == other
comm.Barrier()
window.Detach(memory)
window.Free()

# example: Win.group Win.Get_group Win.group_size Win.group_rank
window = MPI.Win.Allocate(8, comm=comm)
assert window.group.size == window.Get_group().size == window.group_size == 2
assert window.group_rank == rank
window.Free()

# example: Win.attrs Win.flavor Win.model
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
address, nbytes, disp_unit = window.attrs
assert (nbytes, disp_unit) == (8, 8)
assert window.flavor == MPI.WIN_FLAVOR_ALLOCATE and window.model == MPI.WIN_UNIFIED
window.Free()

# example: Win.Put
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
window.Fence()
window.Put(np.array([rank]), other)
window.Fence()
assert np.frombuffer(window, dtype=int)[0] == other
window.Free()

# example: Win.Get
window, fetched = MPI.Win.Create(np.array([rank]), disp_unit=8, comm=comm), np.empty(1, int)
window.Fence()
window.Get(fetched, other)
window.Fence()
assert fetched[0] == other
window.Free()

# example: Win.Accumulate
window = MPI.Win.Create(np.array([100]), disp_unit=8, comm=comm)
window.Fence()
window.Accumulate(np.array([5]), 0, op=MPI.SUM)  # both ranks add to that of rank 0
window.Fence()
assert np.frombuffer(window, dtype=int)[0] == (110 if rank == 0 else 100)
window.Free()

# example: Win.Get_accumulate
window, before = MPI.Win.Create(np.array([100]), disp_unit=8, comm=comm), np.empty(1, int)
window.Lock(other)
window.Get_accumulate(np.array([5]), before, other, op=MPI.SUM)  # fetches, and adds, in one step
window.Unlock(other)
assert before[0] == 100
window.Free()

# example: Win.Fetch_and_op
window, ticket = MPI.Win.Create(np.array([0]), disp_unit=8, comm=comm), np.empty(1, int)
window.Lock(0)
window.Fetch_and_op(np.array([1]), ticket, 0, op=MPI.SUM)  # takes a number
window.Unlock(0)
assert sorted(comm.allgather(int(ticket[0]))) == [0, 1]
window.Free()

# example: Win.Compare_and_swap
window, before = MPI.Win.Create(np.array([-1]), disp_unit=8, comm=comm), np.empty(1, int)
window.Lock(0)
window.Compare_and_swap(np.array([rank]), np.array([-1]), before, 0)  # this rank's number, if -1 is there
window.Unlock(0)
assert comm.allgather(int(before[0])).count(-1) == 1  # one of them was first
window.Free()

# example: Win.Rput
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
window.Lock_all()
window.Rput(np.array([rank]), other).Wait()  # the array is the program's again
window.Unlock_all()
comm.Barrier()
assert np.frombuffer(window, dtype=int)[0] == other
window.Free()

# example: Win.Rget
window, fetched = MPI.Win.Create(np.array([rank]), disp_unit=8, comm=comm), np.empty(1, int)
window.Lock_all()
window.Rget(fetched, other).Wait()
assert fetched[0] == other
window.Unlock_all()
window.Free()

# example: Win.Raccumulate
window = MPI.Win.Create(np.array([100]), disp_unit=8, comm=comm)
window.Lock_all()
window.Raccumulate(np.array([5]), other, op=MPI.SUM).Wait()
window.Unlock_all()
comm.Barrier()
assert np.frombuffer(window, dtype=int)[0] == 105
window.Free()

# example: Win.Rget_accumulate
window, before = MPI.Win.Create(np.array([100]), disp_unit=8, comm=comm), np.empty(1, int)
window.Lock_all()
window.Rget_accumulate(np.array([5]), before, other, op=MPI.SUM).Wait()
assert before[0] == 100
window.Unlock_all()
window.Free()

# example: Win.Fence
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
window.Fence()  # all ranks: from here on
window.Put(np.array([rank]), other)
window.Fence()  # all ranks: what was begun is complete, everywhere
window.Free()

# example: Win.Post Win.Start Win.Complete Win.Wait
window, peer = MPI.Win.Allocate(8, disp_unit=8, comm=comm), comm.group.Incl([other])
if rank == 0:
    window.Start(peer)  # once rank 1 has posted
    window.Put(np.array([5]), 1)
    window.Complete()
else:
    window.Post(peer)
    window.Wait()  # until rank 0 has completed
    assert np.frombuffer(window, dtype=int)[0] == 5
window.Free()

# example: Win.Test
window, peer = MPI.Win.Allocate(8, disp_unit=8, comm=comm), comm.group.Incl([other])
if rank == 0:
    window.Start(peer)
    window.Complete()
else:
    window.Post(peer)
    while not window.Test():
        pass  # there is time for something else
window.Free()

# example: Win.Lock Win.Unlock
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
window.Lock(other, MPI.LOCK_EXCLUSIVE)
window.Put(np.array([rank]), other)
window.Unlock(other)  # complete there
window.Free()

# example: Win.Lock_all Win.Unlock_all Win.Flush Win.Flush_all
window = MPI.Win.Allocate(8, disp_unit=8, comm=comm)
window.Lock_all()
window.Put(np.array([rank]), other)
window.Flush(other)  # complete there, and the epoch goes on
window.Flush_all()  # at all ranks
window.Unlock_all()
window.Free()

# example: Win.Flush_local Win.Flush_local_all
window, data = MPI.Win.Allocate(8, disp_unit=8, comm=comm), np.array([rank])
window.Lock_all()
window.Put(data, other)
window.Flush_local(other)  # the array is the program's again
window.Flush_local_all()
window.Unlock_all()
window.Free()

# example: Win.Sync
window = MPI.Win.Allocate_shared(8, disp_unit=8, comm=comm)
np.frombuffer(window, dtype=int)[0] = rank
window.Sync()  # between stores of this rank, and loads of others
comm.Barrier()
window.Free()

# example: buffer.allocate buffer.nbytes buffer.release
memory = MPI.buffer.allocate(16, clear=True)
assert memory.nbytes == 16
memory.release()
assert memory.nbytes == 0

# example: buffer.frombuffer buffer.obj
data = np.arange(2)
memory = MPI.buffer.frombuffer(data)
assert memory.nbytes == 16 and memory.obj is data

# example: buffer.fromaddress buffer.address
data = np.arange(2)
memory = MPI.buffer.fromaddress(data.ctypes.data, 16)
assert memory.address == data.ctypes.data

# example: buffer.format buffer.itemsize buffer.cast
memory = MPI.buffer.frombuffer(np.arange(2))
assert (memory.format, memory.itemsize) == ("B", 1)
assert memory.cast("q").tolist() == [0, 1]

# example: buffer.tobytes
assert MPI.buffer.frombuffer(np.array([1], "<i2")).tobytes() == b"\x01\x00"

# example: buffer.readonly buffer.toreadonly
memory = MPI.buffer.allocate(4)
assert not memory.readonly and memory.toreadonly().readonly

# example: Alloc_mem Free_mem
memory = MPI.Alloc_mem(800)  # peers of the node read it without a copy in between
field = np.frombuffer(memory)
assert field.size == 100
del field
MPI.Free_mem(memory)

# example: Win.Get_name Win.Set_name Win.name
window = MPI.Win.Allocate(8, comm=comm)
window.Set_name("counters")
assert window.Get_name() == window.name == "counters"
window.Free()

# example: Win.Create_keyval Win.Set_attr Win.Get_attr Win.Delete_attr Win.Free_keyval
window, key = MPI.Win.Allocate(8, comm=comm), MPI.Win.Create_keyval()
window.Set_attr(key, "what it is for")
assert window.Get_attr(key) == "what it is for"
window.Delete_attr(key)
MPI.Win.Free_keyval(key)
window.Free()

# example: Win.info Win.Set_info Win.Get_info
window = MPI.Win.Allocate(8, comm=comm)
window.Set_info(MPI.Info.Create({"no_locks": "false"}))  # hints
assert len(window.Get_info()) == len(window.info)
window.Free()

# example: Win.Create_errhandler Win.Set_errhandler Win.Get_errhandler Win.Call_errhandler
codes, window = [], MPI.Win.Allocate(8, comm=comm)
handler = MPI.Win.Create_errhandler(lambda window, code: codes.append(code))
window.Set_errhandler(handler)
assert window.Get_errhandler() == handler
window.Call_errhandler(MPI.ERR_RMA_RANGE)
assert codes == [MPI.ERR_RMA_RANGE]
window.Free()

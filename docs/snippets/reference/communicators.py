# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Comm.rank Comm.Get_rank Comm.size Comm.Get_size
assert comm.rank == comm.Get_rank() in (0, 1)
assert comm.size == comm.Get_size() == 2

# example: Comm.group Comm.Get_group
assert comm.group.size == comm.Get_group().size == 2

# example: Comm.Compare
assert comm.Compare(comm.Dup()) == MPI.CONGRUENT  # the same ranks in the same order, another context

# example: Comm.is_inter Comm.Is_inter Comm.is_intra Comm.Is_intra
assert comm.is_intra and comm.Is_intra()
assert not comm.is_inter and not comm.Is_inter()

# example: Comm.topology Comm.Get_topology Comm.is_topo
grid = comm.Create_cart([2])
assert grid.topology == grid.Get_topology() == MPI.CART
assert grid.is_topo and not comm.is_topo

# example: Comm.Dup Comm.Free
mine = comm.Dup()  # the messages of a library do not meet those of its user
assert mine.allreduce(1) == 2
mine.Free()

# example: Comm.Clone
assert comm.Clone().Compare(comm) == MPI.CONGRUENT

# example: Comm.Dup_with_info
mine = comm.Dup_with_info(MPI.Info.Create({"key": "value"}))
assert mine.Get_info().Get("key") == "value"

# example: Comm.Idup
mine, request = comm.Idup()
request.Wait()
assert mine.allreduce(1) == 2

# example: Comm.Idup_with_info
mine, request = comm.Idup_with_info(MPI.Info.Create())
request.Wait()
assert mine.allreduce(1) == 2

# example: Comm.Create
one = comm.Create(comm.group.Incl([1]))  # all ranks call it, those of the group get a communicator
assert one.size == 1 if rank == 1 else one == MPI.COMM_NULL

# example: Comm.Split
half = comm.Split(color=rank % 2, key=rank)  # those of a colour are together
assert half.size == 1

# example: Comm.Split_type
node = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this machine
assert node.size == 2

# example: Comm.Disconnect
comm.Dup().Disconnect()  # returns once all that was begun on it is complete

# example: Comm.Get_parent
assert MPI.Comm.Get_parent() == MPI.COMM_NULL  # these ranks were started by no other ones

# example: Comm.Get_name Comm.Set_name Comm.name
mine = comm.Dup()
mine.Set_name("ocean")
assert mine.Get_name() == mine.name == "ocean"

# example: Comm.Create_keyval Comm.Set_attr Comm.Get_attr Comm.Delete_attr Comm.Free_keyval
key = MPI.Comm.Create_keyval()
comm.Set_attr(key, {"any": "object"})  # a library keeps what it knows of a communicator
assert comm.Get_attr(key) == {"any": "object"}
comm.Delete_attr(key)
MPI.Comm.Free_keyval(key)

# example: Comm.info Comm.Set_info Comm.Get_info
mine = comm.Dup()
mine.Set_info(MPI.Info.Create({"key": "value"}))
assert mine.Get_info().Get("key") == mine.info.Get("key") == "value"

# example: Comm.Create_errhandler
codes = []
handler = MPI.Comm.Create_errhandler(lambda comm, code: codes.append(code))
mine = comm.Dup()
mine.Set_errhandler(handler)
mine.Call_errhandler(MPI.ERR_OTHER)
assert codes == [MPI.ERR_OTHER]

# example: Comm.Get_errhandler Comm.Set_errhandler
mine = comm.Dup()
mine.Set_errhandler(MPI.ERRORS_RETURN)  # errors are exceptions
assert mine.Get_errhandler() == MPI.ERRORS_RETURN

# example: Comm.Call_errhandler
try:
    comm.Call_errhandler(MPI.ERR_OTHER)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_OTHER

# example: Handle.handle Handle.fromhandle
mine = comm.Dup()
assert MPI.Comm.fromhandle(mine.handle) == mine

# example: Handle.toint Handle.fromint
mine = comm.Dup()
assert MPI.Comm.fromint(mine.toint()) == mine

# example: Handle.py2f Handle.f2py
mine = comm.Dup()
assert MPI.Comm.f2py(mine.py2f()) == mine

# example: Handle.free
mine = comm.Dup()
mine.free()  # as Free, and does nothing to what is predefined
assert mine == MPI.COMM_NULL

# example: Comm.Is_revoked Comm.Revoke Comm.Shrink
mine = comm.Dup()
if rank == 0:
    mine.Revoke()  # when a rank has died: nobody waits in it any more
while not mine.Is_revoked():
    pass
assert mine.Shrink().size == 2  # those that live

# example: Comm.Ishrink
left, request = comm.Ishrink()
request.Wait()
assert left.size == 2

# example: Comm.Get_failed Comm.Ack_failed
assert comm.Get_failed().size == 0  # ranks that have died
assert comm.Ack_failed() == 0

# example: Comm.Agree
assert comm.Agree(rank) == 0  # the bitwise and of 0 and 1, also when a rank dies meanwhile

# example: Comm.Iagree
flag = np.array([rank], "i4")
comm.Iagree(flag).Wait()
assert flag[0] == 0

# example: Intracomm.Create_group
if rank == 1:  # only the ranks of the group call it
    one = comm.Create_group(comm.group.Incl([1]))
    assert one.size == 1

# example: Intracomm.Create_from_group
mine = MPI.Intracomm.Create_from_group(comm.group, "org.example.solver")
assert mine.size == 2

# example: Intracomm.Create_intercomm
model = comm.Split(rank)
between = model.Create_intercomm(0, comm, other)  # two groups, here of one rank each
assert between.remote_size == 1

# example: Intercomm.remote_size Intercomm.Get_remote_size Intercomm.remote_group Intercomm.Get_remote_group
between = comm.Split(rank).Create_intercomm(0, comm, other)
assert between.remote_size == between.Get_remote_size() == 1
assert between.remote_group.size == between.Get_remote_group().size == 1

# example: Intercomm.Merge
between = comm.Split(rank).Create_intercomm(0, comm, other)
together = between.Merge(high=rank == 0)  # rank 0 comes last
assert together.rank == other

# example: Intercomm.Create_from_groups
groups = comm.group.Incl([rank]), comm.group.Incl([other])
between = MPI.Intercomm.Create_from_groups(groups[0], 0, groups[1], 0, "org.example.coupling")
assert between.sendrecv(rank, dest=0, source=0) == other

# example: IntergroupObjects.bcast
between = comm.Split(rank).Create_intercomm(0, comm, other)
word = between.bcast("hello", root=MPI.ROOT) if rank == 0 else between.bcast(None, root=0)
assert word == (None if rank == 0 else "hello")

# example: IntergroupObjects.gather
between = comm.Split(rank).Create_intercomm(0, comm, other)
words = between.gather(None, root=MPI.ROOT) if rank == 0 else between.gather("word", root=0)
assert words == (["word"] if rank == 0 else None)

# example: IntergroupObjects.scatter
between = comm.Split(rank).Create_intercomm(0, comm, other)
word = between.scatter(["word"], root=MPI.ROOT) if rank == 0 else between.scatter(None, root=0)
assert word == (None if rank == 0 else "word")

# example: IntergroupObjects.allgather
between = comm.Split(rank).Create_intercomm(0, comm, other)
assert between.allgather(rank) == [other]  # of the other group

# example: IntergroupObjects.alltoall
between = comm.Split(rank).Create_intercomm(0, comm, other)
assert between.alltoall([rank]) == [other]

# example: IntergroupObjects.reduce
between = comm.Split(rank).Create_intercomm(0, comm, other)
total = between.reduce(None, root=MPI.ROOT) if rank == 0 else between.reduce(5, root=0)
assert total == (5 if rank == 0 else None)

# example: IntergroupObjects.allreduce
between = comm.Split(rank).Create_intercomm(0, comm, other)
assert between.allreduce(rank) == other  # the sum of the other group

# example: Group.size Group.Get_size Group.rank Group.Get_rank
group = comm.group
assert (group.size, group.rank) == (group.Get_size(), group.Get_rank()) == (2, rank)

# example: Group.Translate_ranks
group = comm.group.Incl([1, 0])
assert group.Translate_ranks([0, 1], comm.group) == [1, 0]

# example: Group.Compare
assert comm.group.Compare(comm.group.Incl([1, 0])) == MPI.SIMILAR  # the same ranks in another order

# example: Group.Dup Group.Free
group = comm.group.Dup()
group.Free()
assert group == MPI.GROUP_NULL

# example: Group.Incl Group.Excl
assert comm.group.Incl([1]).Compare(comm.group.Excl([0])) == MPI.IDENT

# example: Group.Range_incl Group.Range_excl
assert comm.group.Range_incl([(0, 1, 1)]).size == 2  # first, last, stride
assert comm.group.Range_excl([(0, 0, 1)]).size == 1

# example: Group.Union
first, second = comm.group.Incl([0]), comm.group.Incl([1])
assert MPI.Group.Union(first, second).size == 2

# example: Group.Intersection Group.Intersect
both, second = comm.group, comm.group.Incl([1])
assert MPI.Group.Intersection(both, second).Compare(MPI.Group.Intersect(both, second)) == MPI.IDENT

# example: Group.Difference
both, second = comm.group, comm.group.Incl([1])
assert MPI.Group.Difference(both, second).size == 1

# example: Group.Create_from_session_pset
session = MPI.Session.Init()
assert MPI.Group.Create_from_session_pset(session, "mpi://WORLD").size == 2
session.Finalize()

# example: Session.Init Session.Finalize Session.Create_group
session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
mine = MPI.Intracomm.Create_from_group(group)  # a world of this library alone
assert mine.size == 2
mine.Free()
session.Finalize()

# example: Session.free
session = MPI.Session.Init()
session.free()

# example: Session.Get_num_psets Session.Get_nth_pset
session = MPI.Session.Init()
names = [session.Get_nth_pset(number) for number in range(session.Get_num_psets())]
assert "mpi://WORLD" in names
session.Finalize()

# example: Session.Get_info Session.Get_pset_info
session = MPI.Session.Init()
assert session.Get_pset_info("mpi://WORLD").Get("mpi_size") == "2"
assert isinstance(session.Get_info(), MPI.Info)  # the hints that it was made with
session.Finalize()

# example: Session.Attach_buffer Session.Detach_buffer
session = MPI.Session.Init()
session.Attach_buffer(bytearray(1000))  # for buffered sends on communicators of this session
session.Detach_buffer()
session.Finalize()

# example: Session.Flush_buffer Session.Iflush_buffer
session = MPI.Session.Init()
session.Attach_buffer(bytearray(1000))
session.Flush_buffer()
session.Iflush_buffer().Wait()
session.Detach_buffer()
session.Finalize()

# example: Session.Create_errhandler Session.Set_errhandler Session.Get_errhandler Session.Call_errhandler
codes, session = [], MPI.Session.Init()
handler = MPI.Session.Create_errhandler(lambda session, code: codes.append(code))
session.Set_errhandler(handler)
assert session.Get_errhandler() == handler
session.Call_errhandler(MPI.ERR_SESSION)
assert codes == [MPI.ERR_SESSION]
session.Finalize()

# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Wtime Wtick
begun = MPI.Wtime()
comm.Barrier()
assert MPI.Wtime() - begun > 0 < MPI.Wtick()

# example: Get_processor_name
assert isinstance(MPI.Get_processor_name(), str)  # the name of the host

# example: Get_version Get_library_version get_vendor
assert MPI.Get_version() == (MPI.VERSION, MPI.SUBVERSION)
assert MPI.Get_library_version().startswith(MPI.get_vendor()[0])

# example: Get_hw_resource_info
info = MPI.Get_hw_resource_info()  # to which resources of the machine this rank is restricted
assert set(info.values()) <= {"true", "false"}

# example: Is_initialized Is_finalized
assert MPI.Is_initialized() and not MPI.Is_finalized()

# example: Query_thread Is_thread_main
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE  # every thread may make calls
assert MPI.Is_thread_main()

# example: Pcontrol
MPI.Pcontrol(1)  # there is no profiler that would listen

# example: Get_error_class Get_error_string
assert MPI.Get_error_class(MPI.ERR_TRUNCATE) == MPI.ERR_TRUNCATE
assert "truncated" in MPI.Get_error_string(MPI.ERR_TRUNCATE)

# example: Add_error_class Add_error_code Add_error_string
mine = MPI.Add_error_class()
code = MPI.Add_error_code(mine)
MPI.Add_error_string(code, "the solver diverges")
assert str(MPI.Exception(code)) == "the solver diverges" and MPI.Get_error_class(code) == mine

# example: Remove_error_class Remove_error_code Remove_error_string
mine = MPI.Add_error_class()
code = MPI.Add_error_code(mine)
MPI.Add_error_string(code, "the solver diverges")
MPI.Remove_error_string(code)
MPI.Remove_error_code(code)
MPI.Remove_error_class(mine)

# example: Exception.Get_error_class Exception.error_class Exception.Get_error_string Exception.error_string
try:
    comm.Send(np.zeros(1), dest=99)
except MPI.Exception as error:
    assert error.Get_error_class() == error.error_class == MPI.ERR_RANK
    assert error.Get_error_string() == error.error_string == str(error)

# example: Exception.Get_error_code Exception.error_code
try:
    comm.Send(np.zeros(1), dest=99)
except MPI.Exception as error:
    assert MPI.Get_error_class(error.Get_error_code()) == MPI.Get_error_class(error.error_code) == MPI.ERR_RANK

# example: Errhandler.Free
handler = MPI.Comm.Create_errhandler(lambda comm, code: None)
handler.Free()
assert handler == MPI.ERRHANDLER_NULL

# example: Info.Create Info.Set Info.Get
info = MPI.Info.Create()
info.Set("key", "value")
assert info.Get("key") == "value" and info.Get("other") is None

# example: Info.Create_env
info = MPI.Info.Create_env(["solver", "-v"])
assert info["command"] == "solver" and info["argv"] == "-v"

# example: Info.Dup Info.copy Info.Free
info = MPI.Info.Create({"key": "value"})
assert dict(info.Dup()) == dict(info.copy()) == {"key": "value"}
info.Free()

# example: Info.Delete
info = MPI.Info.Create({"key": "value"})
info.Delete("key")
assert len(info) == 0

# example: Info.Get_nkeys Info.Get_nthkey
info = MPI.Info.Create({"key": "value"})
assert info.Get_nkeys() == 1 and info.Get_nthkey(0) == "key"

# example: Info.get
assert MPI.Info.Create().get("key", "default") == "default"

# example: Info.keys Info.values Info.items
info = MPI.Info.Create({"key": "value"})
assert (info.keys(), info.values(), info.items()) == (["key"], ["value"], [("key", "value")])

# example: Info.update
info = MPI.Info.Create({"key": "value"})
info.update({"key": "other"}, more="words")
assert dict(info) == {"key": "other", "more": "words"}

# example: Info.pop Info.popitem Info.clear
info = MPI.Info.Create({"a": "1", "b": "2", "c": "3"})
assert info.pop("a") == "1"
info.popitem()
info.clear()
assert len(info) == 0

# example: Open_port Close_port Publish_name Lookup_name Unpublish_name
if rank == 0:
    port = MPI.Open_port()
    MPI.Publish_name("example", port)
    comm.Barrier()
    comm.Barrier()
    MPI.Unpublish_name("example", port)
    MPI.Close_port(port)
else:
    comm.Barrier()  # it is published
    assert MPI.Lookup_name("example")
    comm.Barrier()

# example: Intracomm.Accept Intracomm.Connect
port = comm.bcast(MPI.Open_port() if rank == 0 else None)
if rank == 0:
    client = MPI.COMM_SELF.Accept(port)
    assert client.recv(source=0) == "hello"
    client.Disconnect()
    MPI.Close_port(port)
else:  # as well a program of another job
    server = MPI.COMM_SELF.Connect(port)
    server.send("hello", dest=0)
    server.Disconnect()

# example: Comm.Join
import socket

if rank == 0:
    listener = socket.create_server(("127.0.0.1", 0))
    comm.send(listener.getsockname(), dest=1)
    connection, _ = listener.accept()
else:
    connection = socket.create_connection(comm.recv(source=0))
joined = MPI.Comm.Join(connection.fileno())
assert joined.sendrecv(rank, dest=0, source=0) == other
joined.Disconnect()

# example: Intracomm.Spawn
import sys

child = "from mpi4py import MPI; parent = MPI.Comm.Get_parent(); parent.send(MPI.COMM_WORLD.rank, 0); parent.Disconnect()"
started = comm.Spawn(sys.executable, ["-c", child], maxprocs=1)
if rank == 0:
    assert started.recv(source=0) == 0
started.Disconnect()

# example: Intracomm.Spawn_multiple
import sys

child = "from mpi4py import MPI; MPI.Comm.Get_parent().Disconnect()"
started = comm.Spawn_multiple([sys.executable] * 2, [["-c", child]] * 2, maxprocs=[1, 2])
assert started.remote_size == 3
started.Disconnect()

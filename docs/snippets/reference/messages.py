# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Comm.Send Comm.Recv
data = np.arange(3) if rank == 0 else np.zeros(3, int)
if rank == 0:
    comm.Send(data, dest=1, tag=7)
else:
    comm.Recv(data, source=0, tag=7)
assert data.tolist() == [0, 1, 2]

# example: Comm.Ssend
if rank == 0:
    comm.Ssend(np.ones(1), dest=1)  # returns once the receive has begun
else:
    comm.Recv(np.empty(1), source=0)

# example: Comm.Bsend
MPI.Attach_buffer(bytearray(1000))
if rank == 0:
    comm.Bsend(np.ones(1), dest=1)  # is copied to that buffer, and returns
else:
    comm.Recv(np.empty(1), source=0)
MPI.Detach_buffer()

# example: Comm.Rsend
if rank == 0:
    request = comm.Irecv(np.empty(1), source=1)
    comm.Barrier()  # the receive is there
    request.Wait()
else:
    comm.Barrier()
    comm.Rsend(np.ones(1), dest=0)

# example: Comm.Sendrecv
received = np.empty(1, int)
comm.Sendrecv(np.array([rank]), dest=other, recvbuf=received, source=other)
assert received[0] == other

# example: Comm.Sendrecv_replace
data = np.array([rank])
comm.Sendrecv_replace(data, dest=other, source=other)
assert data[0] == other

# example: Comm.Isend Comm.Irecv
received = np.empty(1, int)
requests = [comm.Irecv(received, source=other), comm.Isend(np.array([rank]), dest=other)]
MPI.Request.Waitall(requests)
assert received[0] == other

# example: Comm.Issend
received = np.empty(1, int)
request = comm.Issend(np.array([rank]), dest=other)  # complete once the receive has begun
comm.Recv(received, source=other)
request.Wait()

# example: Comm.Ibsend
MPI.Attach_buffer(bytearray(1000))
request = comm.Ibsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
request.Wait()
MPI.Detach_buffer()

# example: Comm.Irsend
received = np.empty(1, int)
request = comm.Irecv(received, source=other)
comm.Barrier()  # both receives are there
comm.Irsend(np.array([rank]), dest=other).Wait()
request.Wait()

# example: Comm.Isendrecv
received = np.empty(1, int)
request = comm.Isendrecv(np.array([rank]), dest=other, recvbuf=received, source=other)
request.Wait()
assert received[0] == other

# example: Comm.Isendrecv_replace
data = np.array([rank])
request = comm.Isendrecv_replace(data, dest=other, source=other)
request.Wait()
assert data[0] == other

# example: Comm.Send_init Comm.Recv_init
data, received = np.zeros(1, int), np.zeros(1, int)
requests = [comm.Recv_init(received, source=other), comm.Send_init(data, dest=other)]
for step in range(3):
    data[0] = step
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    assert received[0] == step

# example: Comm.Ssend_init
request = comm.Ssend_init(np.array([rank]), dest=other)
request.Start()
comm.Recv(np.empty(1, int), source=other)
request.Wait()

# example: Comm.Bsend_init
MPI.Attach_buffer(bytearray(1000))
request = comm.Bsend_init(np.array([rank]), dest=other)
request.Start()
comm.Recv(np.empty(1, int), source=other)
request.Wait()
MPI.Detach_buffer()

# example: Comm.Rsend_init
received = comm.Irecv(np.empty(1, int), source=other)
comm.Barrier()  # both receives are there
request = comm.Rsend_init(np.array([rank]), dest=other)
request.Start()
MPI.Request.Waitall([request, received])

# example: Comm.Probe
if rank == 0:
    comm.Send(np.arange(5), dest=1)
else:
    status = MPI.Status()
    comm.Probe(source=0, status=status)
    data = np.empty(status.Get_count(MPI.INT64_T), int)  # as long as what is to come
    comm.Recv(data, source=0)
    assert data.tolist() == [0, 1, 2, 3, 4]

# example: Comm.Iprobe
request = comm.Isend(np.array([rank]), dest=other)
while not comm.Iprobe(source=other):
    pass  # there is time for something else
comm.Recv(np.empty(1, int), source=other)
request.Wait()

# example: Comm.Mprobe
request = comm.Isend(np.arange(3), dest=other)
message = comm.Mprobe(source=other)  # from now on no other receive gets it
data = np.empty(3, int)
message.Recv(data)
request.Wait()

# example: Comm.Improbe
request = comm.Isend(np.arange(3), dest=other)
while (message := comm.Improbe(source=other)) is None:
    pass
message.Recv(np.empty(3, int))
request.Wait()

# example: Comm.send Comm.recv
if rank == 0:
    comm.send({"any": "object"}, dest=1)
else:
    assert comm.recv(source=0) == {"any": "object"}

# example: Comm.ssend
if rank == 0:
    comm.ssend("word", dest=1)  # returns once the receive has begun
else:
    assert comm.recv(source=0) == "word"

# example: Comm.bsend
MPI.Attach_buffer(bytearray(1000))
comm.bsend("word", dest=other)
assert comm.recv(source=other) == "word"
MPI.Detach_buffer()

# example: Comm.sendrecv
assert comm.sendrecv(f"from {rank}", dest=other, source=other) == f"from {other}"

# example: Comm.isend Comm.irecv
request = comm.isend(f"from {rank}", dest=other)
assert comm.irecv(source=other).wait() == f"from {other}"
request.wait()

# example: Comm.issend
request = comm.issend("word", dest=other)
assert comm.recv(source=other) == "word"
request.wait()

# example: Comm.ibsend
MPI.Attach_buffer(bytearray(1000))
request = comm.ibsend("word", dest=other)
assert comm.recv(source=other) == "word"
request.wait()
MPI.Detach_buffer()

# example: Comm.probe
request = comm.isend("word", dest=other)
status = MPI.Status()
comm.probe(source=MPI.ANY_SOURCE, status=status)
assert comm.recv(source=status.source) == "word"
request.wait()

# example: Comm.iprobe
request = comm.isend("word", dest=other)
while not comm.iprobe(source=other):
    pass  # there is time for something else
assert comm.recv(source=other) == "word"
request.wait()

# example: Comm.mprobe
request = comm.isend("word", dest=other)
assert comm.mprobe(source=other).recv() == "word"
request.wait()

# example: Comm.improbe
request = comm.isend("word", dest=other)
while (message := comm.improbe(source=other)) is None:
    pass
assert message.recv() == "word"
request.wait()

# example: Comm.Psend_init Comm.Precv_init Prequest.Pready Prequest.Parrived
data = np.arange(4.0) if rank == 0 else np.zeros(4)
if rank == 0:
    request = comm.Psend_init([data, 2, MPI.DOUBLE], partitions=2, dest=1)
    request.Start()
    request.Pready(1)  # the second half may go, the first one is still being computed
    request.Pready(0)
else:
    request = comm.Precv_init([data, 2, MPI.DOUBLE], partitions=2, source=0, tag=0)
    request.Start()
    while not request.Parrived(1):
        pass
request.Wait()
assert data.tolist() == [0, 1, 2, 3]

# example: Prequest.Pready_range Prequest.Pready_list
data = np.arange(4.0) if rank == 0 else np.zeros(4)
if rank == 0:
    request = comm.Psend_init([data, 1, MPI.DOUBLE], partitions=4, dest=1)
    request.Start()
    request.Pready_range(0, 1)  # both are among them
    request.Pready_list([3, 2])
else:
    request = comm.Precv_init([data, 1, MPI.DOUBLE], partitions=4, source=0, tag=0)
    request.Start()
request.Wait()
assert data.tolist() == [0, 1, 2, 3]

# example: Comm.Attach_buffer Comm.Detach_buffer
comm.Attach_buffer(bytearray(1000))  # for buffered sends on this communicator
comm.Bsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
comm.Detach_buffer()  # returns once all that is in it was sent

# example: Comm.Flush_buffer
comm.Attach_buffer(bytearray(1000))
comm.Bsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
comm.Flush_buffer()  # what was in it is sent, and it stays attached
comm.Detach_buffer()

# example: Comm.Iflush_buffer
comm.Attach_buffer(bytearray(1000))
comm.Bsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
comm.Iflush_buffer().Wait()
comm.Detach_buffer()

# example: Attach_buffer Detach_buffer
MPI.Attach_buffer(bytearray(1000))  # for buffered sends on all communicators that have none of their own
comm.Bsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
MPI.Detach_buffer()

# example: Flush_buffer Iflush_buffer
MPI.Attach_buffer(bytearray(1000))
comm.Bsend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
MPI.Flush_buffer()  # what was in it is sent, and it stays attached
MPI.Iflush_buffer().Wait()
MPI.Detach_buffer()

# example: Message.Probe Message.Recv
request = comm.Isend(np.arange(3), dest=other)
message = MPI.Message.Probe(comm, source=other)
message.Recv(np.empty(3, int))
request.Wait()

# example: Message.Iprobe Message.Irecv
request = comm.Isend(np.arange(3), dest=other)
while (message := MPI.Message.Iprobe(comm, source=other)) is None:
    pass
MPI.Request.Waitall([message.Irecv(np.empty(3, int)), request])

# example: Message.probe Message.recv
request = comm.isend("word", dest=other)
assert MPI.Message.probe(comm, source=other).recv() == "word"
request.wait()

# example: Message.iprobe Message.irecv
request = comm.isend("word", dest=other)
while (message := MPI.Message.iprobe(comm, source=other)) is None:
    pass
assert message.irecv().wait() == "word"
request.wait()

# example: Message.free
message = MPI.Message(MPI.MESSAGE_NO_PROC)  # what a probe of PROC_NULL returns
message.free()
assert message == MPI.MESSAGE_NULL

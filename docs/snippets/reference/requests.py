# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Request.Wait
request = comm.Isend(np.array([rank]), dest=other)
comm.Recv(np.empty(1, int), source=other)
request.Wait()

# example: Request.Test
request = comm.Ibarrier()
while not request.Test():
    pass  # there is time for something else

# example: Request.Get_status
status = MPI.Status()
request = comm.Ibarrier()
while not request.Get_status(status):
    pass  # unlike Test, it leaves the request as it is
request.Wait()

# example: Request.wait
request = comm.irecv(source=other)
comm.send("word", dest=other)
assert request.wait() == "word"

# example: Request.test
request = comm.irecv(source=other)
comm.send("word", dest=other)
is_there, word = request.test()
while not is_there:
    is_there, word = request.test()
assert word == "word"

# example: Request.get_status
request = comm.irecv(source=other)
comm.send("word", dest=other)
while not request.get_status():
    pass  # unlike test, it leaves the request as it is
assert request.wait() == "word"

# example: Request.Waitany
requests = [comm.Ibarrier(), MPI.REQUEST_NULL]
assert MPI.Request.Waitany(requests) == 0  # the number of one that is complete

# example: Request.Testany
requests = [comm.Ibarrier()]
number, is_complete = MPI.Request.Testany(requests)
while not is_complete:
    number, is_complete = MPI.Request.Testany(requests)
assert number == 0

# example: Request.Get_status_any
requests = [comm.Ibarrier()]
while not MPI.Request.Get_status_any(requests)[1]:
    pass
requests[0].Wait()

# example: Request.waitany
requests = [comm.irecv(source=other)]
comm.send("word", dest=other)
assert MPI.Request.waitany(requests) == (0, "word")

# example: Request.testany
requests = [comm.irecv(source=other)]
comm.send("word", dest=other)
number, is_complete, word = MPI.Request.testany(requests)
while not is_complete:
    number, is_complete, word = MPI.Request.testany(requests)
assert (number, word) == (0, "word")

# example: Request.get_status_any
requests = [comm.irecv(source=other)]
comm.send("word", dest=other)
while not MPI.Request.get_status_any(requests)[1]:
    pass
assert requests[0].wait() == "word"

# example: Request.Waitall
received = np.empty(1, int)
requests = [comm.Irecv(received, source=other), comm.Isend(np.array([rank]), dest=other)]
MPI.Request.Waitall(requests)
assert received[0] == other

# example: Request.Testall
requests = [comm.Irecv(np.empty(1, int), source=other), comm.Isend(np.array([rank]), dest=other)]
while not MPI.Request.Testall(requests):
    pass  # there is time for something else

# example: Request.Get_status_all
requests = [comm.Ibarrier(), comm.Ibarrier()]
while not MPI.Request.Get_status_all(requests):
    pass
MPI.Request.Waitall(requests)

# example: Request.waitall
requests = [comm.isend("word", dest=other), comm.irecv(source=other)]
assert MPI.Request.waitall(requests) == [None, "word"]

# example: Request.testall
requests = [comm.isend("word", dest=other), comm.irecv(source=other)]
are_complete, objects = MPI.Request.testall(requests)
while not are_complete:
    are_complete, objects = MPI.Request.testall(requests)
assert objects == [None, "word"]

# example: Request.get_status_all
requests = [comm.isend("word", dest=other), comm.irecv(source=other)]
while not MPI.Request.get_status_all(requests):
    pass
assert MPI.Request.waitall(requests) == [None, "word"]

# example: Request.Waitsome
requests = [comm.Ibarrier(), comm.Ibarrier()]
done = []
while len(done) < 2:
    done += MPI.Request.Waitsome(requests)  # at least one
assert sorted(done) == [0, 1]

# example: Request.Testsome
requests = [comm.Ibarrier(), comm.Ibarrier()]
done = []
while len(done) < 2:
    done += MPI.Request.Testsome(requests)  # perhaps none
assert sorted(done) == [0, 1]

# example: Request.Get_status_some
requests = [comm.Ibarrier(), comm.Ibarrier()]
while len(MPI.Request.Get_status_some(requests)) < 2:
    pass
MPI.Request.Waitall(requests)

# example: Request.waitsome
requests = [comm.irecv(source=other, tag=tag) for tag in range(2)]
for tag in range(2):
    comm.send(f"word {tag}", dest=other, tag=tag)
words = {}
while len(words) < 2:
    words |= dict(zip(*MPI.Request.waitsome(requests), strict=True))
assert words == {0: "word 0", 1: "word 1"}

# example: Request.testsome
requests = [comm.irecv(source=other)]
comm.send("word", dest=other)
numbers, objects = MPI.Request.testsome(requests)
while not numbers:
    numbers, objects = MPI.Request.testsome(requests)
assert (numbers, objects) == ([0], ["word"])

# example: Request.get_status_some
requests = [comm.irecv(source=other)]
comm.send("word", dest=other)
while not MPI.Request.get_status_some(requests):
    pass
assert requests[0].wait() == "word"

# example: Request.Cancel
request = comm.Irecv(np.empty(1), source=other, tag=99)  # nobody sends that
request.Cancel()
status = MPI.Status()
request.Wait(status)
assert status.Is_cancelled()

# example: Request.cancel
request = comm.irecv(source=other, tag=99)  # nobody sends that
request.cancel()
status = MPI.Status()
request.wait(status)
assert status.cancelled

# example: Request.Free
request = comm.Isend(np.array([rank]), dest=other)
request.Free()  # it goes on, and nobody asks when it is complete
assert request == MPI.REQUEST_NULL
comm.Recv(np.empty(1, int), source=other)

# example: Prequest.Start
request = comm.Barrier_init()
for _ in range(2):
    request.Start()
    request.Wait()

# example: Prequest.Startall
requests = [comm.Recv_init(np.empty(1), source=other), comm.Send_init(np.ones(1), dest=other)]
MPI.Prequest.Startall(requests)
MPI.Request.Waitall(requests)

# example: Grequest.Start Grequest.Complete
request = MPI.Grequest.Start()  # an operation of this program, which can be waited for with others
request.Complete()
request.Wait()

# example: Grequest.complete
request = MPI.Grequest.Start()
request.complete("result")
assert request.wait() == "result"

# example: Status.source Status.Get_source Status.tag Status.Get_tag
status = MPI.Status()
comm.send("word", dest=other, tag=7)
comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
assert status.source == status.Get_source() == other
assert status.tag == status.Get_tag() == 7

# example: Status.count Status.Get_count Status.Get_elements
status = MPI.Status()
comm.Sendrecv(np.ones(3), dest=other, recvbuf=np.empty(10), source=other, status=status)
assert status.count == 24  # bytes
assert status.Get_count(MPI.DOUBLE) == status.Get_elements(MPI.DOUBLE) == 3

# example: Status.error Status.Get_error Status.Set_error
status = MPI.Status()
status.Set_error(MPI.ERR_OTHER)
assert status.error == status.Get_error() == MPI.ERR_OTHER

# example: Status.Set_source Status.Set_tag
status = MPI.Status()
status.Set_source(1)
status.Set_tag(7)
assert (status.source, status.tag) == (1, 7)

# example: Status.Set_elements
status = MPI.Status()
status.Set_elements(MPI.DOUBLE, 3)
assert status.Get_elements(MPI.DOUBLE) == 3

# example: Status.Set_cancelled Status.Is_cancelled Status.cancelled
status = MPI.Status()
status.Set_cancelled(True)
assert status.Is_cancelled() and status.cancelled

# example: Status.tomemory
assert len(MPI.Status().tomemory()) > 0  # the numbers that it consists of

# example: Status.py2f Status.f2py
status = MPI.Status()
status.tag = 7
assert MPI.Status.f2py(status.py2f()).tag == 7

"""Windows of ranks on two hosts, which are network namespaces here: by requests, and by what UCX does itself."""

from __future__ import annotations

import pytest
from spaces import needs_ucx

ACCESS = """
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
count = 100_000  # large accesses, unaligned, in turn with small ones to the same elements
memory = np.zeros(8 * count * size + 1, np.uint8)
window = MPI.Win.Create(memory, comm=comm)
window.Fence()
for peer in range(size):
    data, found, first = np.arange(count) * 7.0 + rank, np.empty(count), 8 * count * rank + 1
    window.Put(data, peer, first)
    window.Put(np.full(5, -1.0), peer, first + 80)
    window.Get(found, peer, first)
    data[10:15] = -1
    assert (found == data).all()
    request = window.Rget(found[: count // 2], peer, first)
    window.Rput(data[::-1].copy(), peer, first).Wait()
    request.Wait()
window.Fence()
for peer in range(size):
    data = np.arange(count) * 7.0 + peer
    data[10:15] = -1
    assert (memory[8 * count * peer + 1 :][: 8 * count] == data[::-1].copy().view(np.uint8)).all()
window.Free()
print("ok", rank)
"""
INTERRUPT = """
import signal
from mpi4py import MPI
import numpy as np

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

comm, count = MPI.COMM_WORLD, 8 << 20
window = MPI.Win.Create(np.zeros(count), 8, comm=comm)
other, stopped = (comm.rank + 2) % 4, 0
signal.signal(signal.SIGALRM, stop)
window.Lock(other, MPI.LOCK_SHARED)
for number in range(60):
    try:  # the buffer goes as soon as the access is given up
        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0003 * number)
        (window.Put if number % 2 else window.Get)(np.full(count, 1.0), other)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        stopped += 1
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
sent, found = np.arange(1000.0), np.empty(1000)
window.Put(sent, other, (2000 * comm.rank, 1000, MPI.DOUBLE))
window.Get(found, other, (2000 * comm.rank, 1000, MPI.DOUBLE))
window.Unlock(other)
assert (found == sent).all()
window.Free()
print("ok", comm.rank, stopped > 0)
"""


@needs_ucx
@pytest.mark.parametrize("windows", ["direct", "messages"])
def test_large_and_small_accesses_to_the_same_elements_stay_in_order(on_hosts, windows):
    for (status, stdout, stderr), ranks in zip(
        on_hosts("-c", ACCESS, NCCLX_MPI_FAR_WINDOWS=windows).end(timeout=300), ((0, 1), (2, 3)), strict=True
    ):
        assert status == 0, stderr
        assert sorted(stdout.splitlines()) == [f"ok {rank}" for rank in ranks]


@needs_ucx
def test_accesses_that_a_signal_handler_ends_leave_their_buffers_alone(on_hosts):
    for status, stdout, stderr in on_hosts("-c", INTERRUPT, NCCLX_MPI_FAR_WINDOWS="direct").end(timeout=300):
        assert (status, stdout.count("ok"), stdout.count("True")) == (0, 2, 2), stdout + stderr

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
COMBINE = """
import numpy as np
from mpi4py import MPI

comm, hint = MPI.COMM_WORLD, "disable_shm_accumulate"
rank, size, info = comm.rank, comm.size, MPI.Info.Create({"disable_shm_accumulate": "true"})
memory = np.zeros(101, np.int64)
window = MPI.Win.Create(memory[:100], 1, info, comm)
is_by_network = window.Get_info().Get(hint)
for value in ("true", "false"):
    window.Set_info(MPI.Info.Create({hint: value, "other": value}))
    assert (window.Get_info().Get(hint), window.Get_info().Get("other")) == (is_by_network, value)
one, zero, got, seen = np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), []
window.Lock_all()
for number in range(300):  # each number of a target's counter is had once
    window.Fetch_and_op(one, got, number % size, 8, MPI.SUM)
    seen.append((number % size, int(got[0])))
for _ in range(30):  # a lock around a word that is read and written
    while window.Compare_and_swap(one, zero, got, 0, 16) or got[0]:
        pass
    value = np.zeros(1, np.int64)
    window.Get(value, 0, 24)
    window.Flush(0)
    window.Put(value + 1, 0, 24)
    window.Flush(0)
    window.Fetch_and_op(zero, got, 0, 16, MPI.REPLACE)
    assert got[0] == 1
pairs = MPI.INT64_T.Create_vector(3, 1, 2).Commit()
result = np.full(3, -1, np.int64)
for peer in range(size):
    window.Accumulate(np.arange(1, 4), peer, (80, 3, MPI.INT64_T), MPI.SUM)
    window.Accumulate(np.arange(1, 4), peer, (160, 1, pairs), MPI.SUM)  # with gaps
    window.Accumulate(np.array([1 << 10 * rank, 1], np.uint64), peer, (240, 2, MPI.UINT64_T), MPI.BXOR)
    window.Accumulate(np.array([rank, -rank]), peer, (320, 2, MPI.INT64_T), MPI.MAX)  # the network has none
    window.Accumulate(np.full(2, 2.0), peer, (400, 2, MPI.DOUBLE), MPI.SUM)  # no integers
    window.Accumulate(np.full(2, 3, np.int64), peer, (484, 2, MPI.INT64_T), MPI.SUM)  # not aligned
    window.Accumulate(np.full(2, 3, np.int32), peer, (504, 2, MPI.INT32_T), MPI.SUM)  # too short
    window.Rget_accumulate(np.arange(1, 4), result, peer, (560, 3, MPI.INT64_T), MPI.SUM).Wait()
    before, rest = np.divmod(result, np.arange(1, 4))  # each word for itself: another rank may be between two of them
    assert (rest == 0).all() and (before >= 0).all() and (before < size).all()
window.Unlock_all()
comm.Barrier()
window.Lock(rank)
window.Get_accumulate(zero, got, rank, 24, MPI.NO_OP)
window.Unlock(rank)
assert got[0] == (30 * size if rank == 0 else 0) and memory[100] == 0
for target, one_by_one in enumerate(sorted(value for peer, value in sum(comm.allgather(seen), []) if peer == each) for each in range(size)):
    assert one_by_one == list(range(len(one_by_one))), target
assert (memory[10:13] == size * np.arange(1, 4)).all() and (memory[20:25] == size * np.array([1, 0, 2, 0, 3])).all()
assert memory[30:32].tolist() == [sum(1 << 10 * peer for peer in range(size)), size % 2] and memory[40:42].tolist() == [size - 1, 0]
raw = memory.view(np.uint8)
assert (memory[50:52].view(np.float64) == 2.0 * size).all() and (raw[484:500].copy().view(np.int64) == 3 * size).all()
assert (raw[504:512].view(np.int32) == 3 * size).all() and (memory[70:73] == size * np.arange(1, 4)).all()
window.Free()

mine = np.zeros(4 * (rank == 0), np.int64)  # a rank without memory
window = MPI.Win.Create(mine, 8, info, comm)
window.Fence()
window.Accumulate(np.arange(4), 0)
window.Fence()
assert rank or (mine == size * np.arange(4)).all()
window.Free()
for window in (MPI.Win.Create_dynamic(info, comm), MPI.Win.Create(mine, 8, info, MPI.COMM_SELF)):
    assert window.Get_info().Get(hint) == "false"  # memory that comes later, nobody else
    window.Free()
print("ok", rank, is_by_network)
"""
GIVE_UP = """
import os, signal, subprocess, sys
import numpy as np
from mpi4py import MPI

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

comm = MPI.COMM_WORLD
memory = np.zeros(2, np.int64)
window = MPI.Win.Create(memory, 8, MPI.Info.Create({"disable_shm_accumulate": "true"}), comm)
assert window.Get_info().Get("disable_shm_accumulate") == "true"
one, got = np.ones(1, np.int64), np.zeros(1, np.int64)
window.Lock_all()
for _ in range(3):
    window.Fetch_and_op(one, got, 1, 0)
if comm.rank == 1:
    comm.recv(source=0)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)  # by sockets the network takes this process, for which rank 0 waits meanwhile
    comm.recv(source=0)
    window.Fetch_and_op(one, got, 1, 0)
    assert got[0] >= 4  # what was given up has been done all the same
else:
    comm.send(None, 1)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0 if sys.argv[1] == "killed" else 0.5)
    try:
        while True:
            window.Fetch_and_op(one, got, 1, 0)
    except Stop:
        comm.send(None, 1)
        print("ok")
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
        print("ok")
        os._exit(0)
window.Unlock_all()
window.Free()
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
@pytest.mark.parametrize("windows, nranks, is_by_network", [("direct", 1, True), ("messages", 1, False), ("direct", 2, False)])
def test_words_are_combined_by_the_network_if_no_two_ranks_share_memory(on_hosts, windows, nranks, is_by_network):
    said = sorted(
        line
        for status, stdout, stderr in on_hosts(
            "-c", COMBINE, nranks=nranks, NCCLX_MPI_FAR_WINDOWS=windows, UCX_PROTO_ENABLE="n"
        ).end(timeout=300)
        for line in (stdout if status == 0 else stderr).splitlines()
    )
    assert said == [f"ok {rank} {str(is_by_network).lower()}" for rank in range(2 * nranks)]


@needs_ucx
@pytest.mark.parametrize("ends", ["by a signal", "killed"])
def test_a_wait_for_the_network_ends_with_its_signal_or_its_peer(on_hosts, ends):
    found = on_hosts("-c", GIVE_UP, ends, nranks=1, NCCLX_MPI_FAR_WINDOWS="direct", UCX_PROTO_ENABLE="n").end(timeout=120)
    assert found[0][1] == "ok\n", found


@needs_ucx
def test_accesses_that_a_signal_handler_ends_leave_their_buffers_alone(on_hosts):
    for status, stdout, stderr in on_hosts("-c", INTERRUPT, NCCLX_MPI_FAR_WINDOWS="direct").end(timeout=300):
        assert (status, stdout.count("ok"), stdout.count("True")) == (0, 2, 2), stdout + stderr

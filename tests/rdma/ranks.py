"""What the ranks of a test job do: messages, a collective of each kind, a window; with the argument ``kill``, the last one then dies.

With ``stop``, for which the network has to be one with RDMA, a rank is stopped, and its window accessed all the same. With ``lanes`` there
are messages only.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
LARGE = 300_000


def talk() -> None:
    """Eager and large messages to every rank, and from whoever comes first."""
    for count in (1, 1000, LARGE):
        got = [np.empty(count) for _ in range(size)]
        requests = [comm.Irecv(got[peer], peer, count) for peer in range(size)]
        requests += [comm.Isend(np.full(count, rank * 10.0 + peer), peer, count) for peer in range(size)]
        MPI.Request.Waitall(requests)
        assert all((got[peer] == peer * 10.0 + rank).all() for peer in range(size))
    if rank == 0:
        seen = [comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) for _ in range(10 * (size - 1))]
        for peer in range(1, size):
            assert [number for sender, number in seen if sender == peer] == list(range(10))
    else:
        for number in range(10):
            comm.send((rank, number), 0, tag=number)


def collect() -> None:
    """One collective of each kind, small and large."""
    ranks = range(size)
    for count in (3, 40_000):
        mine, all_of_it = np.full(count, float(rank)), np.empty(count * size)
        total, part, block = np.empty(count), np.empty(count), np.empty(count)
        whole = np.repeat(np.arange(float(size)), count)
        comm.Barrier()
        comm.Allreduce(mine, total)
        assert (total == sum(ranks)).all()
        comm.Reduce(mine, total, root=size - 1)
        comm.Bcast(total, root=size - 1)
        assert (total == sum(ranks)).all()
        comm.Allgather(mine, all_of_it)
        assert (all_of_it == whole).all()
        comm.Gather(mine, all_of_it if rank == 0 else None)
        comm.Scatter(whole if rank == 0 else None, part)
        assert (part == rank).all()
        comm.Alltoall(whole, all_of_it)
        assert (all_of_it == rank).all()
        comm.Reduce_scatter_block(whole, block)
        assert (block == size * rank).all()
        comm.Scan(mine, total)
        assert (total == sum(range(rank + 1))).all()
        comm.Exscan(mine, total)
        assert rank == 0 or (total == sum(range(rank))).all()
    assert comm.allgather({"rank": rank}) == [{"rank": peer} for peer in ranks]
    comm.Ibarrier().Wait()


def access() -> None:
    """Accesses of each kind to a window."""
    memory = np.full(10 * size + 1, -1.0)
    memory[-1] = 0
    window = MPI.Win.Create(memory, disp_unit=8, comm=comm)
    window.Fence()
    for peer in range(size):
        window.Put(np.full(10, float(rank)), peer, (10 * rank, 10, MPI.DOUBLE))
        window.Accumulate(np.ones(1), peer, (10 * size, 1, MPI.DOUBLE), MPI.SUM)
    window.Fence()
    assert (memory[:-1] == np.repeat(np.arange(float(size)), 10)).all() and memory[-1] == size
    there, other = np.empty(10), (rank + 1) % size
    window.Lock(other)
    window.Get(there, other, (10 * rank, 10, MPI.DOUBLE))
    window.Unlock(other)
    assert (there == rank).all()
    window.Free()


def combine() -> None:
    """A counter and a lock at each rank, which the network itself combines where each rank has a node of its own."""
    memory, info = np.zeros(3, np.int64), MPI.Info.Create({"disable_shm_accumulate": "true"})
    window = MPI.Win.Create(memory, 8, info, comm)
    is_by_network = window.Get_info().Get("disable_shm_accumulate") == "true"
    one, zero, got, seen = np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), []
    window.Lock_all()
    for number in range(100):
        window.Fetch_and_op(one, got, number % size, 0)
        seen.append((number % size, int(got[0])))
    for peer in range(size):
        while window.Compare_and_swap(one, zero, got, peer, 1) or got[0]:
            pass
        value = np.zeros(1, np.int64)
        window.Get(value, peer, 2)
        window.Flush(peer)
        window.Put(value + 1, peer, 2)
        window.Flush(peer)
        window.Accumulate(zero, peer, 1, MPI.REPLACE)
    window.Unlock_all()
    comm.Barrier()
    for peer in range(size):
        numbers = sorted(number for each in comm.allgather(seen) for target, number in each if target == peer)
        assert numbers == list(range(len(numbers))), f"a number of rank {peer} was had twice"
    assert memory[1:].tolist() == [0, size]
    window.Free()
    if rank == 0:
        print(f"{size} ranks combined words by {'the network' if is_by_network else 'requests'}", flush=True)


def access_much() -> None:
    """Puts and gets of more than an eager message takes, unaligned, in turn with small ones to the same elements."""
    memory = MPI.Alloc_mem(size * 8 * LARGE + 1)
    window = MPI.Win.Create(memory, comm=comm)
    window.Fence()
    mine = rank * 8 * LARGE + 1
    for peer in range(size):
        data, found = np.arange(LARGE) * 7.0 + rank, np.empty(LARGE)
        window.Put(data, peer, mine)
        window.Put(np.full(5, -1.0), peer, mine + 80)
        window.Get(found, peer, mine)
        data[10:15] = -1
        assert (found == data).all(), f"rank {rank} of {peer}"
        window.Put(data[::-1].copy(), peer, mine)
    window.Fence()
    for peer in range(size):
        data = np.arange(LARGE) * 7.0 + peer
        data[10:15] = -1
        found = np.frombuffer(memory, np.uint8, 8 * LARGE, peer * 8 * LARGE + 1).copy().view(np.float64)
        assert (found == data[::-1]).all(), f"rank {peer} at {rank}"
    window.Free()
    MPI.Free_mem(memory)


def use_addresses_again() -> None:
    """Memory is given back and taken anew at the same address: what goes out and comes in is that of now, however it was registered."""
    other, window_memory = (rank + size // 2) % size, np.zeros(LARGE)
    window = MPI.Win.Create(window_memory, disp_unit=8, comm=comm)
    places, nbytes = [], 8 * LARGE
    for number in range(4):
        maps = [mmap.mmap(-1, nbytes) for _ in range(2)]
        out, into = (np.frombuffer(each) for each in maps)
        places.append((out.ctypes.data, into.ctypes.data))
        out[:] = np.arange(LARGE) + 1000.0 * number + rank
        comm.Sendrecv(out, other, 5, into, other, 5)
        assert (into == np.arange(LARGE) + 1000.0 * number + other).all(), f"message {number}"
        into[:] = -1
        comm.Barrier()
        window.Lock(other)
        window.Put(out, other)
        window.Unlock(other)
        comm.Barrier()
        window.Lock(other)
        window.Get(into, other)
        window.Unlock(other)
        assert (into == out).all(), f"window {number}"
        assert (window_memory == np.arange(LARGE) + 1000.0 * number + other).all(), f"window memory {number}"
        comm.Barrier()
        del out, into
        for each in maps:
            each.close()
    window.Free()
    seen = [place for pair in places for place in pair]
    print(f"rank {rank} has used {len(seen) - len(set(seen))} of {len(seen)} addresses again", flush=True)


def access_a_stopped_rank() -> None:
    """Nothing of the target runs, and its memory is read and written."""
    memory = np.arange(float(LARGE))
    window = MPI.Win.Create(memory, disp_unit=8, comm=comm)
    process = comm.bcast(os.getpid(), root=size - 1)
    if rank == 0:
        window.Lock(size - 1)
        found = np.empty(LARGE)
        window.Get(found[:1], size - 1)
        os.kill(process, signal.SIGSTOP)
        try:
            window.Put(np.full(LARGE // 2, -5.0), size - 1)
            window.Get(found, size - 1)
            one = np.empty(1)
            window.Get(one, size - 1, 3)
        finally:
            os.kill(process, signal.SIGCONT)
        assert (found[: LARGE // 2] == -5).all() and (found[LARGE // 2 :] == memory[LARGE // 2 :]).all() and one[0] == -5
        window.Unlock(size - 1)
        print("a stopped rank was read and written", flush=True)
    comm.Barrier()
    assert (memory[: LARGE // 2] == -5).all() == (rank == size - 1)
    window.Free()


def lose_the_last() -> None:
    """The last rank dies while rank 0 receives from it; each of the others hears of it where it waits for that one."""
    room = np.zeros(20 * LARGE)
    if rank == size - 1:
        comm.Isend(room + 1, 0, 1)
        comm.recv(source=0, tag=2)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        request = comm.Irecv(room, size - 1, 1)
        while not room.any():
            request.Test()
        comm.send(None, size - 1, tag=2)
    begun = time.monotonic()
    try:
        comm.recv(source=size - 1, tag=3)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PROC_FAILED
        print(f"rank {rank} knows after {time.monotonic() - begun:.1f} s", flush=True)


talk()
if sys.argv[1:] == ["lanes"]:
    print(f"rank {rank} has talked by lanes", flush=True)
    sys.exit()
collect()
access()
combine()
access_much()
use_addresses_again()
if sys.argv[1:] == ["stop"]:
    access_a_stopped_rank()
print(f"rank {rank} of {size} is done", flush=True)
if sys.argv[1:] == ["kill"]:
    comm.Barrier()
    lose_the_last()

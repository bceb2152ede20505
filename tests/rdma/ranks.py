"""What the ranks of a test job do: messages, a collective of each kind, a window; with the argument ``kill``, the last one then dies."""

from __future__ import annotations

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
collect()
access()
print(f"rank {rank} of {size} is done", flush=True)
if sys.argv[1:] == ["kill"]:
    comm.Barrier()
    lose_the_last()

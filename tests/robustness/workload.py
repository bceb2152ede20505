"""A program that communicates in many ways until something fails, then says what it saw: ``{rank, class, time}``.

Run by test_kills.py on four ranks; each prints its process id first. With a file's name it uses windows, that file, intercommunicators and
a pool of spawned workers, too, whose process ids rank 0 prints before its own.
"""

import contextlib
import json
import os
import random
import sys
import time
from concurrent.futures import BrokenExecutor

import numpy as np
from mpi4py import MPI


def small_collectives(comm, step):
    total = np.zeros(8)
    comm.Allreduce(np.ones(8), total)
    assert total[0] == comm.size
    comm.Bcast(total, root=step % comm.size)
    comm.Barrier()


def large_collectives(comm, step):
    mine = np.full(300_000, comm.rank, dtype="f4")
    total, everyone = np.empty_like(mine), np.empty((comm.size, mine.size), dtype="f4")
    comm.Allreduce(mine, total)
    comm.Allgather(mine, everyone)
    assert everyone[-1, -1] == comm.size - 1


def ring(comm, step):
    data = np.full(1 << (step % 20), comm.rank, dtype="u1")
    arrived = np.empty_like(data)
    comm.Sendrecv(data, (comm.rank + 1) % comm.size, 2, arrived, (comm.rank - 1) % comm.size, 2)


def requests(comm, step):
    arrived = [np.empty(5000) for _ in range(comm.size)]
    pending = [comm.Irecv(buffer, source=rank, tag=3) for rank, buffer in enumerate(arrived)]
    pending += [comm.Isend(np.full(5000, step), dest=rank, tag=3) for rank in range(comm.size)]
    pending.append(comm.Ibarrier())
    MPI.Request.Waitall(pending)


def objects(comm, step):
    assert comm.allgather({"rank": comm.rank, "array": np.arange(2000)})[1]["rank"] == 1
    comm.scatter([f"for {rank}" for rank in range(comm.size)], root=step % comm.size)


def any_source(comm, step):
    """The tag names the step: a rank may be two steps ahead of another one, and its message must not be taken for an earlier one."""
    if comm.rank == 0:
        for _ in range(1, comm.size):
            comm.recv(source=MPI.ANY_SOURCE, tag=100 + step)
    else:
        comm.ssend(step, dest=0, tag=100 + step)


def communicators(comm, step):
    part = comm.Split(comm.rank % 2)
    part.Barrier()
    part.Free()


def windows(comm, step):
    right = (comm.rank + 1) % comm.size
    window = MPI.Win.Allocate(16, 8, comm=comm)
    window.Fence()
    window.Put(np.array([step]), right)
    window.Fence(MPI.MODE_NOSUCCEED)
    window.Lock(right)
    window.Accumulate(np.array([1]), right, 1)
    window.Unlock(right)
    window.Lock_all()
    window.Fetch_and_op(np.array([1]), np.array([0]), 0, 1)
    window.Unlock_all()
    window.Free()


def files(comm, step):
    mine, read = np.full(1000, comm.rank, dtype="i4"), np.empty(1000, dtype="i4")
    file = MPI.File.Open(comm, FILE, MPI.MODE_CREATE | MPI.MODE_RDWR)
    file.Set_view(0, MPI.INT)
    file.Write_at_all(1000 * comm.rank, mine)
    file.Sync()
    comm.Barrier()
    file.Read_at_all(1000 * ((comm.rank + 1) % comm.size), read)
    assert read[-1] == (comm.rank + 1) % comm.size
    file.Close()


def intercommunicators(comm, step):
    side = comm.Split(comm.rank % 2)
    both = side.Create_intercomm(0, comm, 1 - comm.rank % 2, tag=9)
    assert both.allreduce(1) == comm.size // 2
    everyone = both.Merge(high=comm.rank % 2 == 1)
    everyone.Barrier()
    for each in (everyone, both, side):
        each.Free()


def pool(comm, step):
    """A death ends the pool's wait, too, which breaks the pool; the next operation that waits for the dead one says why."""
    found = None
    if comm.rank == 0:
        with contextlib.suppress(BrokenExecutor):
            found = sum(WORKERS[0].map(abs, range(-10, 10)))
    found = comm.bcast(found)
    if found is None:
        comm.Barrier()
    assert found == 100


WORK = [small_collectives, small_collectives, large_collectives, ring, requests, objects, any_source, communicators]


MORE_WORK = [windows, windows, files, intercommunicators, pool]
WORKERS = []
FILE = ""


def start_workers():
    from mpi4py.futures import MPIPoolExecutor

    WORKERS.append(MPIPoolExecutor(2))
    print(json.dumps({"workers": sorted(set(WORKERS[0].map(pid_of, range(20))))}), flush=True)


def pid_of(_):
    time.sleep(0.01)  # long enough for the other worker to get some, too
    return os.getpid()


def main(seed, file=""):
    global FILE
    comm, FILE = MPI.COMM_WORLD, file
    work = [*WORK, *(MORE_WORK if file else [])]
    if file and comm.rank == 0:
        start_workers()
    print(json.dumps({"rank": comm.rank, "pid": os.getpid()}), flush=True)
    choice = random.Random(seed)
    comm.Barrier()
    try:
        for step in range(1_000_000):
            choice.choice(work)(comm, step)
    except MPI.Exception as error:
        seen = {"rank": comm.rank, "class": error.Get_error_class(), "text": str(error), "time": time.monotonic()}
        print(json.dumps(seen | {"expected": int(MPI.ERR_PROC_FAILED)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])

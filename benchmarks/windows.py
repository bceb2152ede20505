"""Accesses to windows, and making windows and communicators, ours beside mpi4py over other MPIs, in turns.

python benchmarks/windows.py [--peer NAME=PYTHON]... [--before PYTHON] [-n 2] [--rounds 5] [--json FILE]

`PYTHON` is of an environment with mpi4py and the other MPI, such as one made by ``pip install mpich mpi4py numpy``;
``--before`` is a Python of another version of ours. A round starts each side once. In it, a case is a block of calls, again and again, and
its time is the least of the blocks of all rounds, per call: what others do on the machine can only add. Each rank keeps to a core of its own,
as far as there are enough. Rank 0 accesses the last rank, which waits in a barrier, but for fences and what is collective. "NumPy copy of
1 MiB" is what a put of as much can cost at the least: to memory of the last rank that rank 0 has mapped.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

BLOCKS = 15
LARGE = 1 << 20


def main() -> None:
    from benchmarks import in_turn

    options = in_turn.parser(__doc__, ranks=2).parse_args()
    times = in_turn.measure(__file__, options)
    in_turn.report(times, options, "accesses to windows, and making windows and communicators", "us", min)


def cases(comm: Any, win: Any, shared: Any, mpi: Any) -> dict[str, tuple[Callable[[], Any], int, bool]]:
    """What to call, how often in a block, and whether all ranks call it."""
    import numpy as np

    target, one, result, large = comm.size - 1, np.ones(1, np.int64), np.zeros(1, np.int64), np.ones(LARGE, np.uint8)
    group, memory = comm.Get_group(), np.zeros(100, np.uint8)
    mapped = np.frombuffer(shared.Shared_query(target)[0], np.uint8)

    def locked(*access: Any) -> Callable[[], None]:
        method, *arguments = access

        def call() -> None:
            win.Lock(target)
            method(*arguments)
            win.Unlock(target)

        return call

    def fenced() -> None:
        win.Fence()
        win.Put(one, target)
        win.Fence()

    def posted() -> None:
        win.Post(other)
        win.Start(other)
        win.Put(one, 1 - comm.rank)
        win.Complete()
        win.Wait()

    def locked_by_all() -> None:
        win.Lock_all()
        win.Accumulate(one, target)
        win.Unlock_all()

    other = group.Incl([1 - comm.rank])
    return {
        "Lock, Put of 8 B, Unlock": (locked(win.Put, one, target), 200, False),
        "Lock, Get of 8 B, Unlock": (locked(win.Get, result, target), 200, False),
        "Lock, Accumulate of 8 B, Unlock": (locked(win.Accumulate, one, target), 200, False),
        "Lock, Fetch_and_op, Unlock": (locked(win.Fetch_and_op, one, result, target), 200, False),
        "Lock, Compare_and_swap, Unlock": (locked(win.Compare_and_swap, one, one, result, target), 200, False),
        "Lock, Put of 1 MiB, Unlock": (locked(win.Put, large, target), 20, False),
        "NumPy copy of 1 MiB": (lambda: np.copyto(mapped, large), 20, False),
        "Lock_all, Accumulate, Unlock_all": (locked_by_all, 200, False),
        "Lock, Accumulate, Unlock by all": (locked(win.Accumulate, one, target), 200, True),
        "Fence, Put of 8 B, Fence": (fenced, 200, True),
        "Post, Start, Put of 8 B, Complete, Wait": (posted, 200, True),
        "Dup, Free": (lambda: comm.Dup().Free(), 20, True),
        "Split, Free": (lambda: comm.Split(0, comm.rank).Free(), 20, True),
        "Split into two, Free": (lambda: comm.Split(comm.rank % 2, comm.rank).Free(), 20, True),
        "Create_group, Free": (lambda: comm.Create_group(group).Free(), 20, True),
        "Win.Create, Free": (lambda: mpi.Win.Create(memory, 1, comm=comm).Free(), 20, True),
        "Win.Allocate, Free": (lambda: mpi.Win.Allocate(100, 1, comm=comm).Free(), 20, True),
    }


def worker() -> None:
    """Measure all cases on this rank, and print them on the first."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    win, shared, found = MPI.Win.Allocate(LARGE, 1, comm=comm), MPI.Win.Allocate_shared(LARGE, 1, comm=comm), {}
    for case, (call, loops, is_collective) in cases(comm, win, shared, MPI).items():
        times = []
        for _ in range(BLOCKS):
            comm.Barrier()
            begun = time.perf_counter()
            for _ in range(loops if is_collective or comm.rank == 0 else 0):
                call()
            times.append((time.perf_counter() - begun) / loops)
            comm.Barrier()
        found[case] = min(times) * 1e6
    win.Free()
    shared.Free()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()

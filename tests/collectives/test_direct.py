"""Direct collectives: what the kernel refuses, and ranks that give up while others write into their memory."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import REFUSED
from tests.collectives.forked import run_ranks
from tests.secret import secret_memory

NBYTES = 100_000


def refused(comm: NativeComm, sides: tuple[int, ...]) -> None:
    room = secret_memory(4 * NBYTES) if comm.rank in sides else np.zeros(4 * NBYTES, np.uint8)
    send = np.full(2 * NBYTES, comm.rank + 1, np.uint8)
    for _ in range(3):
        room[:] = 0
        collectives.allgather(comm, send.ctypes.data, NBYTES, room.ctypes.data)
        assert (room[:NBYTES] == 1).all() and (room[NBYTES : 2 * NBYTES] == 2).all() and not room[2 * NBYTES :].any()
        collectives.alltoall(comm, 0, room.ctypes.data, NBYTES)
        assert (room[: 2 * NBYTES] == comm.rank + 1).all() and not room[2 * NBYTES :].any()


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_buffers_that_the_kernel_refuses_go_by_streams(sides: tuple[int, ...]) -> None:
    secret_memory(NBYTES)
    run_ranks(2, refused, sides, copies="direct")


def interrupt_when_written(room: npt.NDArray[np.uint8]) -> None:
    while room[0] == 0:
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)


def given_up(comm: NativeComm) -> None:
    """Rank 0 is interrupted while rank 1 writes into its memory, piece by piece."""
    counts = [100_000, 800 << 20]
    room = np.zeros(sum(counts), np.uint8)
    send = np.full(counts[comm.rank], 7, np.uint8)
    small = [20_000, 20_000]
    collectives.allgatherv(comm, send.ctypes.data, 20_000, room.ctypes.data, small, (0, 20_000))  # agrees, and loads the code
    room[: sum(small)] = 0
    collectives.barrier(comm)
    if comm.rank == 0:
        threading.Thread(target=interrupt_when_written, args=(room[counts[0] :],)).start()
    with pytest.raises((KeyboardInterrupt, Exception)):
        collectives.allgatherv(comm, send.ctypes.data, counts[comm.rank], room.ctypes.data, counts, (0, counts[0]))
    if comm.rank == 0:
        written = np.count_nonzero(room)
        assert counts[0] < written < room.size
        time.sleep(0.3)
        assert np.count_nonzero(room) == written


def test_nothing_writes_into_the_memory_of_a_rank_that_gave_up() -> None:
    run_ranks(2, given_up, copies="direct")


def refused_by_the_dead(comm: NativeComm) -> None:
    """The kernel refuses a copy from a process that has ended before anybody is told that it has."""
    arena = comm.engine.arena
    if comm.rank == 1:
        return
    threading.Timer(0.2, arena.declare_dead, (1,)).start()
    error = comm.engine.failure(REFUSED, "allgather")
    assert error.Get_error_class() == errors.ERR_PROC_FAILED and "rank 1 died" in str(error), error


def test_a_copy_that_is_refused_since_a_rank_died_says_so() -> None:
    run_ranks(2, refused_by_the_dead)


def without_memory(comm: NativeComm) -> None:
    """Rank 0 finds no memory for the copy that an alltoall in place sends from."""
    nbytes = 40 << 20
    room = np.full(2 * nbytes, comm.rank + 1, np.uint8)
    collectives.alltoall(comm, 0, room.ctypes.data, NBYTES)  # agrees, and loads the code
    room[:] = comm.rank + 1
    if comm.rank == 0:
        with open("/proc/self/statm", encoding="ascii") as found:
            mapped = int(found.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes, resource.RLIM_INFINITY))
    collectives.alltoall(comm, 0, room.ctypes.data, nbytes)
    assert (room[:nbytes] == 1).all() and (room[nbytes:] == 2).all()


def test_an_alltoall_in_place_without_memory_for_a_copy_goes_by_streams() -> None:
    run_ranks(2, without_memory, copies="direct")

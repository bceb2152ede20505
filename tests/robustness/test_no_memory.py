"""Where compiled code finds no memory the call fails with ERR_NO_MEM, or goes on without: nothing is written to address 0, nobody hangs."""

import contextlib
import ctypes
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

PROGRAM = Path(__file__).parent / "without_memory.py"


@pytest.mark.parametrize("copies", ["direct", "piped"])
def test_every_call_without_memory(copies: str) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", str(PROGRAM)]
    done = subprocess.run(
        command, env=dict(os.environ, NCCLX_MPI_COPIES=copies), cwd=PROGRAM.parents[2], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and sorted(done.stdout.split("\n")) == ["", "done 0", "done 1"], done.stderr


@pytest.mark.ranks(2)
def test_a_message_that_finds_no_memory_stays_where_it_is(comm: Any) -> None:
    """Whoever waits hears of it; once there is memory, everything comes, in order."""
    count, found = 700, np.zeros(4_000, np.uint8)
    if comm.rank == 1:
        comm.Recv(found[:1], 0)
        MPI.Request.Waitall([comm.Isend(np.full(found.size, tag % 200, np.uint8), 0, tag) for tag in range(count)])
        return
    gc.collect()
    comm.Send(found[:1], 1)
    with little_memory(), pytest.raises(MPI.Exception) as caught:
        comm.Recv(found, 1, count)
    assert caught.value.Get_error_class() == MPI.ERR_NO_MEM and "memory" in str(caught.value)
    for tag in range(count):
        comm.Recv(found, 1, tag)
        assert (found == tag % 200).all()


@contextlib.contextmanager
def little_memory(spare: int = 1 << 20) -> Iterator[None]:
    """Leave `spare` bytes to malloc: no more addresses, and what the heap has from before is taken."""
    libc, taken, number = ctypes.CDLL(None), np.zeros(1 << 20, np.int64), 0
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    before, kept = resource.getrlimit(resource.RLIMIT_AS), libc.malloc(spare)
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped, before[1]))
    for size in (1 << 16, 1 << 12):
        while address := libc.malloc(size):
            taken[number] = address
            number += 1
    libc.free(kept)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        for address in taken[:number].tolist():
            libc.free(address)

"""Collectives in streams and graphs of CuPy, of ranks that share one GPU: cases that also run on the driver double."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from tests.device.cases import CASES, doing, enqueuing
from tests.device.in_streams import ENQUEUED
from tests.gpu.test_calls import CuPyArrays

pytestmark = pytest.mark.gpu


@pytest.mark.ranks(2, 4, 8, timeout=120)
def test_collectives(comm: Any) -> None:
    arrays = CuPyArrays()
    comm.prepare(64 << 20)
    with arrays.cupy.cuda.Stream(non_blocking=True) as stream:
        for length in (0, 1, 1000, 300_000):
            for name in ENQUEUED:
                wanted = arrays.values_of(CASES[name](comm, doing(comm, "blocking"), np.array, length))
                found = arrays.values_of(CASES[name](comm, enqueuing(comm, stream), arrays.late, length))
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")
    comm.check()


@pytest.mark.ranks(2, 4, 8, timeout=120)
def test_graphs(comm: Any) -> None:
    """Replays with other inputs, and calls outside of the graph between them."""
    cupy = CuPyArrays().cupy
    comm.prepare(64 << 20, [(MPI.SUM, MPI.DOUBLE)])
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with stream:
        given, total, gathered = cupy.zeros(1000), cupy.zeros(1000), cupy.zeros(1000 * comm.size)
        stream.begin_capture()
        comm.in_stream(stream).Allreduce(given, total)
        comm.in_stream(stream).Allgather(total, gathered)
        graph = stream.end_capture()
    with other:
        eager = cupy.ones(10)
    for turn in range(5):
        with stream:
            given[...] = turn + comm.rank
            graph.launch(stream)
        comm.in_stream(other).Allreduce(MPI.IN_PLACE, eager)
        with stream:
            expected = comm.size * turn + sum(range(comm.size))
            np.testing.assert_array_equal(cupy.asnumpy(gathered), np.full(1000 * comm.size, expected))
        with other:
            np.testing.assert_array_equal(cupy.asnumpy(eager), np.full(10, float(comm.size) ** (turn + 1)))
    comm.check()


PEER_DIES = """
import os, signal, time
import cupy
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.prepare(1 << 20, [(MPI.SUM, MPI.DOUBLE)])
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    array = cupy.zeros(1000)
    comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
    stream.synchronize()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
    begun = time.monotonic()
    stream.synchronize()
    try:
        comm.check()
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_PROC_FAILED, time.monotonic() - begun < 2)
"""


def test_a_peer_dies_while_a_stream_waits_for_it() -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", "-c", PEER_DIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr
    assert done.returncode == 128 + signal.SIGKILL

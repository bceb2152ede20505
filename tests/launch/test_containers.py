"""What containers are made of, without any: namespaces of Linux, a /dev/shm that holds nothing, system calls that are refused."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys

import pytest
from programs import environment

PROGRAM = (
    "import numpy as np; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
    "mine, other, total = np.full(1 << 19, comm.rank, float), np.empty(1 << 19), np.empty(1 << 19)\n"
    "for _ in range(8):\n"  # both ways to move bulk data are tried
    "    comm.Sendrecv(mine, 1 - comm.rank, recvbuf=other, source=1 - comm.rank); comm.Allreduce(mine, total)\n"
    "assert (other == 1 - comm.rank).all() and (total == 1).all()\n"
    "if comm.rank == 0: print('two ranks exchanged 4 MiB')"
)
INSTRUCTIONS = (
    (0x20, 0, 0, 0),  # load the number of the call
    *((0x15, 1, 0, 310), (0x15, 0, 1, 311)),  # process_vm_readv, process_vm_writev
    *((0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)),  # EPERM for those, all else is allowed
)
FILTERED = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
filter = bytes.fromhex("{b"".join(struct.pack("=HBBI", *each) for each in INSTRUCTIONS).hex()}")
assert libc.prctl(38, 1, 0, 0, 0) == 0, "no new privileges"
assert libc.prctl(22, 2, ctypes.byref(Program(len(filter) // 8, filter)), 0, 0) == 0, os.strerror(ctypes.get_errno())
assert libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0) == -1 and ctypes.get_errno() == 1
os.execv(sys.argv[1], sys.argv[1:])
"""
NO_SHM = 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"'
OF_A_JOB = ["unshare", "--mount", "--ipc", "--pid", "--uts", "--net", "--fork", "--mount-proc"]
UNSEEN = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"]
OF_A_RANK = ["unshare", "--user", "--map-root-user", "--mount", "--ipc"]


def can(words: list[str]) -> bool:
    done = shutil.which("unshare") and subprocess.run(
        [*words, "sh", "-c", NO_SHM, "sh", "true"], capture_output=True, check=False, timeout=30
    )
    return bool(done) and done.returncode == 0


@pytest.mark.skipif(not can(OF_A_JOB), reason="namespaces take root")
def test_a_job_in_namespaces_of_its_own():
    """As in one container of Docker: /dev/shm is not what ranks share memory by, so its size does not matter."""
    words = [*OF_A_JOB, "sh", "-c", NO_SHM, "sh", sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", PROGRAM]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "two ranks exchanged 4 MiB\n"), done.stderr


@pytest.mark.skipif(not can(OF_A_RANK), reason="users may make no namespaces here")
def test_each_rank_in_namespaces_of_its_own():
    """As where each task of Slurm is a container of Apptainer, which root did not install: the kernel copies nothing from rank to rank."""
    ranks, outputs = in_namespaces(OF_A_RANK)
    assert ranks == [0, 0], outputs
    assert [stdout for stdout, _ in outputs] == ["two ranks exchanged 4 MiB\n", ""]


@pytest.mark.skipif(not can(UNSEEN), reason="namespaces take root")
def test_ranks_that_cannot_see_each_other_are_told_so():
    ranks, outputs = in_namespaces(UNSEEN, NCCLX_MPI_JOIN_TIMEOUT="2")
    assert 0 not in ranks
    assert "rank 1 of 2 cannot join: it is in another process namespace" in outputs[1][1]


def in_namespaces(unshared, **variables):
    """The statuses and outputs of two ranks, each in such namespaces."""
    words = [*unshared, "sh", "-c", NO_SHM, "sh", sys.executable, "-m", "ncclx_mpi", "-c", PROGRAM]
    world = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 10000),
    }
    ranks = [
        subprocess.Popen(
            words,
            env=environment(**world, **variables, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    return [rank.returncode for rank in ranks], outputs


def test_where_the_kernel_may_copy_nothing():
    """As under the seccomp profile of older versions of Docker."""
    words = [sys.executable, "-c", FILTERED, sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", PROGRAM]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "two ranks exchanged 4 MiB\n"), done.stderr

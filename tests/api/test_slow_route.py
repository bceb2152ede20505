"""Where compiled code does not fit the interpreter, everything goes through Python: with the same results, and one warning a rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

RANKS = 2

PROGRAM = """
import numba_kernels.pyobject, numba_kernels.round_trip
numba_kernels.{module}.mismatch = lambda: "{found}"
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
peer = 1 - rank
mine, theirs, got = np.full(3, rank), np.full(3, peer), np.zeros(3, int)
values = [7, -1.5, "text", b"bytes", None, [1, (2.5, "x")], {{"a": [1]}}, {{1, 2}}, 1 << 70, range(3), "x" * 100_000]

for value in values:
    for way in (comm.send, comm.ssend):
        request = comm.irecv(source=peer, tag=1)
        way((rank, value), peer, 1)
        assert request.wait() == (peer, value)
    requests = [comm.irecv(source=peer), comm.isend((rank, value), peer)]
    assert MPI.Request.waitall(requests) == [(peer, value), None]
    assert comm.sendrecv((rank, value), peer, source=peer) == (peer, value)
    status, requests = MPI.Status(), [comm.isend(value, peer), comm.isend(value, peer)]
    assert comm.mprobe(peer).recv() == value
    assert comm.recv(source=peer, status=status) == value and status.Get_source() == peer
    MPI.Request.waitall(requests)
    assert comm.bcast(value if rank == 1 else None, 1) == value
    assert comm.gather((rank, value), 1) == ([(each, value) for each in range(size)] if rank == 1 else None)
    assert comm.scatter([(each, value) for each in range(size)] if rank == 0 else None) == (rank, value)
    assert comm.allgather((rank, value)) == [(each, value) for each in range(size)]
    assert comm.alltoall([(rank, each, value) for each in range(size)]) == [(each, rank, value) for each in range(size)]
assert comm.allreduce(rank + 1) == 3 and comm.scan([rank]) == [[0], [0, 1]][rank]
array = np.arange(10.0)
assert (comm.bcast(array if rank == 0 else None) == array).all()

requests = [comm.Irecv(got, peer), comm.Isend(mine, peer)]
MPI.Request.Waitall(requests)
assert (got == theirs).all()
comm.Sendrecv(mine, peer, 0, got, peer)
assert (got == theirs).all()
requests = [comm.Send_init(mine, peer), comm.Recv_init(got, peer)]
for _ in range(3):
    got[:] = 9
    MPI.Prequest.Startall(requests)
    assert sorted([MPI.Request.Waitany(requests), MPI.Request.Waitany(requests)]) == [0, 1]
    assert (got == theirs).all()
if rank:
    comm.Send(mine, 0)
else:
    comm.Recv(got, 1)
comm.Allreduce(mine, got)
assert (got == 1).all()
comm.Iallreduce(mine, got, MPI.MAX).Wait()
assert (got == 1).all()
comm.Bcast(mine, 1)
assert (mine == 1).all()
blocks = np.zeros(4, int)
comm.Allgatherv([np.full(2, rank), 2], [blocks, [2, 2]])
assert blocks.tolist() == [0, 0, 1, 1]
comm.Barrier()
mine[:] = rank
win = MPI.Win.Allocate(24, 8, comm=comm)
win.Fence()
win.Put(mine, peer)
win.Fence()
win.Get(got, peer)
assert (got == mine).all()
win.Fence(MPI.MODE_NOSUCCEED)
win.Lock_all()
win.Fetch_and_op(mine[:1] + 1, got[:1], peer, 2)
assert got[0] == rank
win.Compare_and_swap(mine[:1], mine[:1] + 5, got[:1], peer)
win.Accumulate(mine[:1] + 1, peer, 1, MPI.PROD)
win.Flush(peer)
win.Flush_all()
win.Unlock_all()
win.Lock(peer, MPI.LOCK_SHARED)
win.Unlock(peer)
comm.Barrier()
assert win.tomemory().tobytes() == np.array([peer, peer * (peer + 1), 2 * peer + 1]).tobytes()
win.Free()
comm.Dup().Free()
comm.Split(0, -rank).Free()
print("all is well")
"""


@pytest.mark.parametrize(
    ("module", "found"),
    [("pyobject", ""), ("pyobject", "an object"), ("round_trip", "a value")],
    ids=["fits", "objects", "pickles"],
)
def test_results_are_the_same(module: str, found: str) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(RANKS), "-c", PROGRAM.format(module=module, found=found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["all is well"] * RANKS + [""]), done.stderr
    warnings = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert len(warnings) == (RANKS if found else 0), done.stderr
    assert all(f"does not keep {found} as compiled code assumes" in line for line in warnings)

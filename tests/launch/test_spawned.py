"""Jobs that meet, seen from outside: two that were started apart, and what is left when one of them is killed."""

from __future__ import annotations

import signal

from tests.launch.programs import all_gone, run, start

SERVER = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
port = MPI.Open_port() if comm.rank == 0 else None
if comm.rank == 0:
    print(port, flush=True)
inter = comm.Accept(port)
print("server", comm.rank, inter.allgather(comm.rank * 10), flush=True)
inter.Disconnect()
"""
CLIENT = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
inter = comm.Connect(sys.argv[1], root=comm.size - 1)
print("client", comm.rank, inter.allgather(comm.rank))
inter.Disconnect()
"""
PARENT = """
import os, sys, time
from mpi4py import MPI
inter = MPI.Comm.Get_parent()
if inter == MPI.COMM_NULL:
    inter = MPI.COMM_WORLD.Spawn(sys.executable, ["-c", sys.argv[1], sys.argv[1]], 2)
    print(*inter.gather(None, root=MPI.ROOT), flush=True)
else:
    inter.gather(os.getpid(), root=0)
while True:
    time.sleep(1)
"""


def test_two_jobs_meet_on_simulated_nodes_too() -> None:
    server = start("run", "-n", "3", "-x", "NCCLX_MPI_TOPOLOGY=vnode:2", "-c", SERVER)
    port = server.stdout.readline().strip()
    client = run("run", "-n", "2", "-c", CLIENT, port, timeout=100)
    out, err = server.communicate(timeout=100)
    assert client.returncode == server.returncode == 0, client.stderr + err
    assert sorted(client.stdout.splitlines()) == [f"client {rank} [0, 10, 20]" for rank in range(2)]
    assert sorted(out.splitlines()) == [f"server {rank} [0, 1]" for rank in range(3)]


def test_nothing_is_left_when_the_root_of_started_processes_is_killed() -> None:
    parent = start("-c", PARENT, PARENT)
    children = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=100)
    assert len(children) == 2
    assert all_gone(children, 60)

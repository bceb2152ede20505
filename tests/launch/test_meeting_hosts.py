"""Groups that meet, or start processes, where a job is on two hosts, which are network namespaces here."""

from __future__ import annotations

import subprocess

import pytest
from programs import all_gone, command, environment
from spaces import needs_spaces

MEET = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
for number, server in enumerate((0, 3, 1)):  # groups on one host, and on both
    part = comm.Split(int(comm.rank == server), comm.rank)
    port = comm.bcast(MPI.Open_port() if comm.rank == server else None, server)
    root = [rank for rank in range(4) if rank != server].index((server + 2) % 4)  # of the other host
    made = part.Accept(port) if comm.rank == server else part.Connect(port, root=root)
    found = made.allgather(10 * number + comm.rank)
    assert found == [10 * number + rank for rank in range(4) if (rank == server) != (comm.rank == server)], found
    made.Disconnect()
    if comm.rank == server:
        MPI.Close_port(port)
port = comm.bcast(MPI.Open_port() if comm.rank == 0 else None)
clients = comm.Split(comm.rank if comm.rank >= 2 else 0, comm.rank)
if comm.rank == 0:  # two clients at once, of another host
    for _ in range(2):
        made = MPI.COMM_SELF.Accept(port)
        assert made.recv(source=0) in (2, 3)
        made.Disconnect()
elif comm.rank >= 2:
    made = clients.Connect(port)
    made.send(comm.rank, 0)
    made.Disconnect()
comm.Barrier()
if comm.rank == 2:  # who asks at a port that is closed then hears so
    try:
        comm.Ssend(b"now", 0)
        MPI.COMM_SELF.Connect(port)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PORT, error
    else:
        raise AssertionError("nobody accepted")
elif comm.rank == 0:
    import time
    comm.Recv(bytearray(3), 2)
    time.sleep(0.3)
    MPI.Close_port(port)
comm.Barrier()
port = comm.bcast(MPI.Open_port() if comm.rank == 0 else None)
if comm.rank == 3:  # a name that no rank has given
    job, _, rest = port.partition(".")
    try:
        MPI.COMM_SELF.Connect(f"{job}.ffffffff.{rest.partition('.')[2]}")
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PORT and "which has 4" in str(error), error
    else:
        raise AssertionError("there is no such rank")
comm.Barrier()
print("met")
"""


@needs_spaces
def test_parts_of_a_job_meet_across_hosts(on_hosts):
    for status, stdout, stderr in on_hosts("-c", MEET).end():
        assert (status, stdout.splitlines()) == (0, ["met"] * 2), stderr


START = """
import sys
import numpy as np
from mpi4py import MPI

parent = MPI.Comm.Get_parent()
is_child = parent != MPI.COMM_NULL
if not is_child:
    world = MPI.COMM_WORLD
    root = int(sys.argv[1])
    made = world.Spawn(sys.executable, [__file__, sys.argv[1]], maxprocs=3, root=root)
    assert (made.size, made.remote_size) == (4, 3)
else:
    made, root = parent, int(sys.argv[1])
    assert (made.size, made.remote_size) == (3, 4)
merged = made.Merge(is_child)
assert merged.allgather(merged.rank) == list(range(7))
for nbytes in (1, 40_000, 3_000_000):  # at once, at once in pieces, asked for
    data, total = np.full(nbytes, merged.rank, np.uint8), np.zeros(nbytes, np.uint8)
    merged.Allreduce(data, total)
    assert (total == 21).all()
    for other in range(merged.size):
        landing = np.zeros(nbytes, np.uint8)
        merged.Sendrecv(data, (merged.rank + other) % 7, 1, landing, (merged.rank - other) % 7, 1)
        assert (landing == (merged.rank - other) % 7).all()
hosts = merged.Split(merged.rank % 2, merged.rank)
assert hosts.allreduce(1) == (4 if merged.rank % 2 == 0 else 3)
far = merged.recv(source=MPI.ANY_SOURCE) if merged.rank == 0 else merged.send(merged.rank, 0) if merged.rank == 6 else None
assert merged.rank or far == 6
hosts.Free()
merged.Free()
made.Disconnect()
print("child" if is_child else "done", flush=True)
"""


@needs_spaces
@pytest.mark.parametrize("root", [0, 2])
def test_processes_are_started_by_a_group_on_two_hosts(on_hosts, tmp_path, root):
    """They are on the host of the root, and reach all."""
    script = tmp_path / "start.py"
    script.write_text(START)
    for number, (status, stdout, stderr) in enumerate(on_hosts(str(script), str(root)).end()):
        assert (status, sorted(stdout.split())) == (0, (["child"] * 3 if root // 2 == number else []) + ["done"] * 2), stderr


KILLED = """
import os, signal, sys, time
from mpi4py import MPI

parent, world = MPI.Comm.Get_parent(), MPI.COMM_WORLD
if parent != MPI.COMM_NULL:
    parent.Barrier()
    time.sleep(1)  # all are to have left the barrier
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
made = world.Spawn(sys.executable, [__file__], maxprocs=2, root=1)
made.Barrier()
begun = time.monotonic()
try:
    made.recv(source=1)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
    assert "rank 1 of another job" in str(error), error
print(time.monotonic() - begun < 4, world.allreduce(1), flush=True)
world.Barrier()  # who aborts ends the others, which are to have printed this
world.Abort(0)
"""


@needs_spaces
def test_the_end_of_a_started_process_is_noticed_on_both_hosts(on_hosts, tmp_path):
    """Its communicator ends, and nothing else."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    for _, stdout, stderr in on_hosts(str(script)).end():
        assert stdout.splitlines() == ["True 4"] * 2, stderr


ORPHANED = """
import os, signal, sys, time
from mpi4py import MPI

parent, world = MPI.Comm.Get_parent(), MPI.COMM_WORLD
if parent == MPI.COMM_NULL:
    made = world.Spawn(sys.executable, [__file__], maxprocs=2)
    made.Barrier()
    time.sleep(1)  # all are to have left the barrier
    if world.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 0:
        time.sleep(6)
    made.recv(source=0)
else:
    print("pid", os.getpid(), flush=True)
    parent.Barrier()
    begun = time.monotonic()
    try:
        parent.recv(source=3)
    except MPI.Exception as error:
        print("noticed", error.Get_error_class() == MPI.ERR_PROC_FAILED, time.monotonic() - begun < 4, flush=True)
    print("goes on", world.allreduce(1), flush=True)
"""


@needs_spaces
def test_the_end_of_a_parent_on_another_host_is_noticed(on_hosts, tmp_path):
    script = tmp_path / "orphaned.py"
    script.write_text(ORPHANED)
    (status, stdout, stderr), (other, _, _) = on_hosts(str(script)).end()
    assert status != 0 and other != 0
    lines = sorted(stdout.splitlines())
    assert lines[:4] == ["goes on 2", "goes on 2", "noticed True True", "noticed True True"], (stdout, stderr)
    assert all_gone([int(line.split()[1]) for line in lines if line.startswith("pid")], 10)


WITHOUT = """
import os, sys
from mpi4py import MPI
os.environ["NCCLX_MPI_UCX_LIBRARY"] = "/none/libucp.so"
try:
    MPI.COMM_WORLD.Spawn(sys.executable, ["-c", "from mpi4py import MPI"], root=0)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_SPAWN, error
    print("/none/libucp.so" in str(error), flush=True)
print(MPI.COMM_WORLD.allreduce(1), flush=True)
"""


@needs_spaces
def test_a_process_without_ucx_is_told_of_on_all_ranks(on_hosts):
    for status, stdout, stderr in on_hosts("-c", WITHOUT).end():
        assert (status, sorted(stdout.split())) == (0, ["4", "4", "True", "True"]), stderr


SERVE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
port = MPI.Open_port() if world.rank == 0 else None
if world.rank == 0:
    print(port, flush=True)
made = world.Accept(port)
print(made.remote_size, made.allreduce(world.rank), flush=True)
made.Disconnect()
"""
ASK = """
import sys
from mpi4py import MPI
made = MPI.COMM_WORLD.Connect(sys.argv[1])
print(made.remote_size, made.allreduce(10), flush=True)
made.Disconnect()
"""


@needs_spaces
def test_another_job_meets_a_group_on_two_hosts(on_hosts, spaces, tmp_path):
    """At a port on its own host."""
    script = tmp_path / "ask.py"
    script.write_text(ASK)
    serving = on_hosts("-c", SERVE)
    port = serving.nodes[0].stdout.readline().strip()
    words = [*spaces[0].prefix, *command("run", "-n", "2", str(script), port)]
    asked = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (asked.returncode, asked.stdout.splitlines()) == (0, ["4 6"] * 2), asked.stderr
    for status, stdout, stderr in serving.end():
        assert (status, stdout.splitlines()) == (0, ["2 20"] * 2), stderr

"""A job on two hosts, which are network namespaces here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import HOME, all_gone, command, environment
from spaces import Space, needs_spaces, needs_ucx

from numba_kernels import cache_files

SAY = "import os; print(*(os.environ[f'NCCLX_MPI_{name}'] for name in ('RANK', 'SIZE', 'LOCAL_RANK')), 'NCCLX_MPI_TOKEN' in os.environ)"
SHOW_AND_SLEEP = (
    "import os, subprocess, time; child = subprocess.Popen(['sleep', '600'])\n"
    "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
)


@needs_spaces
def test_output_of_each_host_is_its_callers(on_hosts):
    (first, second) = on_hosts("-c", SAY).end()
    assert first[0] == second[0] == 0, first[2] + second[2]
    assert sorted(first[1].splitlines()) == ["0 4 0 False", "1 4 1 False"]
    assert sorted(second[1].splitlines()) == ["2 4 0 False", "3 4 1 False"]


@needs_spaces
def test_the_first_failure_is_the_status_of_all(on_hosts):
    code = "import os, sys, time\nif os.environ['NCCLX_MPI_RANK'] == '2': sys.exit(7)\ntime.sleep(600)"
    found = on_hosts("-c", code).end()
    assert [status for status, _, _ in found] == [7, 7]
    for _, _, stderr in found:
        assert re.search(r"rank 2 \(process \d+.*\) ended with status 7; 3 other ranks failed after it", stderr)


@needs_spaces
def test_a_host_that_is_done_waits_for_the_others(on_hosts):
    """Its ranks ended well, but the job has not: both hosts report the same."""
    job = on_hosts("-c", "import os, sys\nif os.environ['NCCLX_MPI_RANK'] == '3': input_is_over = sys.stdin.read(); sys.exit(5)")
    assert [status for status, _, _ in job.end()] == [5, 5]


@needs_spaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_hosts(on_hosts, number):
    job = on_hosts("-c", SHOW_AND_SLEEP)
    pids = [int(word) for lines in job.read(2) for line in lines for word in line.split()]
    job.nodes[1].send_signal(number)
    assert [status for status, _, _ in job.end()] == [128 + number] * 2
    assert all_gone(pids, 5)


@needs_spaces
def test_a_launcher_that_is_killed_takes_its_ranks_and_the_job(on_hosts):
    job = on_hosts("-c", SHOW_AND_SLEEP)
    lines = job.read(2)
    pids = [int(word) for host in lines for line in host for word in line.split()]
    job.nodes[1].kill()
    (status, _, stderr), (killed, _, _) = job.end()
    assert (status, killed) == (1, -signal.SIGKILL)
    assert re.search(r"node 1 \(.*\) with ranks 2 to 3 is lost: its (launcher ended|connection broke)", stderr)
    assert all_gone(pids, 5)


@needs_spaces
def test_a_link_that_goes_down_is_noticed(on_hosts, spaces):
    """Nothing tells that a host has gone but its silence; each side then ends by itself."""
    job = on_hosts("-c", SHOW_AND_SLEEP, NCCLX_MPI_HEARTBEAT="0.2,1")
    pids = [int(word) for host in job.read(2) for line in host for word in line.split()]
    spaces[1].set_link("down")
    for (status, _, stderr), ranks in zip(job.end(), ("2 to 3", "0 to 1"), strict=True):
        assert status == 1
        assert re.search(rf"with ranks {ranks} is lost: gave no sign of life for 1 s", stderr)
    assert all_gone(pids, 5)


@needs_spaces
def test_a_launcher_that_is_stopped_is_silent(on_hosts):
    """The others do without its host; it finds that out when it goes on."""
    job = on_hosts("-c", SHOW_AND_SLEEP, NCCLX_MPI_HEARTBEAT="0.2,1")
    pids = [int(word) for host in job.read(2) for line in host for word in line.split()]
    job.nodes[1].send_signal(signal.SIGSTOP)
    _, stderr = job.nodes[0].communicate(timeout=120)
    assert job.nodes[0].returncode == 1
    assert "with ranks 2 to 3 is lost: gave no sign of life for 1 s" in stderr
    job.nodes[1].send_signal(signal.SIGCONT)
    _, stderr = job.nodes[1].communicate(timeout=120)
    assert job.nodes[1].returncode != 0
    assert all_gone(pids, 5)


@needs_spaces
def test_timeout(on_hosts):
    job = on_hosts("--timeout", "2", "-c", "import time; time.sleep(600)")
    for status, _, stderr in job.end():
        assert status == 124
        assert "still running after 2 s" in stderr


TALK = """
from mpi4py import MPI
import numpy as np

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
assert (rank, size, node.rank, node.size) == (node.rank + 2 * (rank // 2), 4, rank % 2, 2)

for count in (1, 1000, 1_000_000):  # to every rank, near and far
    got = [np.empty(count) for _ in range(size)]
    requests = [comm.Irecv(got[peer], peer, count) for peer in range(size)]
    requests += [comm.Isend(np.full(count, rank * 10.0 + peer), peer, count) for peer in range(size)]
    MPI.Request.Waitall(requests)
    for peer in range(size):
        assert (got[peer] == peer * 10.0 + rank).all()

if rank == 1:  # each of the others once, whichever comes first; those of one rank in order
    seen = [comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) for _ in range(3 * 20)]
    for peer in (0, 2, 3):
        assert [number for sender, number in seen if sender == peer] == list(range(20))
else:
    for number in range(20):
        comm.send((rank, number), 1, tag=number)

numbers = np.arange(50_000) + rank
total = np.empty_like(numbers)
comm.Allreduce(numbers, total)
assert (total == 4 * np.arange(50_000) + 6).all()
assert comm.allgather({"rank": rank}) == [{"rank": peer} for peer in range(size)]
assert comm.bcast("x" * 100_000 if rank == 3 else None, root=3) == "x" * 100_000
assert comm.alltoall([(rank, peer) for peer in range(size)]) == [(peer, rank) for peer in range(size)]
assert comm.scan(rank) == rank * (rank + 1) // 2
request = comm.Ibarrier()
request.Wait()

memory = np.full(100, -1.0)
window = MPI.Win.Create(memory, comm=comm)
window.Fence()
for peer in range(size):
    window.Put(np.full(10, float(rank)), peer, (8 * 10 * rank, 10, MPI.DOUBLE))
window.Fence()
for peer in range(size):
    assert (memory[10 * peer : 10 * peer + 10] == peer).all()
window.Lock(3 - rank)
there = np.empty(10)
window.Get(there, 3 - rank, (8 * 10 * rank, 10, MPI.DOUBLE))
window.Unlock(3 - rank)
assert (there == rank).all()
comm.Barrier()
window.Fence()
one = np.ones(1)
window.Accumulate(one, 0, (8 * 99, 1, MPI.DOUBLE), MPI.SUM)
window.Fence()
assert rank or memory[99] == 3.0
window.Free()
print("ok", rank)
"""
FAIL = """
import os, signal, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 3:
    for other in range(3):  # they have all started
        comm.recv(source=other)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(None, dest=3)
try:
    comm.recv(source=3) if comm.rank else comm.Barrier()
except MPI.Exception as error:
    print(comm.rank, error.Get_error_class() == MPI.ERR_PROC_FAILED, "rank 3 died" in str(error), flush=True)
"""
WAIT_FOR_FAR = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
print("met", flush=True)
try:
    comm.recv(source=(comm.rank + 2) % 4)
except MPI.Exception as error:
    print(comm.rank, error.Get_error_class() == MPI.ERR_PROC_FAILED, flush=True)
"""


@needs_spaces
def test_a_start_imports_neither_compiler_nor_numpy(on_hosts):
    """What ranks of one host do without those of several do without, too: everything is in the cache after the first start."""
    names = "('numba', 'llvmlite', 'num' 'py._core')"
    code = f"import sys\nhave = [name in sys.modules for name in {names}]\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
    code += f"print(have, [name in sys.modules for name in {names}])"
    assert all(status == 0 for status, _, _ in on_hosts("-c", code).end(timeout=300))
    for status, stdout, stderr in on_hosts("-c", code).end(timeout=300):
        assert (status, stdout) == (0, 2 * "[False, False, False] [False, False, False]\n"), stderr


def test_a_network_takes_no_numpy_by_itself():
    """Ranks that something else starts import all for themselves."""
    code = "import sys, transports.tcp.transport, transports.ucx.transport, ncclx_mpi.bootstrap.hosts\n"
    code += "assert 'numpy' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


by_both = pytest.mark.parametrize("network", ["tcp", pytest.param("ucx", marks=needs_ucx)])


@needs_spaces
@by_both
def test_ranks_talk_across_hosts(on_hosts, network):
    found = on_hosts("-c", TALK, NCCLX_MPI_FAR_TRANSPORT=network).end(timeout=300)
    for (status, stdout, stderr), ranks in zip(found, ((0, 1), (2, 3)), strict=True):
        assert status == 0, stderr
        assert sorted(stdout.splitlines()) == [f"ok {rank}" for rank in ranks]


SLEEP = """
import os, time
from mpi4py import MPI

comm, taken = MPI.COMM_WORLD, r"{taken}"
if comm.rank == 3:  # the first message to that peer goes out when the peer has answered; this rank calls nothing of MPI until it has come
    comm.isend("awake", dest=0)
    while not os.path.exists(taken):
        time.sleep(0.01)
elif comm.rank == 0:
    assert comm.recv(source=3) == "awake"
    open(taken, "w").close()
print("done", comm.rank)
"""


@needs_spaces
def test_a_rank_that_sleeps_keeps_nobody_waiting(on_hosts, tmp_path):
    found = on_hosts("-c", SLEEP.format(taken=tmp_path / "taken")).end(timeout=300)
    assert [status for status, _, _ in found] == [0, 0], found


@needs_spaces
@by_both
def test_the_matrix_of_transports(on_hosts, spaces, network):
    """It names the addresses that sockets go by, or the interface that UCX does, on each host."""
    (status, stdout, stderr), _ = on_hosts(*command("info", "--peers", "--json"), NCCLX_MPI_FAR_TRANSPORT=network).end()
    assert status == 0, stderr
    rows = json.loads(stdout)
    assert [row["transports"] for row in rows][1:3] == [["shm", "self", network, network], [network, network, "self", "shm"]]
    for rank, peer, (here, there) in ((0, 2, spaces), (3, 1, spaces[::-1])):
        way = f"tcp/{here.link}" if network == "ucx" else f"{here.address} to {there.address}"
        assert rows[rank]["reasons"][peer].endswith(f"it goes by {way}")


@needs_ucx
def test_hosts_that_choose_differently_are_told_so(spaces):
    env = environment(NCCLX_MPI_TOKEN=secrets.token_hex(16))
    jobs = []
    for node, (space, network) in enumerate(zip(spaces, ("tcp", "ucx"), strict=True)):
        words = ["--nnodes", "2", "--node-rank", str(node), "--rendezvous", f"{spaces[0].address}:29500"]
        line = [*space.prefix, *command("run", "-n", "1", *words, "-c", "from mpi4py import MPI")]
        own = {**env, "NCCLX_MPI_FAR_TRANSPORT": network}
        jobs.append(subprocess.Popen(line, env=own, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, stderr = job.communicate(timeout=120)
        assert job.returncode == 2 and re.search(r"NCCLX_MPI_FAR_TRANSPORT is \S+ on .*, but \S+ on node", stderr), stderr


def commands_of_the_page(beginning: str) -> list[list[str]]:
    page = (Path(HOME) / "docs" / "how_to" / "hosts.md").read_text()
    blocks = re.findall(r"<!-- ran on two hosts -->\n```bash\n(.*?)```", page, re.DOTALL)
    lines = [line.split() for block in blocks for line in block.splitlines()]
    return [line[2:] for line in lines if " ".join(line).startswith(f"ncclx run {beginning}")]


@needs_spaces
def test_commands_of_the_page(spaces):
    """As they are printed, but for the names of the hosts and of the remote shell."""
    snippets = Path(HOME) / "docs" / "snippets"
    env = environment(NCCLX_MPI_TOKEN=secrets.token_hex(16), NCCLX_MPI_RSH="ip netns exec")
    pipe, names = subprocess.PIPE, {f"node{k + 1}": space.name for k, space in enumerate(spaces)}

    def start(words: list[str], *prefix: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*prefix, *command("run", *words)], env=env, cwd=snippets, stdout=pipe, stderr=pipe, text=True)

    (from_one,) = commands_of_the_page("--hosts")
    words = [re.sub(r"node\d", lambda found: names[found[0]], word) for word in from_one]
    started = [start(["--rendezvous", spaces[0].address, *words])]
    stdout, stderr = started[0].communicate(timeout=300)
    assert stdout == (snippets / "hosts.out").read_text(), stderr
    both = commands_of_the_page("--nnodes")
    assert len(both) == 2
    started = [
        start([word.replace("node1", spaces[0].address) for word in words], *space.prefix)
        for words, space in zip(both, spaces, strict=True)
    ]
    outputs = [job.communicate(timeout=300)[0] for job in started]
    assert outputs == [(snippets / "hosts.out").read_text(), ""]


@needs_spaces
def test_the_script_of_two_hosts(tmp_path):
    """As it is printed, but for the names of the hosts, which others may have, and for their addresses."""
    snippets, tag = Path(HOME) / "docs" / "snippets", f"ncclx{os.getpid()}"
    script = (snippets / "two_hosts.sh").read_text().replace("node", tag).replace("10.93.7.", "10.93.8.")
    (tmp_path / "two_hosts.sh").write_text(script)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = environment(NCCLX_MPI_HEARTBEAT="0.5,60", PATH=path)
    printed = []
    for words in (["who_is_near.py"], ["ncclx", "info", "--peers"]):
        line = ["bash", str(tmp_path / "two_hosts.sh"), *words]
        done = subprocess.run(line, cwd=snippets, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == (snippets / "two_nodes.out").read_text().split("\n\n")[0] + "\n"
    assert re.search(r"^ +0 .* self +shm +tcp +tcp$", printed[1], re.MULTILINE), printed[1]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert tag not in left


@needs_spaces
@by_both
def test_a_rank_that_is_killed_is_dead_for_all_hosts(on_hosts, network):
    (first, second) = on_hosts("-c", FAIL, NCCLX_MPI_FAR_TRANSPORT=network).end()
    assert sorted(first[1].splitlines()) == ["0 True True", "1 True True"], first[2]
    assert second[1].splitlines() == ["2 True True"], second[2]
    assert first[0] == second[0] == 137


@needs_spaces
@by_both
def test_ranks_behind_a_link_that_is_down_are_dead(on_hosts, spaces, network):
    job = on_hosts("-c", WAIT_FOR_FAR, NCCLX_MPI_FAR_TRANSPORT=network)
    assert job.read(2) == [["met"] * 2] * 2
    spaces[0].set_link("down")
    for (status, stdout, _), ranks in zip(job.end(), ((0, 1), (2, 3)), strict=True):
        assert sorted(stdout.splitlines()) == [f"{rank} True" for rank in ranks]
        assert status == 1


@needs_spaces
@by_both
def test_a_link_that_flaps_costs_nothing(on_hosts, spaces, network):
    """It is down for a moment in the middle of the traffic, and up again before the limit."""
    code = (
        "from mpi4py import MPI; import numpy as np; comm = MPI.COMM_WORLD; comm.allreduce(1); print('met', flush=True)\n"
        "total = sum(comm.allreduce(1) for _ in range(3000)); print(total, flush=True)"
    )
    job = on_hosts("-c", code, NCCLX_MPI_HEARTBEAT="0.5,30", NCCLX_MPI_FAR_TRANSPORT=network)
    assert job.read(2) == [["met"] * 2] * 2
    spaces[1].set_link("down")
    spaces[1].set_link("up")
    for status, stdout, stderr in job.end(timeout=600):
        assert (status, stdout.splitlines()) == (0, ["12000"] * 2), stderr


FIRST_CONTACT = """
import os, sys, time
from mpi4py import MPI

comm, is_cut = MPI.COMM_WORLD, sys.argv[1]
print("started", flush=True)
while not os.path.exists(is_cut):
    time.sleep(0.01)
print(sum(comm.allreduce(1) for _ in range(100)), len(os.listdir("/proc/self/fd")), flush=True)
"""


@needs_spaces
@pytest.mark.parametrize("which", [0, 1])
def test_a_link_that_is_down_at_the_first_contact_costs_nothing(on_hosts, spaces, tmp_path, which):
    """One of the hosts has no route then, and the other one no answer. No attempt to connect leaves anything behind."""
    job = on_hosts("-c", FIRST_CONTACT, str(tmp_path / "cut"), NCCLX_MPI_HEARTBEAT="0.5,30")
    assert job.read(2) == [["started"] * 2] * 2
    spaces[which].set_link("down")
    (tmp_path / "cut").touch()
    time.sleep(0.5)
    spaces[which].set_link("up")
    for status, stdout, stderr in job.end(timeout=300):
        assert status == 0, stderr
        for total, descriptors in (line.split() for line in stdout.splitlines()):
            assert total == "400" and int(descriptors) < 100


BUSY = """
import os, random, signal, sys
import numpy as np
from mpi4py import MPI

seed, victim = int(sys.argv[1]), int(sys.argv[2])
comm, draw = MPI.COMM_WORLD.Dup(), random.Random(seed)
rank, size, total = comm.rank, comm.size, np.zeros(4000)
try:
    comm.Barrier()  # the victim may be out of it, and dead, before others are
    print(os.getpid(), flush=True)
    for at in range(1_000_000):
        kind, shift = draw.randrange(4), draw.randrange(1, size)
        if rank == victim and at == seed % 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == 0:
            comm.Allreduce(np.full(4000, 1.0), total)
        elif kind == 1:
            comm.sendrecv("x" * draw.randrange(100_000), (rank + shift) % size, source=(rank - shift) % size)
        elif kind == 2:
            comm.alltoall([rank] * size)
        else:
            comm.Barrier()
except MPI.Exception as error:
    comm.Revoke()
    print(error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED), flush=True)
"""


ABORT_OF_UCX_1_13 = "ucp_request.c:684"
"""Its assertion, about once in a hundred kills, when a peer dies while the two connect; UCX 1.14 has it no more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With --full: 200 kills and 20 silences, in parts that end within the limit of a test also where other work runs."""
    is_full = metafunc.config.getoption("--full")
    for name, many, few, part in (("kills", 200, 2, 5), ("silences", 20, 0, 4)):
        if name in metafunc.fixturenames:
            count = many if is_full else few
            parts = [range(first, min(first + part, count)) for first in range(0, count, part)] or [range(0)]
            metafunc.parametrize(name, parts, ids=[f"{seeds.start}to{seeds.stop}" for seeds in parts])


@needs_spaces
@by_both
def test_ranks_that_are_killed_at_any_time(on_hosts, kills, network):
    """In whatever its peers are: all of them raise, all hosts end, and nothing is left."""
    for seed in kills:
        found = on_hosts("-c", BUSY, str(seed), str(seed % 4), NCCLX_MPI_FAR_TRANSPORT=network).end()
        assert [status for status, _, _ in found] == [137, 137], (seed, found)
        words = [stdout.split() for _, stdout, _ in found]
        assert all_gone([int(word) for host in words for word in host if word != "True"], 5)
        if any(ABORT_OF_UCX_1_13 in stderr for _, _, stderr in found):
            continue
        assert [host.count("True") for host in words] == [1 + (seed % 4 // 2 != host) for host in range(2)], (seed, found)


FIRST_MESSAGE = """
import os, sys, time
from mpi4py import MPI

comm = MPI.COMM_WORLD
print("here", flush=True)
if comm.rank == 0:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    begun = time.perf_counter()
    requests = [comm.isend("come", peer) for peer in (2, 3)]
    print(time.perf_counter() - begun < 0.5, flush=True)
    MPI.Request.waitall(requests)
elif comm.rank > 1:
    print(comm.recv(source=0))
"""


@needs_spaces
def test_a_first_message_to_a_host_that_is_silent_holds_nobody_up(on_hosts, spaces, tmp_path):
    """It is there all the same when the link is back in time."""
    job = on_hosts("-c", FIRST_MESSAGE, str(tmp_path / "go"), NCCLX_MPI_HEARTBEAT="0.5,20")
    assert job.read(2) == [["here"] * 2] * 2
    spaces[1].set_link("down")
    (tmp_path / "go").touch()
    assert job.nodes[0].stdout.readline() == "True\n"
    spaces[1].come_back()
    assert [(status, stdout) for status, stdout, _ in job.end()] == [(0, ""), (0, "come\n" * 2)]


@needs_spaces
def test_hosts_that_fall_silent_at_any_time(on_hosts, spaces, silences):
    if not silences:
        pytest.skip("one is silenced by another test; with --full, 20 are")
    for seed in silences:
        job = on_hosts("-c", BUSY, str(seed), "-1", NCCLX_MPI_HEARTBEAT="0.2,2")
        pids = [int(line) for lines in job.read(2) for line in lines]
        spaces[seed % 2].set_link("down")
        for status, stdout, stderr in job.end():
            assert (status, stdout.splitlines()) == (1, ["True"] * 2), (seed, stderr)
        assert all_gone(pids, 5)
        spaces[seed % 2].come_back()


@needs_spaces
def test_a_rank_that_never_imports_mpi_is_named(on_hosts):
    code = "import os\nif os.environ['NCCLX_MPI_RANK'] != '2': from mpi4py import MPI"
    for status, _, stderr in on_hosts("-c", code).end():
        assert status == 1
        assert "rank 2 ended before it imported MPI" in stderr


@needs_spaces
def test_no_ucx_is_one_sentence(on_hosts):
    for status, _, stderr in on_hosts("-c", "from mpi4py import MPI", NCCLX_MPI_UCX_LIBRARY="/none/libucp.so").end():
        assert status == 1
        assert "NCCLX_MPI_UCX_LIBRARY names /none/libucp.so, which cannot be loaded" in stderr


@needs_spaces
def test_started_programs_join(on_hosts, tmp_path):
    """A Python behind a shell script is a rank, too."""
    script = tmp_path / "wrapper.sh"
    script.write_text(
        f"#!/bin/sh\nexec {sys.executable} -m ncclx_mpi -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))'\n"
    )
    script.chmod(0o755)
    for status, stdout, stderr in on_hosts(str(script)).end():
        assert (status, stdout.splitlines()) == (0, ["4", "4"]), stderr


@needs_spaces
def test_abort_ends_all_hosts(on_hosts):
    code = "from mpi4py import MPI; comm = MPI.COMM_WORLD; comm.Barrier()\nif comm.rank == 3: comm.Abort(6)\ncomm.Barrier()"
    assert [status for status, _, _ in on_hosts("-c", code).end()] == [6, 6]


def of_slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_NODEID": str(rank // 2),
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "nosuch[1-2]",
        "SLURM_LAUNCH_NODE_IPADDR": "10.93.0.1",
    }


def of_torchrun(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": str(rank // 2),
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.93.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RUN_ID": str(os.getpid()),
    }


class TestStartedByOthers:
    """Four processes that find each other by the variables of who started them; the first one of each host starts its agent."""

    @pytest.fixture
    def start(self, spaces, tmp_path):
        """Starts them; what still runs at the end is killed."""
        ranks: list[subprocess.Popen[str]] = []

        def start_four(code, variables, **more):
            pipe = subprocess.PIPE
            for rank in (3, 0, 2, 1):
                env = environment(HOME=str(tmp_path), NCCLX_MPI_CACHE_DIR=str(cache_files.cache_root()), **variables(rank), **more)
                line = [*spaces[rank // 2].prefix, sys.executable, "-m", "ncclx_mpi", "-c", code]
                ranks.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))
            return [ranks[at] for at in (1, 3, 2, 0)]

        yield start_four
        for process in ranks:
            process.kill()
            process.communicate()

    @needs_spaces
    @pytest.mark.parametrize(("variables", "kind"), [(of_slurm, "slurm"), (of_torchrun, "torchrun")])
    def test_world(self, start, variables, kind):
        code = (
            "from ncclx_mpi import MPI, runtime; print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1), runtime.membership().kind)"
        )
        for rank, process in enumerate(start(code, variables)):
            stdout, stderr = process.communicate(timeout=120)
            assert stdout == f"{rank} 4 {kind}\n", stderr
            assert process.returncode == 0

    @needs_spaces
    def test_a_rank_that_is_killed(self, start):
        ranks = start(FAIL, of_slurm)
        outputs = [process.communicate(timeout=120) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0, 0, -signal.SIGKILL]
        assert [stdout for stdout, _ in outputs[:3]] == [f"{rank} True True\n" for rank in range(3)], outputs

    @needs_spaces
    def test_an_agent_that_is_killed(self, start):
        """Its host is lost for the others, and the others for its host."""
        ranks = start(
            WAIT_FOR_FAR.replace('"met"', '"met", arena.word(HEADER.creator)').replace("comm.Barrier()", AGENT_OF_OURS), of_slurm
        )
        agents = [int(process.stdout.readline().split()[1]) for process in ranks]
        assert len(set(agents)) == 2
        os.kill(agents[3], signal.SIGKILL)
        for rank, process in enumerate(ranks):
            stdout, stderr = process.communicate(timeout=120)
            assert stdout == f"{rank} True\n", stderr
        assert all_gone(agents, 10)

    @needs_spaces
    def test_a_host_that_does_not_come(self, start, spaces):
        spaces[0].set_link("down")
        for rank, process in enumerate(start("from mpi4py import MPI", of_slurm, NCCLX_MPI_JOIN_TIMEOUT="3")):
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 1
            assert ("node 1 of 2 did not come" if rank < 2 else "node 1 of 2 waited 3 s for node 0") in stderr

    @needs_spaces
    def test_ranks_that_are_not_host_by_host(self, start):
        def cyclic(rank):
            first = {0: 0, 1: 2, 2: 1, 3: 3}[rank]
            return {**of_slurm(rank), "SLURM_PROCID": str(first)}

        for process in start("from mpi4py import MPI", cyclic):
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 1
            assert "srun --distribution=block" in stderr


AGENT_OF_OURS = """
from ncclx_mpi import runtime
from transports.shm.layout import HEADER
arena = runtime.engine().arena
comm.Barrier()
"""


def command_lines():
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            yield Path(f"/proc/{name}/cmdline").read_text()


class TestFromOne:
    """``ncclx run --hosts``, with ``ip netns exec`` in the place of ``ssh``."""

    def start(self, spaces: tuple[Space, Space], *words: str, **variables: str) -> subprocess.Popen[str]:
        hosts = ",".join(f"{space.name}:2" for space in spaces)
        own = ["--hosts", hosts, "--rsh", "ip netns exec", "--rendezvous", spaces[0].address]
        pipe = subprocess.PIPE
        env = environment(**variables)
        return subprocess.Popen(
            command("run", *own, *words), env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    @needs_spaces
    def test_output_comes_here(self, spaces, tmp_path):
        script = tmp_path / "say.py"
        script.write_text("import os, sys; print(os.environ['NCCLX_MPI_RANK'], os.environ['GIVEN'], *sys.argv[1:])")
        job = self.start(spaces, "--tag-output", "-x", "GIVEN=a b", str(script), "two words", "'")
        stdout, stderr = job.communicate(timeout=120)
        assert job.returncode == 0, stderr
        assert sorted(stdout.splitlines()) == [f"[{rank}] {rank} a b two words '" for rank in range(4)]

    @needs_spaces
    def test_files_and_bindings_of_ranks_of_all_hosts(self, spaces, tmp_path):
        code = "import os, sys; print('out', os.environ['NCCLX_MPI_RANK']); print('err', file=sys.stderr)"
        job = self.start(spaces, "--output-dir", str(tmp_path / "made"), "--report-bindings", "-c", code)
        stdout, stderr = job.communicate(timeout=120)
        assert (job.returncode, stdout) == (0, ""), stderr
        files = sorted((tmp_path / "made").iterdir())
        assert [file.name for file in files] == [f"rank-{rank}.out" for rank in range(4)]
        assert [sorted(file.read_text().splitlines()) for file in files] == [["err", f"out {rank}"] for rank in range(4)]
        said = sorted(line.split(" on ")[0] for line in stderr.splitlines())
        assert said == [f"ncclx run: rank {rank}" for rank in range(4)]

    @needs_spaces
    def test_status(self, spaces):
        job = self.start(spaces, "-c", "import os, sys; sys.exit(int(os.environ['NCCLX_MPI_RANK']) // 3 * 9)")
        _, stderr = job.communicate(timeout=120)
        assert job.returncode == 9
        assert "rank 3" in stderr

    @needs_spaces
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_nothing_is_left_when_the_caller_ends(self, spaces, number):
        job = self.start(spaces, "-c", SHOW_AND_SLEEP)
        pids = [int(word) for _ in range(4) for word in job.stdout.readline().split()]
        assert len(pids) == 8
        job.send_signal(number)
        job.communicate(timeout=60)
        assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert all_gone(pids, 20)

    @needs_spaces
    def test_the_token_is_on_no_command_line(self, spaces):
        job = self.start(spaces, "-c", SHOW_AND_SLEEP, NCCLX_MPI_TOKEN="not-this-one-but-a-fresh-one")
        pids = [int(word) for _ in range(4) for word in job.stdout.readline().split()]
        ours = [line for line in command_lines() if "--node-rank" in line]
        assert len(ours) >= 2
        assert not any(re.search(r"[0-9a-f]{32}", line) for line in ours)
        job.kill()
        job.communicate(timeout=60)
        assert all_gone(pids, 20)

    @needs_spaces
    def test_a_host_that_is_not_there(self, spaces):
        job = self.start((spaces[0], Space("ncclx-none", "none", "10.93.0.9")), "-c", "pass")
        began = time.monotonic()
        _, stderr = job.communicate(timeout=120)
        assert job.returncode != 0
        assert "ncclx-none" in stderr
        assert time.monotonic() - began < 60  # and not until the other one has waited for it

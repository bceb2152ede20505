"""Ranks that an ``mpiexec`` started on several hosts: what they tell each other, and two hosts that are network namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest
from programs import HOME, all_gone, environment
from spaces import needs_spaces, two_spaces
from stand_in_mpi import World

from ncclx_mpi.bootstrap import introduction

MPIEXEC = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
HERE = os.path.dirname(__file__)


@pytest.fixture
def spaces():
    with two_spaces() as both:
        yield both


class TestIntroduction:
    """Ranks that are threads."""

    @pytest.fixture
    def introduce(self, tmp_path, monkeypatch):
        """What each rank knows, or raises, if ranks are on hosts of these names."""
        here = threading.local()

        def introduce_all(*hosts, offered=None):
            monkeypatch.setattr(introduction, "_host", lambda: here.host)
            if offered is not None:
                monkeypatch.setattr(introduction, "addresses", lambda: offered)
            found = [None] * len(hosts)

            def run(rank):
                here.host = hosts[rank]
                try:
                    found[rank] = introduction.introduce(World(tmp_path, rank, len(hosts)))
                except RuntimeError as error:
                    found[rank] = error

            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(hosts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            return found

        return introduce_all

    def test_one_host_has_no_places(self, introduce):
        found = introduce("a", "a", "a")
        assert [each.place for each in found] == [None] * 3
        assert len({each.token for each in found}) == 1
        assert len(found[0].token) == 32

    def test_places(self, introduce):
        places = [each.place for each in introduce("a", "b", "b", "c", offered=["127.0.0.1"])]
        assert [(p.rank, p.size) for p in places] == [(rank, 4) for rank in range(4)]
        assert [(p.node, p.nnodes, p.local_rank, p.local_size) for p in places] == [
            (0, 3, 0, 1),
            (1, 3, 0, 2),
            (1, 3, 1, 2),
            (2, 3, 0, 1),
        ]
        assert {p.rendezvous for p in places} == {"127.0.0.1"}

    def test_an_address_that_is_not_reached_is_left_out(self, introduce):
        found = introduce("a", "b", offered=["no-such-host.invalid", "127.0.0.1"])
        assert [each.place.rendezvous for each in found] == ["127.0.0.1"] * 2

    def test_hosts_that_do_not_reach_the_first_one(self, introduce):
        for error in introduce("a", "b", offered=["no-such-host.invalid"]):
            assert "at any of its addresses: no-such-host.invalid" in str(error)

    def test_ranks_that_are_not_host_by_host(self, introduce):
        for error in introduce("a", "b", "a"):
            assert "rank 2 is on" in str(error)
            assert "-ppn N" in str(error)

    def test_what_listens_is_reached(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert introduction.reachable(["::1", "127.0.0.1"], port, 5.0) == ["127.0.0.1"]
        assert introduction.reachable(["127.0.0.1"], port, 5.0) == []

    def test_what_does_not_answer_takes_no_longer_than_it_may(self):
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            try:
                assert introduction.reachable(["127.0.0.1"], port, 0.2) == []
            finally:
                for each in waiting:
                    each.close()

    def test_no_address_is_a_loopback(self):
        assert not {"127.0.0.1", "::1", "localhost"} & set(introduction.addresses())


PROGRAM = """
import os, sys
from mpi4py import MPI
from ncclx_mpi import runtime
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(comm.rank, comm.allgather(node.rank), runtime.membership().kind, flush=True)
"""
DIE = """
import os, signal
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
print(os.getpid(), flush=True)
if comm.rank == 3:
    for peer in range(3):
        comm.recv(source=peer)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(None, dest=3)
try:
    comm.recv(source=3)
except MPI.Exception as error:
    print(error.Get_error_class() == MPI.ERR_PROC_FAILED, flush=True)
"""


class TestStandIn:
    """Four processes on two hosts that a stand-in of MPI introduces."""

    @pytest.fixture
    def start(self, spaces, tmp_path):
        ranks: list[subprocess.Popen[str]] = []

        def start_four(code):
            for rank in range(4):
                introduced = (
                    f"import sys; sys.path.insert(0, {HERE!r}); import stand_in_mpi; from ncclx_mpi import mpi4py_shim\n"
                    f"world = stand_in_mpi.Module(stand_in_mpi.World({str(tmp_path)!r}, {rank}, 4))\n"
                    "mpi4py_shim.real_mpi = lambda: world\n"
                )
                env = environment(PMI_RANK=str(rank), PMI_SIZE="4", MPI_LOCALNRANKS="2")
                line = [*spaces[rank // 2].prefix, sys.executable, "-m", "ncclx_mpi", "-c", introduced + code]
                pipe = subprocess.PIPE
                ranks.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))
            return ranks

        yield start_four
        for process in ranks:
            process.kill()
            process.communicate()

    @needs_spaces
    def test_world(self, start):
        for rank, process in enumerate(start(PROGRAM + "assert world.is_finalized")):
            stdout, stderr = process.communicate(timeout=120)
            assert (process.returncode, stdout) == (0, f"{rank} [0, 1, 0, 1] mpi\n"), stderr

    @needs_spaces
    def test_a_rank_that_is_killed(self, start):
        ranks = start(DIE)
        outputs = [process.communicate(timeout=120) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0, 0, -signal.SIGKILL], outputs
        assert [stdout.split()[1:] for stdout, _ in outputs[:3]] == [["True"]] * 3
        assert all_gone([int(stdout.split()[0]) for stdout, _ in outputs], 10)


@needs_spaces
@pytest.mark.skipif(MPIEXEC is None, reason="no MPI in this environment")
def test_mpiexec_over_hosts(spaces, tmp_path):
    """The real one: MPICH's and Intel MPI's options, or Open MPI's."""
    shell = tmp_path / "rsh"  # whose hosts are namespaces, with names of their own
    shell.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n'
    )
    shell.chmod(0o755)
    first, second = spaces
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in version or "prte" in version.lower():
        own = ["--allow-run-as-root", "--mca", "plm_ssh_agent", str(shell), "--host", f"{first.name}:2,{second.name}:2", "-n", "4"]
    else:
        own = ["-launcher", "ssh", "-launcher-exec", str(shell), "-hosts", f"{first.name},{second.name}", "-n", "4", "-ppn", "2"]
        own += ["-iface", first.link]
    named = [*first.prefix, "unshare", "--uts", "sh", "-c", f'hostname {first.name}; exec "$@"', "sh"]
    result = subprocess.run(
        [*named, MPIEXEC, *own, sys.executable, "-m", "ncclx_mpi", "-c", PROGRAM],
        env=environment(PYTHONPATH=HOME), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in range(4):
        assert f"{rank} [0, 1, 0, 1] mpi" in result.stdout
    assert "UCX" not in result.stderr

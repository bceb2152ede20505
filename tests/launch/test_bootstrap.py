"""Ranks that others start: torchrun, srun, mpiexec, and nobody."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from programs import environment

from ncclx_mpi.bootstrap import detect, handover, mpi, slurm, torchrun

SUM = "from ncclx_mpi import MPI, runtime; print(MPI.COMM_WORLD.allreduce(1), runtime.membership().kind)"


@pytest.fixture
def start():
    """Starts a rank with these variables; what still runs at the end is killed."""
    started = []

    def start_one(code, **variables):
        command = [sys.executable, "-m", "ncclx_mpi", "-c", code]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment(**variables), stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def of_torchrun(rank, size, port="29511", **more):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": str(os.getpid()),
        **more,
    }


def of_slurm(rank, size, **more):
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        **more,
    }


@pytest.mark.parametrize(("variables", "kind"), [(of_torchrun, "torchrun"), (of_slurm, "slurm")])
def test_world_from_variables(start, variables, kind):
    ranks = [start(SUM, **variables(rank, 3)) for rank in (2, 0, 1)]
    for rank in ranks:
        stdout, stderr = rank.communicate(timeout=90)
        assert stdout == f"3 {kind}\n", stderr


def test_world_of_one(start):
    stdout, stderr = start(SUM).communicate(timeout=90)
    assert stdout == "1 singleton\n", stderr


def test_missing_ranks_are_named(start):
    rank = start(SUM, NCCLX_MPI_JOIN_TIMEOUT="1", **of_torchrun(0, 3, "29512"))
    _, stderr = rank.communicate(timeout=90)
    assert rank.returncode == 1
    assert "ranks [1, 2] of 3 did not come" in stderr and "NCCLX_MPI_JOIN_TIMEOUT" in stderr


def test_missing_rank_0(start):
    rank = start(SUM, NCCLX_MPI_JOIN_TIMEOUT="1", **of_torchrun(1, 3, "29513"))
    assert "waited 1 s for rank 0" in rank.communicate(timeout=90)[1]


def test_two_of_the_same_rank(start):
    ranks = [start(SUM, NCCLX_MPI_JOIN_TIMEOUT="60", **of_torchrun(0, 2, "29514")) for _ in range(2)]
    end = time.monotonic() + 50
    while all(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.01)
    (refused,) = (rank for rank in ranks if rank.poll() is not None)
    assert "two processes were started as rank 0" in refused.communicate()[1]


def test_several_hosts_of_mpiexec_take_its_mpi(start):
    """Its variables do not say who is where."""
    variables = {
        "PMI_RANK": "0",
        "PMI_SIZE": "4",
        "PMIX_NAMESPACE": "x",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    no_mpi = (
        "from ncclx_mpi import mpi4py_shim\ndef real_mpi(): raise ImportError('none is here')\nmpi4py_shim.real_mpi = real_mpi\n"
    )
    said = start(no_mpi + SUM, **variables).communicate(timeout=90)[1]
    assert "(none is here)" in said
    assert "--hosts" in said


def test_tasks_that_slurm_does_not_place(start):
    variables = of_slurm(0, 4, SLURM_STEP_NUM_NODES="2", SLURM_STEP_TASKS_PER_NODE="2,1")
    assert "does not describe 4 tasks on 2 nodes" in start(SUM, **variables).communicate(timeout=90)[1]


def test_dead_peer_is_noticed(start):
    code = (
        "import os, time; from ncclx_mpi import MPI; comm = MPI.COMM_WORLD; print('ready', flush=True)\n"
        "try: comm.recv(source=1 - comm.rank)\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PROC_FAILED)"
    )
    ranks = [start(code, **of_torchrun(rank, 2, "29515")) for rank in range(2)]
    assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 2
    began = time.monotonic()
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert ranks[0].stdout.readline() == "True\n"
    assert time.monotonic() - began < 2


def test_a_batch_script_is_no_task():
    batch = {name: value for name, value in of_slurm(0, 4).items() if name != "SLURM_STEP_ID"}
    assert not slurm.is_present(batch)


def test_mpi_launcher_below_srun_wins():
    below = of_slurm(0, 1, PMI_RANK="3", PMI_SIZE="4")
    assert not slurm.is_present(below) and mpi.is_present(below)
    assert slurm.is_present(of_slurm(3, 4, PMI_RANK="3", PMI_SIZE="4"))


def test_torchrun_needs_all_its_variables():
    assert not torchrun.is_present({"RANK": "0", "WORLD_SIZE": "2"})


def test_order_of_ways():
    assert detect({}) == "singleton"
    assert detect({**of_torchrun(0, 2), **of_slurm(0, 2)}) == "torchrun"
    assert detect({"PMI_RANK": "0"}) == "mpi"


def test_worlds_of_one_are_explained(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(RuntimeError, match="4 ranks were started, but each is a world of one.*ncclx run -n 4"):
        mpi._refuse_worlds_of_one(1, "Some MPI")


def test_wrong_token_is_refused():
    name, token = handover.place(f"a job of the tests {os.getpid()}")
    with handover.listen(name, 1) as server:
        rank = subprocess.Popen(
            [sys.executable, "-c", f"from ncclx_mpi.bootstrap import handover; handover.fetch({name!r}, 'guess', 1, 2)"],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = server.accept()
        assert handover.answer(connection, token, 2, lambda rank: [0]) is None
        assert "wrong token" in rank.communicate(timeout=20)[1]


@pytest.mark.skipif(shutil.which("mpiexec", path=os.path.dirname(sys.executable)) is None, reason="no MPI in this environment")
@pytest.mark.parametrize("way", ["variables", "library"])
def test_mpiexec(way):
    mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    through_mpi = "from ncclx_mpi.bootstrap import mpi; mpi.world_from_variables = lambda environ: None; "
    code = (through_mpi if way == "library" else "") + SUM
    left = set(os.listdir("/dev/shm"))
    result = subprocess.run(
        [str(mpiexec), "-n", "3", sys.executable, "-m", "ncclx_mpi", "-c", code],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    # mpiexec may mix the lines of ranks
    assert (result.stdout.count("3"), result.stdout.count("mpi")) == (3, 3), result.stdout + result.stderr
    assert set(os.listdir("/dev/shm")) <= left


def test_who_holds_the_meeting_place_is_named(monkeypatch):
    name, _ = handover.place(f"a job of the tests {os.getpid()}")
    uid = os.getuid()
    with handover.listen(name, 1):
        with pytest.raises(
            RuntimeError, match=f"two processes were started as rank 0 of this job, the other one is {os.getpid()}$"
        ):
            handover.listen(name, 1)
        monkeypatch.setattr(handover.os, "getuid", lambda: 4321)
        with pytest.raises(RuntimeError, match=f"process {os.getpid()} of another user .{uid}. holds it; start the job again"):
            handover.listen(name, 1)


def test_a_meeting_place_where_nobody_answers(monkeypatch):
    monkeypatch.setattr(handover, "_HOLDER_SECONDS", 0.05)
    name, _ = handover.place(f"a job of the tests {os.getpid()}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(name)
        with pytest.raises(RuntimeError, match="by a process that does not answer"):
            handover.listen(name, 1)


def test_more_ranks_than_the_queue_holds_try_again():
    """A full queue is EAGAIN."""
    name, token = handover.place(f"a job of the tests {os.getpid()}")
    with handover.listen(name, 0) as server, socket.socket(socket.AF_UNIX) as first, open(os.devnull) as arena:
        first.connect(name)
        rank = threading.Thread(target=lambda: fetched.append(handover.fetch(name, token, 1, 2)))
        fetched: list[list[int]] = []
        rank.start()
        rank.join(0.1)
        assert rank.is_alive()
        server.accept()[0].close()
        assert handover.answer(server.accept()[0], token, 2, lambda rank: [arena.fileno()]) == 1
        rank.join(10)
        os.close(fetched[0][0])


class Besieged:
    """A server to which strangers connect all the time, for at most 3 s."""

    def __init__(self):
        self.end = time.monotonic() + 3

    def settimeout(self, seconds):
        assert seconds > 0

    def accept(self):
        if time.monotonic() > self.end:
            raise AssertionError("the strangers prolonged the wait")
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours, None


def test_strangers_do_not_prolong_the_wait_for_ranks(monkeypatch):
    monkeypatch.setattr(handover, "join_timeout", lambda: 0.1)
    with pytest.raises(TimeoutError, match="ranks .1. of 2 did not come"):
        handover.hand_out(Besieged(), "token", 2, lambda rank: [0])


TRACER = (
    "from types import SimpleNamespace as Names; from transports.shm import cma; seen = []\n"
    "cma.ctypes = Names(CDLL=lambda name: Names(prctl=lambda option, who, *rest: seen.append(who.value != 0)))\n"
    "from ncclx_mpi import MPI; import numpy as np\n"
    "MPI.COMM_WORLD.Barrier(); window = MPI.Win.Create(np.zeros(8)); window.Free(); allowed = set(seen)\n"
    "MPI.Finalize(); print(allowed, seen[-1:])"
)


def test_a_world_of_one_lets_nobody_attach(start):
    stdout, stderr = start(TRACER).communicate(timeout=90)
    assert stdout == "set() []\n", stderr


def test_ranks_take_back_that_others_may_attach(start):
    for rank in [start(TRACER, **of_torchrun(rank, 2, "29516")) for rank in range(2)]:
        stdout, stderr = rank.communicate(timeout=90)
        assert stdout == "{True} [False]\n", stderr

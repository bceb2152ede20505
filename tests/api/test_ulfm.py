"""Going on after failures: revoking ends every wait, agreements are the same on all that live, shrinking leaves a communicator that works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

PROGRAM = str(Path(__file__).with_name("survivors.py"))
TOPOLOGIES = pytest.mark.parametrize("topology", ["machine", "vnode:2"])


def halves(comm: Any) -> Any:
    """An intercommunicator of the ranks below and from the middle on."""
    low = comm.rank < comm.size // 2
    local = comm.Split(int(low))
    made = local.Create_intercomm(0, comm, comm.size // 2 if low else 0)
    local.Free()
    return made


def without_slot(comm: Any) -> Any:
    """A communicator whose collectives are plans."""
    return comm.Shrink()


def forever(ask: Callable[[], Any]) -> None:
    while True:
        ask()


WAITS: dict[str, Callable[[Any], Any]] = {
    "Barrier": lambda comm: comm.Barrier(),
    "Allreduce": lambda comm: comm.Allreduce(np.zeros(3), np.zeros(3)),
    "large Allreduce": lambda comm: comm.Allreduce(np.zeros(300_000), np.zeros(300_000)),
    "Alltoallv": lambda comm: comm.Alltoallv([np.zeros(4), [0] * comm.size], [np.zeros(4), [0] * comm.size]) or comm.Barrier(),
    "Ibarrier": lambda comm: comm.Ibarrier().Wait(),
    "Ibarrier, tested": lambda comm: forever(comm.Ibarrier().Test),
    "Iallgatherv": lambda comm: comm.Iallgatherv(np.zeros(1), [np.zeros(comm.size), [1] * comm.size]).Wait(),
    "persistent": lambda comm: persistent_barrier(comm),
    "bcast": lambda comm: comm.bcast(None, 1),
    "allgather": lambda comm: comm.allgather(object),
    "Recv": lambda comm: comm.Recv(np.zeros(1)),
    "Recv of rank 1": lambda comm: comm.Recv(np.zeros(1), 1, 7),
    "recv": lambda comm: comm.recv(),
    "Irecv": lambda comm: comm.Irecv(np.zeros(1)).Wait(),
    "Irecv, tested": lambda comm: forever(comm.Irecv(np.zeros(1)).Test),
    "irecv": lambda comm: comm.irecv().wait(),
    "Waitall": lambda comm: MPI.Request.Waitall([comm.Irecv(np.zeros(1), 1, tag) for tag in range(3)]),
    "Waitany": lambda comm: MPI.Request.Waitany([comm.Irecv(np.zeros(1), 1, tag) for tag in range(3)]),
    "Ssend": lambda comm: comm.Ssend(np.zeros(1), 1),
    "large Send": lambda comm: comm.Send(np.zeros(1_000_000), 1),
    "Sendrecv": lambda comm: comm.Sendrecv(np.zeros(1), 1, recvbuf=np.zeros(1), source=1),
    "Recv_init": lambda comm: persistent_receive(comm),
    "Probe": lambda comm: comm.Probe(),
    "Mprobe": lambda comm: comm.Mprobe(),
    "Iprobe": lambda comm: forever(comm.Iprobe),
    "Split": lambda comm: comm.Split(0),
}


def persistent_barrier(comm: Any) -> None:
    request = comm.Barrier_init()
    request.Start()
    request.Wait()


def persistent_receive(comm: Any) -> None:
    request = comm.Recv_init(np.zeros(1), 1)
    request.Start()
    request.Wait()


def error_class(call: Callable[..., Any], *arguments: Any) -> int:
    try:
        call(*arguments)
    except MPI.Exception as error:
        return error.Get_error_class()
    return MPI.SUCCESS


@pytest.mark.ranks(2, 3, timeout=60)
def test_revoking_ends_every_wait(comm: Any) -> None:
    for make in (lambda comm: comm.Dup(), without_slot):
        for name, wait in WAITS.items():
            revoked = make(comm)
            if comm.rank == 1:
                comm.recv(source=0, tag=1)
                revoked.Revoke()
            else:
                if comm.rank == 0:
                    comm.send(name, 1, tag=1)
                assert (name, error_class(wait, revoked)) == (name, MPI.ERR_REVOKED)
            check_revoked(revoked)
            revoked.Free()
            assert comm.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3, 5)
def test_revoking_an_intercommunicator(comm: Any) -> None:
    for wait in (lambda inter: inter.Barrier(), lambda inter: inter.Recv(np.zeros(1)), lambda inter: inter.allgather(0)):
        inter = halves(comm)
        if comm.rank == comm.size - 1:
            comm.recv(source=0, tag=1)
            inter.Revoke()
        else:
            if comm.rank == 0:
                comm.send(None, comm.size - 1, tag=1)
            with pytest.raises(MPI.Exception) as raised:
                wait(inter)
            assert raised.value.Get_error_class() == MPI.ERR_REVOKED
        check_revoked(inter)
        assert inter.Agree(5 if inter.rank else 7) == (5 if comm.size > 2 else 7)
        small = inter.Shrink()
        low, high = list(range(comm.size // 2)), list(range(comm.size // 2, comm.size))
        assert small.Is_inter() and small.allgather(comm.rank) == (high if comm.rank in low else low)
        small.Free()
        inter.Free()


def check_revoked(comm: Any) -> None:
    """Everything but what survivors need raises ERR_REVOKED."""
    while not comm.Is_revoked():
        pass
    size, rank = comm.size, comm.rank
    calls = (
        lambda: comm.Send([None, 0, MPI.BYTE], MPI.PROC_NULL),
        lambda: comm.Recv([None, 0, MPI.BYTE], MPI.PROC_NULL),
        lambda: comm.Send(np.zeros(1), 0),
        lambda: comm.Isend(np.zeros(1), 0),
        lambda: comm.Irecv(np.zeros(1), 0),
        lambda: comm.send(1, 0),
        lambda: comm.isend(1, 0),
        lambda: comm.recv(source=0),
        lambda: comm.Send_init(np.zeros(1), 0),
        lambda: comm.Psend_init(np.zeros(2), 2, 0),
        lambda: comm.Probe(),
        lambda: comm.Iprobe(),
        lambda: comm.improbe(),
        lambda: comm.Barrier(),
        lambda: comm.Ibarrier(),
        lambda: comm.Barrier_init().Start(),
        lambda: comm.Allreduce(np.zeros(1), np.zeros(1)),
        lambda: comm.allreduce(1),
        lambda: comm.allgather(1),
        lambda: comm.Dup(),
        lambda: comm.Split(),
    )
    for call in calls:
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_REVOKED
    assert (comm.size, comm.rank, comm.Get_group().size) == (size, rank, size)
    assert comm.Is_revoked() and comm.name == "" and comm.Get_failed() == MPI.GROUP_EMPTY
    comm.Revoke()


@pytest.mark.ranks(1, 2, 5)
def test_agreement_of_all(comm: Any) -> None:
    everything = (1 << 20) - 1
    for turn in range(5):
        assert comm.Agree(everything & ~(1 << comm.rank + turn)) == everything & ~(((1 << comm.size) - 1) << turn)
    assert comm.Agree(-1) == -1 and comm.Agree(-1 - comm.rank) == ~np.bitwise_or.reduce(np.arange(comm.size))
    flags = [np.array([everything & ~(1 << comm.rank)], dtype="i") for _ in range(3)]
    MPI.Request.Waitall([comm.Iagree(flag) for flag in flags])
    assert [int(flag[0]) for flag in flags] == [everything & ~((1 << comm.size) - 1)] * 3
    with pytest.raises(TypeError):
        comm.Iagree(0)
    with pytest.raises(ValueError, match="4 bytes"):
        comm.Iagree(bytearray(8))
    with pytest.raises(OverflowError):
        comm.Agree(1 << 40)


@pytest.mark.ranks(1, 2, 5)
def test_shrinking_where_all_live(comm: Any) -> None:
    (later, request), now = comm.Ishrink(), comm.Shrink()
    request.Wait()
    for made in (later, now):
        assert type(made) is MPI.Intracomm and made.Compare(comm) == MPI.CONGRUENT
        assert made.allgather(comm.rank) == list(range(comm.size))
        made.Free()
    assert comm.Get_failed() == MPI.GROUP_EMPTY and [comm.Ack_failed(count) for count in (0, comm.size, None)] == [0, 0, 0]
    assert not comm.Is_revoked()


# Deaths -----------------------------------------------------------------------------------------------------------


def survivors_of(case: str, ranks: int, topology: str) -> dict[int, Any]:
    """Run a case of the program beside this file, in which ranks die; returns what each of the others says."""
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(ranks), "--timeout", "60", PROGRAM, case]
    environ = {**os.environ, "NCCLX_MPI_TOPOLOGY": topology}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environ)
    assert done.returncode == 128 + signal.SIGKILL, done.stdout + done.stderr
    said = map(json.loads, done.stdout.splitlines())
    return {each["rank"]: each["said"] for each in said}


@TOPOLOGIES
def test_shrinking_after_a_death(topology: str) -> None:
    said = survivors_of("shrink", 4, topology)
    assert said == {
        rank: {
            "ended": True,
            "failed": [1],
            "acknowledged": 1,
            "members": [0, 2, 3],
            "sum": 5,
            "old": MPI.ERR_REVOKED,
            "self": 1,
            "half": [0] if rank == 0 else [2, 3],
        }
        for rank in (0, 2, 3)
    }


@TOPOLOGIES
def test_agreement_of_those_who_live(topology: str) -> None:
    said = survivors_of("agree", 5, topology)
    flags = {json.dumps(each) for each in said.values()}
    assert set(said) == {1, 3, 4} and len(flags) == 1, said
    for flag in json.loads(flags.pop()):
        assert flag & (0b11010) == 0, said  # what survivors have cleared is cleared


def test_a_death_that_is_not_acknowledged_ends_waits_everywhere() -> None:
    assert survivors_of("unacknowledged", 3, "machine") == {rank: [MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED, 2] for rank in (0, 2)}


def test_an_intercommunicator_of_those_who_live() -> None:
    said = survivors_of("between", 5, "machine")
    assert said == {0: [3, 4], 1: [3, 4], 3: [0, 1], 4: [0, 1]}


def test_one_death_after_the_other() -> None:
    said = survivors_of("again", 5, "machine")
    assert said == {0: [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]}


def test_the_launcher_lets_those_go_on_who_have_acknowledged() -> None:
    """The others of a job in which a rank has failed are ended after 5 s, so this takes longer."""
    started = time.monotonic()
    said = survivors_of("long", 3, "machine")
    assert time.monotonic() - started > 6 and said == {0: 2, 1: 2}

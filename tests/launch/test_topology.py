"""Simulated nodes: which ranks share one, what these are told of ends elsewhere, and that programs run on them by any launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.bootstrap import topology
from ncclx_mpi.bootstrap.nodes import Nodes
from transports.shm.arena import Arena
from transports.shm.layout import ABSENT, ALIVE, DEAD, FINALIZED

PROGRAM = (
    "from ncclx_mpi import MPI, runtime; c = MPI.COMM_WORLD; s = c.Split_type(MPI.COMM_TYPE_SHARED); "
    "print(c.rank, c.allreduce(1), s.size, runtime.engine().way_to((c.rank + 1) % c.size).name)"
)


@pytest.mark.parametrize(
    ("setting", "size", "sizes"),
    [
        ("machine", 5, [5]),
        ("", 3, [3]),
        ("vnode:2", 5, [2, 2, 1]),
        ("VNODE:8", 3, [3]),
        ("nolocal", 3, [1, 1, 1]),
        ("vnode:2", 1, [1]),
    ],
)
def test_ranks_are_shared_out_in_order(monkeypatch: pytest.MonkeyPatch, setting: str, size: int, sizes: list[int]) -> None:
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY", setting) if setting else None
    found = topology.nodes(size)
    assert [len(node) for node in found] == sizes and [rank for node in found for rank in node] == list(range(size))


@pytest.mark.parametrize("setting", ["vnode", "vnode:", "vnode:0", "vnode:-1", "vnode:two", "2", "cluster"])
def test_a_topology_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY", setting)
    with pytest.raises(ValueError, match=f"NCCLX_MPI_TOPOLOGY='{setting}' is no topology; there are machine, vnode:2"):
        topology.nodes(4)


def test_the_network_is_described_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLX_MPI_NETWORK", "delay=50, jitter=200,credits=2,shuffled,seed=7")
    found = topology.network()
    assert (found.delay_us, found.jitter_us, found.credits, found.is_shuffled, found.seed) == (50, 200, 2, True, 7)


@pytest.mark.parametrize("words", ["delay", "delay=-1", "speed=3", "shuffled=1", "credits=two", "credits=0"])
def test_what_says_nothing_about_a_network_is_named(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("NCCLX_MPI_NETWORK", words)
    with pytest.raises(ValueError, match="credits" if words == "credits=0" else f"NCCLX_MPI_NETWORK: '{words}' says nothing"):
        topology.network()


def test_each_node_knows_who_ended_elsewhere() -> None:
    nodes = Nodes(5, "vnode:2")
    try:
        for rank in range(5):
            arena, local_rank = nodes.place_of(rank)
            assert (arena.near[local_rank], nodes.control_word(rank, "world_rank")) == (rank, rank)
            arena.join(local_rank)
        assert nodes.first_dead == -1
        arena, local_rank = nodes.place_of(3)
        arena.finalized(local_rank)
        for rank in (3, 4, 1):
            nodes.ended(rank)
        assert nodes.first_dead == 4
        for arena, own, others in zip(
            nodes.arenas, ([ALIVE, DEAD], [ALIVE, FINALIZED], [DEAD]), (range(2, 5), (0, 1, 4), range(4)), strict=True
        ):
            assert [arena.state(rank) for rank in range(arena.nranks)] == own
            expected = {0: ABSENT, 1: DEAD, 2: ABSENT, 3: FINALIZED, 4: DEAD}
            assert [arena.world_state(rank) for rank in others] == [expected[rank] for rank in others]
            assert arena.dead_ranks() == [1, 4]
    finally:
        nodes.close()


def test_nodes_that_cannot_all_be_made_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    create, made = Arena.create, iter(range(2))

    def fail_at_the_third(*arguments: Any, **named: Any) -> Arena:
        if next(made, None) is None:
            raise OSError("planted")
        return create(*arguments, **named)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(Arena, "create", fail_at_the_third)
    with pytest.raises(OSError, match="planted"):
        Nodes(3, "nolocal")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_others_are_there_until_all_nodes_have_ended() -> None:
    nodes = Nodes(2, "nolocal")
    try:
        for arena in nodes.arenas:
            arena.join(0)
        assert nodes.arenas[0].has_others(0)
        nodes.arenas[1].finalized(0)
        nodes.ended(1)
        assert not nodes.arenas[0].has_others(0) and not nodes.arenas[0].has_dead_ranks
    finally:
        nodes.close()


@pytest.mark.ranks(1, 4, 5, topology="vnode:2")
def test_ranks_of_a_node_share_memory_and_others_do_not(comm: Any) -> None:
    near = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    first = comm.rank // 2 * 2
    assert near.allgather(comm.rank) == [rank for rank in (first, first + 1) if rank < comm.size]
    assert (near._state.native.slot >= 0) == (near.size == 2) and (comm._state.native.slot < 0) == (comm.size > 2)
    ways = [runtime.engine().way_to(rank).name for rank in range(comm.size)]
    assert ways == ["shm" if rank // 2 == comm.rank // 2 else "virtual" for rank in range(comm.size)]


@pytest.mark.ranks(1, 4, 5, topology="vnode:2")
def test_communicators_know_the_node_of_each_rank(comm: Any) -> None:
    """All ranks the same, whatever their order; none where all are on one node."""

    def known(made: Any) -> tuple[int, ...] | None:
        nodes = made._state.native.nodes
        return nodes and nodes.of

    ranks = range(comm.size)
    wanted = tuple(rank // 2 for rank in ranks) if comm.size > 2 else None
    assert known(comm) == known(comm.Dup()) == wanted
    turned = comm.Split(0, -comm.rank)
    assert known(turned) == _numbered([rank // 2 for rank in ranks[::-1]])
    near = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert known(near) is None and known(MPI.COMM_SELF) is None
    if comm.size > 2:
        one_of_each = comm.Create(comm.group.Incl(range(0, comm.size, 2)))
        if one_of_each != MPI.COMM_NULL:
            assert known(one_of_each) == tuple(range(one_of_each.size))
        sides = comm.Split(comm.rank % 2).Create_intercomm(0, comm, 1 - comm.rank % 2)
        assert sides._state.of_all.nodes.of == _numbered([rank // 2 for rank in [*ranks[::2], *ranks[1::2]]])


def _numbered(nodes: list[int]) -> tuple[int, ...] | None:
    """In the order in which they are met; nothing if there is one."""
    order = list(dict.fromkeys(nodes))
    return tuple(map(order.index, nodes)) if len(order) > 1 else None


@pytest.mark.ranks(3, 4, topology="nolocal", timeout=60)
def test_programs_run_between_nodes(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    found = np.empty(200_000)
    comm.Sendrecv(np.full(200_000, comm.rank + 0.5), right, 3, found, left, 3)
    assert (found == left + 0.5).all()
    assert comm.sendrecv({"from": comm.rank, "data": found}, right, source=left)["from"] == left
    total = np.empty(1000)
    comm.Allreduce(np.arange(1000.0) + comm.rank, total)
    assert (total == comm.size * np.arange(1000.0) + sum(range(comm.size))).all()
    halves = comm.Split(comm.rank % 2, -comm.rank)
    assert halves.allgather(comm.rank) == sorted(range(comm.rank % 2, comm.size, 2), reverse=True)


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "NCCLX_MPI_TOPOLOGY": "vnode:2", **variables}


DEATH = """
import os, signal, time
from ncclx_mpi import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:  # when nobody is in a call that needs it, but the one below
    for other in (0, 2, 3):
        comm.recv(source=other)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(None, 1)
start = time.monotonic()
try:
    comm.recv(source=1)
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_PROC_FAILED and "rank 1 died" in str(error)
    os.write(1, f"{comm.rank} within 2 s: {time.monotonic() - start < 2}\\n".encode())
"""


def test_a_death_is_noticed_on_all_nodes() -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "4", "--timeout", "60", "-c", DEATH]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240)
    assert sorted(done.stdout.splitlines()) == [f"{rank} within 2 s: True" for rank in (0, 2, 3)], done.stderr
    assert done.returncode == 128 + signal.SIGKILL and "rank 1" in done.stderr


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_our_launcher_starts_nodes(way: str) -> None:
    program = ["-c", PROGRAM] if way == "forked" else ["sh", "-c", f"exec {sys.executable} -c '{PROGRAM}'"]
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "3", "--timeout", "200", *program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240)
    assert sorted(done.stdout.splitlines()) == ["0 3 2 shm", "1 3 2 virtual", "2 3 1 virtual"], done.stderr


def torchrun(rank: int, size: int, program: str, port: int) -> subprocess.Popen[str]:
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    variables = {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "localhost"}
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_unrelated_processes_meet_on_nodes() -> None:
    ranks = [torchrun(rank, 4, PROGRAM, os.getpid()) for rank in range(4)]
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [out for out, _ in outputs] == ["0 4 2 shm\n", "1 4 2 virtual\n", "2 4 2 shm\n", "3 4 2 virtual\n"], outputs


def test_unrelated_processes_notice_a_death_on_another_node() -> None:
    program = "from ncclx_mpi import MPI; c = MPI.COMM_WORLD; c.Barrier(); print('met', flush=True); c.recv(source=3)"
    ranks = [torchrun(rank, 3, program.replace("source=3", "source=2"), os.getpid() + 1) for rank in range(3)]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "met\n"
    ranks[2].kill()
    for rank in ranks[:2]:
        assert "rank 2 died" in rank.communicate(timeout=20)[1]
    ranks[2].communicate()


def test_a_bad_topology_is_said_before_anything_starts() -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(NCCLX_MPI_TOPOLOGY="vnode:x"), timeout=240)
    assert done.returncode != 0 and "NCCLX_MPI_TOPOLOGY='vnode:x' is no topology" in done.stderr and "Traceback" not in done.stderr

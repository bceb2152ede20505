"""Groups that did not start together: ports, names, joined sockets, started processes; and what goes wrong with each."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

CHILD = str(Path(__file__).with_name("spawned_child.py"))


@contextmanager
def failure(error_class: int, *words: str) -> Iterator[None]:
    """Check that the body raises this class, with all words."""
    with pytest.raises(MPI.Exception) as raised:
        yield
    assert raised.value.Get_error_class() == error_class, raised.value
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.ranks(1)
def test_names_are_published_once_and_found_until_they_are_taken_back(comm: Any) -> None:
    service, port = f"a service {secrets.token_hex(4)} = (any name)", MPI.Open_port()
    with failure(MPI.ERR_NAME, service):
        MPI.Lookup_name(service)
    MPI.Publish_name(service, port)
    assert MPI.Lookup_name(service) == port and len(port) <= MPI.MAX_PORT_NAME
    with failure(MPI.ERR_SERVICE, service):
        MPI.Publish_name(service, port)
    with failure(MPI.ERR_SERVICE, service):
        MPI.Unpublish_name(service, f"{port}0")
    MPI.Unpublish_name(service, port)
    with failure(MPI.ERR_NAME, service):
        MPI.Lookup_name(service)
    MPI.Close_port(port)


@pytest.mark.ranks(1)
def test_what_cannot_be_published_says_why(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = MPI.Open_port()
    with failure(MPI.ERR_PORT, "is no name of a port"):  # no socket could have a name of that length
        MPI.Publish_name("any", port + "0" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "bind", refuse)
        with failure(MPI.ERR_SERVICE, "cannot be published", "Too many open files"):
            MPI.Publish_name("any", port)
    MPI.Publish_name("any", port)  # nothing was left of it
    MPI.Unpublish_name("any", port)
    MPI.Close_port(port)


def refuse(_: Any, address: Any) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.ranks(2)
def test_ports_that_are_none(comm: Any) -> None:
    port = MPI.Open_port()
    MPI.Close_port(port)
    with failure(MPI.ERR_PORT, port):
        MPI.Close_port(port)
    port = comm.bcast(port)
    with failure(MPI.ERR_PORT, port, "rank 0: this process has opened no port"):
        comm.Accept(port)
    with failure(MPI.ERR_PORT, port, "no port"):
        comm.Connect(port)
    with failure(MPI.ERR_PORT, "'nonsense'"):
        comm.Connect("nonsense", root=1)
    with failure(MPI.ERR_PORT, "'nonsense'"):
        MPI.Publish_name("service", "nonsense")
    with failure(MPI.ERR_ROOT, "root 2"):
        comm.Connect(port, root=2)
    with pytest.raises(TypeError):
        MPI.Lookup_name(7)  # type: ignore[arg-type]


@pytest.mark.ranks(3)
def test_parts_of_a_job_meet_at_a_port(comm: Any) -> None:
    part = comm.Split(int(comm.rank == 1))
    port = MPI.Open_port() if comm.rank == 1 else None
    port = comm.bcast(port, root=1)
    inter = part.Accept(port) if comm.rank == 1 else part.Connect(port, root=1)
    assert (inter.size, inter.remote_size) == ((1, 2) if comm.rank == 1 else (2, 1))
    assert inter.allgather(comm.rank) == ([0, 2] if comm.rank == 1 else [1])
    merged = inter.Merge(comm.rank == 1)
    assert merged.allgather(comm.rank) == [0, 2, 1]
    assert MPI.Group.Translate_ranks(merged.Get_group(), None, comm.Get_group()) == [0, 2, 1]
    for each in (merged, inter, part):
        each.Disconnect()
    if comm.rank == 1:
        MPI.Close_port(port)


@pytest.mark.ranks(2)
def test_two_processes_join_that_share_a_socket(comm: Any) -> None:
    if comm.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            comm.send(server.getsockname(), 1)
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(comm.recv(source=0))
    with connection:
        inter = MPI.Comm.Join(connection.fileno())
        connection.sendall(b"what the program sends %d" % comm.rank)  # is not taken for anything else
        assert connection.recv(100) == b"what the program sends %d" % (1 - comm.rank)
    assert inter.sendrecv(comm.rank, 0, source=0) == 1 - comm.rank
    inter.Disconnect()
    with failure(MPI.ERR_OTHER, "no connected socket"):
        MPI.Comm.Join(0)


@pytest.mark.ranks(2, timeout=120)
def test_processes_that_cannot_be_started(comm: Any, tmp_path: Path) -> None:
    with failure(MPI.ERR_SPAWN, "no program 'not-a-program'"):
        comm.Spawn("not-a-program", root=1)
    with failure(MPI.ERR_SPAWN, "'host'"):
        comm.Spawn(sys.executable, info=MPI.Info.Create({"host": "elsewhere"}))
    with failure(MPI.ERR_SPAWN, "no folder"):
        comm.Spawn_multiple([sys.executable], info=MPI.Info.Create({"wd": str(tmp_path / "none")}))
    with failure(MPI.ERR_SPAWN, "ended with status 3 before MPI began"):
        comm.Spawn(sys.executable, ["-c", "raise SystemExit(3)"], 2)
    assert comm.allreduce(1) == 2


@pytest.mark.ranks(1)
def test_arguments_that_do_not_fit_together(comm: Any) -> None:
    with failure(MPI.ERR_ARG, "maxprocs 0"):
        comm.Spawn(sys.executable, maxprocs=0)
    for words in ((sys.executable,), ([sys.executable], [[], []]), ([sys.executable], "x"), ([sys.executable], None, [1, 2])):
        with pytest.raises(ValueError):
            comm.Spawn_multiple(*words)


@pytest.mark.ranks(2, timeout=120)
def test_started_processes_are_a_group_like_any(comm: Any, tmp_path: Path) -> None:
    codes: list[int] = []
    info = MPI.Info.Create({"wd": str(tmp_path)})
    inter = comm.Spawn(sys.executable, [CHILD, "all"], 3, info, 1, codes)
    assert (inter.size, inter.remote_size, codes) == (2, 3, [0, 0, 0])
    assert inter.bcast(None, 0) == [str(tmp_path), [CHILD, "all"], 0]
    # messages, small and large, in both directions at once
    data, room = np.full(300_000, comm.rank, dtype=np.float64), np.empty(300_000)
    sending = [inter.Isend(data, rank) for rank in range(3)]
    for _ in range(3):
        status = MPI.Status()
        inter.Recv(room, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert status.tag == status.source and (room == status.source).all()
    MPI.Request.Waitall(sending)
    # collectives of both groups and of all together
    total = np.zeros(2)
    inter.Allreduce(np.ones(2), total)
    assert total.tolist() == [3.0, 3.0] and inter.allgather(comm.rank) == ["child 0", "child 1", "child 2"]
    twin = inter.Dup()
    twin.barrier()
    twin.Free()
    merged = inter.Merge(False)
    assert merged.allgather(merged.rank) == [0, 1, 2, 3, 4]
    many = np.zeros(50_000)
    merged.Allreduce(np.full(50_000, merged.rank, dtype=np.float64), many)
    assert (many == 10).all()
    odd = merged.Split(merged.rank % 2, -merged.rank)
    assert odd.allgather(merged.rank) == [[4, 2, 0], [3, 1]][merged.rank % 2]
    near = merged.Split_type(MPI.COMM_TYPE_SHARED)
    assert near.size == 2  # those that share memory
    # of two groups whose ranks count each other differently
    again = near.Create_intercomm(0, merged, 2)
    assert again.allgather(comm.rank) == [2, 3, 4]
    window = MPI.Win.Create(np.zeros(8), comm=merged)
    window.Fence()
    window.Free()
    for each in (again, near, odd, merged, inter):
        each.Disconnect()
    assert comm.allreduce(1) == 2


@pytest.mark.ranks(1, timeout=120)
def test_several_programs_are_one_job(comm: Any) -> None:
    codes: list[list[int]] = []
    inter = comm.Spawn_multiple([sys.executable, CHILD], [[CHILD, "number"], ["number"]], [1, 2], errcodes=codes)
    assert codes == [[0], [0, 0]] and inter.allgather(None) == [0, 1, 1]
    inter.Disconnect()


@pytest.mark.ranks(2, 3)
def test_wrong_arguments_of_the_root_are_raised_on_all_ranks(comm: Any) -> None:
    """They count at the root alone, and so it alone can see what is wrong."""
    root = comm.size - 1
    wrong = {"maxprocs": "two"} if comm.rank == root else {}
    with pytest.raises(TypeError) if comm.rank == root else failure(MPI.ERR_SPAWN, f"rank {root}, the root, found: TypeError"):
        comm.Spawn(sys.executable, [CHILD, "number"], root=root, **wrong)
    with failure(MPI.ERR_ARG, "at least 1 process"):
        comm.Spawn(sys.executable, maxprocs=0 if comm.rank == root else 1, root=root)
    with pytest.raises(TypeError) if comm.rank == root else failure(MPI.ERR_PORT, "TypeError"):
        comm.Connect(1 if comm.rank == root else "", root=root)
    assert comm.allreduce(1) == comm.size


@pytest.mark.ranks(2, timeout=120)
def test_the_death_of_a_started_process_ends_what_it_is_part_of_and_nothing_else(comm: Any) -> None:
    inter = comm.Spawn(sys.executable, [CHILD, "wait"], 1)
    pid = inter.bcast(None, 0)
    comm.Barrier()  # both know its number
    if comm.rank == 0:
        os.kill(pid, signal.SIGKILL)
    with failure(MPI.ERR_PROC_FAILED, f"rank 0 of another job (process {pid}) died"):
        inter.recv(source=0)
    with failure(MPI.ERR_PROC_FAILED, str(pid)):
        inter.barrier()
    assert inter.Get_remote_group().size == 1 and inter.Get_failed().size == 1
    inter.Free()
    assert comm.allgather(comm.rank) == [0, 1]


@pytest.mark.ranks(2, timeout=120, topology="machine")
def test_ranks_of_a_node_find_each_other_after_one_of_them_has_met_another_job(comm: Any) -> None:
    if comm.rank == 0:
        inter = MPI.COMM_SELF.Spawn(sys.executable, [CHILD, "number"], 1)
        inter.allgather(None)
        inter.Disconnect()
    comm.Barrier()
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == comm.size

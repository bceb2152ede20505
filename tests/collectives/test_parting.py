"""The last collectives of a communicator, in which nobody looks at anybody: what differs is found when it is freed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI


def wrong_roots(comm: Any) -> None:
    comm.Bcast(np.zeros(4), root=comm.rank)


def one_more(comm: Any) -> None:
    comm.Barrier()
    if comm.rank == 0:
        comm.Bcast(np.zeros(1), root=0)


WORKS: dict[str, Callable[[Any], None]] = {"wrong roots": wrong_roots, "one more": one_more}


@pytest.mark.ranks(2, 3, topology="machine")  # lines of shared memory say what the others called, and how often
@pytest.mark.parametrize(("work", "word"), [("wrong roots", "bcast with root"), ("one more", "bcast with root 0")])
def test_free_names_what_differs(comm: Any, work: str, word: str) -> None:
    check_what_differs(comm, work, word, rf"rank {comm.rank}: called \d collectives.* but rank 0 .*{word}")


@pytest.mark.ranks(2, 3, topology="nolocal")
@pytest.mark.parametrize(("work", "word"), [("wrong roots", "bcast with root"), ("one more", "bcast with root 0")])
def test_free_names_what_another_node_called(comm: Any, work: str, word: str) -> None:
    """By a message that nobody has received."""
    check_what_differs(comm, work, word, rf"rank {comm.rank}: rank \d of the communicator called {word}")


def check_what_differs(comm: Any, work: str, word: str, last: str) -> None:
    """The last rank to free it sees it; those before may."""
    mine = comm.Dup()
    WORKS[work](mine)
    if comm.rank < comm.size - 1:
        try:
            mine.Free()
        except MPI.Exception as error:
            assert word in str(error)
        comm.Barrier()
    else:
        comm.Barrier()
        with pytest.raises(MPI.Exception, match=last) as caught:
            mine.Free()
        assert caught.value.Get_error_class() == MPI.ERR_OTHER
    assert mine == MPI.COMM_NULL
    comm.Barrier()


@pytest.mark.ranks(1, 2, 3)
def test_free_is_content_with_what_is_right(comm: Any) -> None:
    """Empty collectives, requests that are forgotten, plans and lines, ranks that are late."""
    for turn in range(12):
        mine = comm.Dup()
        mine.Bcast(np.zeros(turn % 3), root=turn % comm.size)
        mine.Ibcast(np.zeros(5000 * (turn % 2)), root=0)
        mine.Iallreduce(np.ones(100_000), np.zeros(100_000)).Wait()
        mine.bcast({"turn": turn}, root=0)
        mine.Gather(np.zeros(2), np.zeros(2 * comm.size) if comm.rank == 0 else None, root=0)
        if turn % comm.size == comm.rank:
            time.sleep(0.002)
        mine.Free()


@pytest.mark.ranks(2)
def test_a_plan_that_one_rank_did_not_call(comm: Any) -> None:
    mine = comm.Dup()
    if comm.rank == 0:
        started = mine.Bcast_init(np.zeros(4), root=0)
        started.Start()
        started.Wait()
        mine.Free()
        comm.Barrier()
    else:
        comm.Barrier()
        with pytest.raises(MPI.Exception, match="bcast with root 0"):
            mine.Free()
    comm.Barrier()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "call", ["Barrier", "Allreduce", "long Allreduce", "Bcast", "bcast", "allgather", "Iallreduce", "Ibcast", "Alltoallv"]
)
def test_nobody_waits_for_a_rank_that_has_left(comm: Any, call: str) -> None:
    """A rank that has freed the communicator, or finalized, calls no more on it: who waits for it hears that."""
    mine, few, many = comm.Dup(), np.ones(1), np.ones(300_000)
    mine.Barrier()
    if comm.rank == 1:
        with contextlib.suppress(MPI.Exception):  # between nodes it may see a message of what it has not called, and says so
            mine.Free()
    else:
        calls: dict[str, Callable[[], Any]] = {
            "Barrier": mine.Barrier,
            "Allreduce": lambda: mine.Allreduce(MPI.IN_PLACE, few),
            "long Allreduce": lambda: mine.Allreduce(MPI.IN_PLACE, many),
            "Bcast": lambda: mine.Bcast(few, root=1),
            "bcast": lambda: mine.bcast(None, root=1),
            "allgather": lambda: mine.allgather({"rank": comm.rank}),
            "Iallreduce": lambda: mine.Iallreduce(MPI.IN_PLACE, few).Wait(),
            "Ibcast": lambda: mine.Ibcast(few, root=1).Wait(),
            "Alltoallv": lambda: mine.Alltoallv(np.ones(comm.size), np.ones(comm.size)),
        }
        with pytest.raises(MPI.Exception) as raised:
            calls[call]()
        assert raised.value.Get_error_class() in (
            MPI.ERR_PROC_FAILED,
            MPI.ERR_OTHER,
        )  # the second of a rank that hears it of another
        assert "has finalized, or freed it, after 1" in str(raised.value) or "Make a new communicator" in str(raised.value)
    comm.Barrier()


LEAVES = """
from ncclx_mpi import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank != 1:
    try:
        comm.Barrier()
    except MPI.Exception as error:
        print(error, flush=True)
        assert error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_OTHER)
"""


@pytest.mark.parametrize("topology", ["vnode:2", "nolocal"])
@pytest.mark.parametrize("nranks", [2, 3])
def test_nobody_waits_for_a_rank_that_has_finalized(topology: str, nranks: int) -> None:
    """Of two who wait, the second may hear that the first has given up."""
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), "-c", LEAVES]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NCCLX_MPI_TOPOLOGY": topology}, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == nranks - 1 and any("rank 1 has finalized" in line for line in lines), lines

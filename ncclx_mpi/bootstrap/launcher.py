"""Ranks that our own launcher started.

A forked rank inherits the arena. A program that the launcher executed finds in ``NCCLX_MPI_JOB`` where the launcher hands
the arena out, so that a Python process behind a wrapper script can join.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncclx_mpi import late
from ncclx_mpi.bootstrap import singleton
from ncclx_mpi.bootstrap.membership import Membership
from numba_kernels.rows import NamedTuple
from transports.shm.arena import Arena, start_time
from transports.shm.layout import ABSENT

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap import exchange, handover, meet
    from ncclx_mpi.bootstrap.exchange import Directory
    from ncclx_mpi.bootstrap.nodes import Nodes
    from transports.virtual.network import Network
else:
    exchange, handover, meet = (late.module(f"ncclx_mpi.bootstrap.{name}") for name in ("exchange", "handover", "meet"))

RANK, SIZE, LOCAL_RANK, JOB = "NCCLX_MPI_RANK", "NCCLX_MPI_SIZE", "NCCLX_MPI_LOCAL_RANK", "NCCLX_MPI_JOB"
NUMBER = "NCCLX_MPI_APPNUM"
"""Which of the programs of its job a rank runs, where it has several."""
PARENT = "NCCLX_MPI_PARENT"
"""Names the port of the parents in the environment of a started process, until it has found them."""


class Inheritance(NamedTuple):
    """What a forked rank got from the launcher."""

    pid: int
    rank: int
    arena: Arena
    network: Network | None
    directory: Directory | None


_inherited: Inheritance | None = None


def inherit(rank: int, nodes: Nodes, directory: Directory | None = None) -> None:
    """Called in a freshly forked rank: this process is `rank` of a job that the launcher has made, whose `directory` leads to other hosts."""
    global _inherited
    _inherited = Inheritance(os.getpid(), rank, *nodes.leave_to(rank), directory)


def variables(rank: int, size: int, local_rank: int, job: str) -> dict[str, str]:
    """What the environment of a started program says."""
    return {RANK: str(rank), SIZE: str(size), LOCAL_RANK: str(local_rank), JOB: job}


def directory(job: str) -> Directory:
    """Where ranks of a job, as :func:`variables` names it, learn how those of other hosts are reached."""
    name, _, token = job.rpartition(":")
    return exchange.Directory(exchange.name_of(name), token)


def is_present(environ: Mapping[str, str]) -> bool:
    """Did ``ncclx run`` or ``launch.run`` start this process?"""
    return _is_forked_rank() or (JOB in environ and RANK in environ and SIZE in environ)


def _is_forked_rank() -> bool:
    return _inherited is not None and _inherited.pid == os.getpid()


def join() -> Membership:
    """Join the launcher's job; a child process of a rank is no rank and gets a world of its own."""
    if _inherited is not None and _is_forked_rank():
        detail = f"forked by ncclx run (process {os.getppid()})"
        return Membership(
            _inherited.rank, _inherited.arena, "launcher", detail, network=_inherited.network, directory=_inherited.directory
        )
    return _join_through_variables()


def _join_through_variables() -> Membership:
    rank, size, job = int(os.environ[RANK]), int(os.environ[SIZE]), os.environ[JOB]
    name, _, token = job.rpartition(":")
    arena, network = meet.attach(handover.fetch("\0" + name, token, rank, size))
    is_elsewhere = network is None and arena.nranks < size
    found = Membership(
        rank,
        arena,
        "launcher",
        f"started by ncclx run, which serves @{name}",
        network=network,
        directory=directory(job) if is_elsewhere else None,
    )
    if arena.state(found.local_rank) == ABSENT:
        return found
    owner = arena.control_word(found.local_rank, "pid")
    is_living = start_time(owner) == arena.control_word(found.local_rank, "start_time")
    arena.close()
    if network is not None:
        network.close()
    if not is_living:
        raise RuntimeError(
            f"rank {rank} of this job has been process {owner}, which ended; "
            "a started program may hold one MPI process after another only under another `ncclx run`"
        )
    return singleton.join(f"child of rank {rank} (process {owner}): a world of its own")

"""Ranks that an ``mpiexec`` started.

MPI only introduces the ranks to each other and then carries nothing. Often it need not even be loaded: the launcher's
variables say rank and size, and a name that only this job has is Open MPI's ``PMIX_NAMESPACE``, or the process of MPICH's and
Intel MPI's launcher that started the ranks: an ancestor, or who holds the other end of ``PMI_FD``. Where there is no such
name, the real ``mpi4py.MPI`` is initialised, rank 0 draws a token and broadcasts it, and MPI is finalised at once, which also
removes its files from /dev/shm.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclx_mpi.bootstrap import handover, singleton
from ncclx_mpi.bootstrap.meet import meet, refuse_several_nodes, whole_number
from ncclx_mpi.bootstrap.membership import Membership
from transports.shm.arena import start_time

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")
_PROXIES = ("hydra_pmi_proxy", "pmi_proxy")


@dataclass
class World:
    """What a launcher, or MPI itself, said."""

    rank: int
    size: int
    job: str
    detail: str


def is_present(environ: Mapping[str, str]) -> bool:
    """Are the variables of an MPI launcher set?"""
    return any(name in environ for name in _RANKS)


def join() -> Membership:
    """Meet the other ranks of this ``mpiexec``."""
    world = world_from_variables(os.environ) or world_from_mpi()
    if world.size == 1:
        return singleton.join(world.detail)
    local = _first(os.environ, _LOCAL_SIZES)
    refuse_several_nodes(int(local) if local else world.size, world.size, "mpiexec")
    return meet(world.rank, world.size, world.job, "mpi", world.detail)


def world_from_variables(environ: Mapping[str, str]) -> World | None:
    """Rank, size and a name for the job from the environment alone; None if it does not say enough."""
    rank_text, size_text = _first(environ, _RANKS[:4]), _first(environ, _SIZES)
    job = _job_name(environ)
    if rank_text is None or size_text is None or job is None:
        return None
    rank, size = whole_number("the launcher's rank", rank_text), whole_number("the launcher's size", size_text)
    return World(rank, size, job, f"rank {rank} of {size} from the variables of {job.split()[0]}, no MPI loaded")


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _job_name(environ: Mapping[str, str]) -> str | None:
    if "PMIX_NAMESPACE" in environ and "OMPI_COMM_WORLD_SIZE" in environ:
        return f"PMIx {environ['PMIX_NAMESPACE']}"
    holder = _proxy_above(os.getppid()) or _holder_of(environ.get("PMI_FD", ""))
    if holder:
        return f"PMI {holder} {start_time(holder)} {environ.get('PMI_SPAWNED', '0')}"
    return None


def _proxy_above(pid: int) -> int | None:
    """The process of MPICH's or Intel MPI's launcher that started all ranks of this node, if it is an ancestor of ours."""
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name in _PROXIES:
            return pid
        pid = int(rest.split()[1])
    return None


def _holder_of(fd_text: str) -> int | None:
    """Process that made the launcher's end of the socket `fd_text`: the same one for all ranks of a node."""
    try:
        fd = int(fd_text)
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family != socket.AF_UNIX:
                return None
            pid = handover.peer_of(connection)[0]
    except (ValueError, OSError):
        return None
    return pid if start_time(pid) else None


def world_from_mpi() -> World:
    """Rank, size and a fresh token through the real MPI, which is finalised before this returns.

    Raises
    ------
    RuntimeError
        MPI cannot be loaded, or believes in a world of one where the launcher started several.
    """
    from ncclx_mpi.mpi4py_shim import real_mpi

    try:
        mpi = real_mpi()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            "a launcher of MPI started this process, but no MPI library can be loaded to meet the other ranks "
            f"({error}); install the launcher's own MPI for mpi4py, or use `ncclx run`"
        ) from error
    world = _introduce(mpi)
    _refuse_worlds_of_one(world.size, mpi.Get_library_version().split("\n")[0].strip("\0 "))
    return world


def _introduce(mpi: Any) -> World:
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_SINGLE)
    comm = mpi.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    token = comm.bcast(secrets.token_hex(16) if rank == 0 else None, root=0)
    mpi.Finalize()
    version = mpi.Get_library_version().split("\n")[0].strip("\0 ")
    return World(rank, size, f"MPI {token}", f"rank {rank} of {size} from {version}, finalised after the introduction")


def _refuse_worlds_of_one(size: int, version: str) -> None:
    """Each rank alone is the commonest failure of MPI installations: say so instead of computing N times the same.

    Raises
    ------
    RuntimeError
        MPI has a world of one, the launcher started more.
    """
    for name in (*_SIZES, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        started = int(os.environ.get(name, "1"))
        if size == 1 and started > 1:
            raise RuntimeError(
                f"{name} says that {started} ranks were started, but each is a world of one for {version}: this MPI library "
                "does not belong to the launcher. Use the mpiexec of that MPI, `srun --mpi=none`, or `ncclx run -n "
                f"{started}`, which need no MPI"
            )

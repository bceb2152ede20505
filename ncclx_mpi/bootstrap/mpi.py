"""Ranks that an ``mpiexec`` started, on one host or several.

MPI only introduces the ranks to each other and then carries nothing. On one host it need not even be loaded, most often: the launcher's
variables say rank and size, and a name that only this job has is Open MPI's ``PMIX_NAMESPACE``, or the process of MPICH's and
Intel MPI's launcher that started the ranks: an ancestor, or who holds the other end of ``PMI_FD``. Where there is no such
name, or ranks are on several hosts, the real ``mpi4py.MPI`` is initialised, by which ranks tell each other what they need
(:mod:`ncclx_mpi.bootstrap.introduction`), and is finalised at once, which also removes its files from /dev/shm.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ncclx_mpi import late
from ncclx_mpi.bootstrap import singleton
from ncclx_mpi.bootstrap.membership import Membership
from numba_kernels.rows import NamedTuple
from transports.shm.arena import start_time

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap import meet
    from ncclx_mpi.bootstrap.meet_hosts import Place
else:
    meet = late.module("ncclx_mpi.bootstrap.meet")

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")
_PROXIES = ("hydra_pmi_proxy", "pmi_proxy")


class World(NamedTuple):
    """What a launcher, or MPI itself, said.

    Attributes
    ----------
    rank, size
        Of the world.
    job
        A name that only this job has.
    detail
        How this is known, for people.
    token, place
        By what hosts know each other, and where this rank is, if ranks are on several.
    """

    rank: int
    size: int
    job: str
    detail: str
    token: str = ""
    place: Place | None = None


def is_present(environ: Mapping[str, str]) -> bool:
    """Are the variables of an MPI launcher set?"""
    return any(name in environ for name in _RANKS)


def join() -> Membership:
    """Meet the other ranks of this ``mpiexec``."""
    world = world_from_variables(os.environ)
    if world is None or _local_size(os.environ, world.size) < world.size:
        world = world_from_mpi()
    if world.size == 1:
        return singleton.join(world.detail)
    if world.place is None:
        return meet.meet(world.rank, world.size, world.job, "mpi", world.detail)
    from ncclx_mpi.bootstrap.meet_hosts import meet_on_hosts

    return meet_on_hosts(world.place, world.job, "mpi", world.detail, world.token)


def world_from_variables(environ: Mapping[str, str]) -> World | None:
    """Rank, size and a name for the job from the environment alone; None if it does not say enough."""
    rank_text, size_text = _first(environ, _RANKS[:4]), _first(environ, _SIZES)
    job = _job_name(environ)
    if rank_text is None or size_text is None or job is None:
        return None
    rank, size = meet.whole_number("the launcher's rank", rank_text), meet.whole_number("the launcher's size", size_text)
    return World(rank, size, job, f"rank {rank} of {size} from the variables of {job.split()[0]}, no MPI loaded")


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _local_size(environ: Mapping[str, str], size: int) -> int:
    """Ranks on this host, all of them if the launcher does not say."""
    return meet.whole_number("the launcher's number of ranks on this host", _first(environ, _LOCAL_SIZES) or str(size))


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
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name in _PROXIES:
            return pid
        pid = int(rest.split()[1])
    return None


def _holder_of(fd_text: str) -> int | None:
    """Process that made the launcher's end of the socket `fd_text`: the same one for all ranks of a node."""
    import socket

    from ncclx_mpi.bootstrap import handover

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
    """Rank, size, a fresh token and the hosts through the real MPI, which is finalised before this returns.

    Raises
    ------
    RuntimeError
        MPI cannot be loaded, believes in a world of one where the launcher started several, or hosts do not reach each other.
    """
    from ncclx_mpi.mpi4py_shim import real_mpi
    from transports.ucx import library

    try:
        with library.quiet():  # the UCX of that MPI is ours afterwards
            mpi = real_mpi()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            "a launcher of MPI started this process, but no MPI library can be loaded to meet the other ranks "
            f"({error}); install the launcher's own MPI for mpi4py, or use `ncclx run` (with `--hosts` on several hosts) or srun"
        ) from error
    with library.quiet():
        world = _introduce(mpi)
    _refuse_worlds_of_one(world.size, _version(mpi))
    return world


def _introduce(mpi: Any) -> World:
    from ncclx_mpi.bootstrap.introduction import introduce

    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_SINGLE)
    rank, size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    try:
        known = introduce(mpi.COMM_WORLD)
    finally:
        mpi.Finalize()
    where = f", on {known.place.nnodes} nodes" if known.place else ""
    detail = f"rank {rank} of {size}{where} from {_version(mpi)}, finalised after the introduction"
    return World(rank, size, f"MPI {known.token}", detail, known.token, known.place)


def _version(mpi: Any) -> str:
    return str(mpi.Get_library_version()).split("\n")[0].strip("\0 ")


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

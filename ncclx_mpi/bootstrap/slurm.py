"""Ranks that ``srun`` started, on one node or several; needs no MPI.

A job step is meant, not the shell of a batch script or of ``salloc``: only ``srun`` sets ``SLURM_STEP_ID`` with a task number.
Where an MPI launcher runs below ``srun`` (it starts one daemon a node), its own variables differ from Slurm's, and win.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncclx_mpi import late
from ncclx_mpi.bootstrap.membership import Membership

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap import meet
    from ncclx_mpi.bootstrap.meet_hosts import Place
else:
    meet = late.module("ncclx_mpi.bootstrap.meet")

_RANKS_OF_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_MOST_NODES = 100_000
_SIZES_OF_MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def is_present(environ: Mapping[str, str]) -> bool:
    """Is this process a task of an ``srun`` step?"""
    if not all(name in environ for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")):
        return False
    rank, size = environ["SLURM_PROCID"], _size(environ)
    ranks = [environ[name] for name in _RANKS_OF_MPI if name in environ]
    sizes = [environ[name] for name in _SIZES_OF_MPI if name in environ]
    return all(other == rank for other in ranks) and all(other == size for other in sizes)


def _size(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1"


def join() -> Membership:
    """Meet under the number of the job step."""
    environ = os.environ
    rank = meet.whole_number("SLURM_PROCID", environ["SLURM_PROCID"])
    size = meet.whole_number("SLURM_STEP_NUM_TASKS", _size(environ))
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    nodes = meet.whole_number("SLURM_STEP_NUM_NODES", environ.get("SLURM_STEP_NUM_NODES", "1"))
    attempt, detail = environ.get("SLURM_RESTART_COUNT", "0"), f"task {rank} of {size} of job step {step}"
    if nodes == 1:
        return meet.meet(rank, size, f"slurm {step} {environ.get('SLURM_NODEID', '0')} {attempt}", "slurm", detail)
    from ncclx_mpi.bootstrap.meet_hosts import meet_on_hosts

    return meet_on_hosts(_place(environ, rank, size, nodes), f"slurm {step} {attempt}", "slurm", f"{detail}, on {nodes} nodes")


def _place(environ: Mapping[str, str], rank: int, size: int, nodes: int) -> Place:
    from ncclx_mpi.bootstrap.meet_hosts import Place

    node = meet.whole_number("SLURM_NODEID", environ.get("SLURM_NODEID", ""))
    tasks = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(tasks) != nodes or sum(tasks) != size or not 0 <= node < nodes:
        raise RuntimeError(
            f"SLURM_STEP_TASKS_PER_NODE={environ.get('SLURM_STEP_TASKS_PER_NODE')!r} does not describe {size} tasks on {nodes} nodes, "
            f"of which this is {node}"
        )
    local_rank = meet.whole_number("SLURM_LOCALID", environ.get("SLURM_LOCALID", ""))
    return Place(rank, size, local_rank, tasks[node], node, nodes, _first_address(environ))


def tasks_per_node(text: str) -> list[int]:
    """Tasks of each node, of ``2(x3),1``; nothing if it is no such text."""
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word)
        if match is None or len(found) + int(match[2] or 1) > _MOST_NODES:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def first_host(text: str) -> str:
    """The first host of ``rack[07-12,15]n[1-2],login``."""
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", text)[0])


def _first_address(environ: Mapping[str, str]) -> str:
    """By what the first node of the step is reached: its name, or where names mean nothing, the address of the node that ran ``srun``."""
    import socket

    name = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    try:
        socket.getaddrinfo(name or None, 1)
    except OSError:
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", name)
    return name

"""Ranks that ``srun`` started on one node; needs no MPI.

A job step is meant, not the shell of a batch script or of ``salloc``: only ``srun`` sets ``SLURM_STEP_ID`` with a task number.
Where an MPI launcher runs below ``srun`` (it starts one daemon a node), its own variables differ from Slurm's, and win.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ncclx_mpi.bootstrap.meet import meet, refuse_several_nodes, whole_number
from ncclx_mpi.bootstrap.membership import Membership

_RANKS_OF_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
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
    rank = whole_number("SLURM_PROCID", environ["SLURM_PROCID"])
    size = whole_number("SLURM_STEP_NUM_TASKS", _size(environ))
    refuse_several_nodes(_tasks_here(environ, size), size, "srun")
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    job = f"slurm {step} {environ.get('SLURM_NODEID', '0')} {environ.get('SLURM_RESTART_COUNT', '0')}"
    return meet(rank, size, job, "slurm", f"task {rank} of {size} of job step {step}")


def _tasks_here(environ: Mapping[str, str], size: int) -> int:
    """Tasks of the step on this node: all, unless Slurm says that it has several nodes."""
    nodes = whole_number("SLURM_STEP_NUM_NODES", environ.get("SLURM_STEP_NUM_NODES", "1"))
    return size if nodes == 1 else size // nodes

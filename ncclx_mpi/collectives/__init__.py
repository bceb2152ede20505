"""Collectives on native communicators and contiguous memory.

``name(comm, ...)`` blocks; ``prepare.name(...)`` returns a :class:`Collective` that can be started again and again. Arguments and in-place
rules: :mod:`ncclx_mpi.collectives.prepare`. An algorithm is one file in the folder of its collective: ``shm_*`` and ``cma*`` are
compiled kernels on the arena, all others are plans.
"""

from __future__ import annotations

from ncclx_mpi.collectives.agreement import Agreement
from ncclx_mpi.collectives.blocking import (
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    barrier,
    bcast,
    check,
    exscan,
    gather,
    gather_words,
    gatherv,
    in_rows,
    neighbor_allgather,
    neighbor_alltoall,
    reduce,
    reduce_scatter,
    reduce_scatter_block,
    run,
    scan,
    scatter,
    scatterv,
)
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.intergroup import Sides
from ncclx_mpi.collectives.neighborhood import Neighborhood
from ncclx_mpi.collectives.nonblocking import Described, Pending
from ncclx_mpi.collectives.shm_leaving import part, watch
from ncclx_mpi.collectives.shm_mismatch import disagreement

__all__ = [
    "Agreement", "Collective", "Described", "Neighborhood", "Pending", "Sides", "allgather", "allgatherv", "allreduce", "alltoall",
    "alltoallv", "barrier", "bcast", "check", "disagreement", "exscan", "gather", "gather_words", "gatherv", "in_rows", "neighbor_allgather",
    "neighbor_alltoall", "part", "reduce", "reduce_scatter", "reduce_scatter_block", "run", "scan", "scatter", "scatterv", "watch",
]  # fmt: skip

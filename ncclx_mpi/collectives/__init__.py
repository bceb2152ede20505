"""Collectives on native communicators and contiguous memory.

``name(comm, ...)`` blocks; ``start_name(...)`` returns a running :class:`Collective`; ``prepare_name(...)`` returns one that can be
started again and again. Arguments and in-place rules: :mod:`ncclx_mpi.collectives.prepare`. An algorithm is one file in
the folder of its collective: ``shm_*`` and ``cma*`` are compiled kernels on the arena, all others are plans.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

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
    gatherv,
    neighbor_allgather,
    neighbor_alltoall,
    reduce,
    reduce_scatter,
    reduce_scatter_block,
    scan,
    scatter,
    scatterv,
)
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.neighborhood import Neighborhood
from ncclx_mpi.collectives.nonblocking import Described, Pending
from ncclx_mpi.collectives.prepare import (
    prepare_allgather,
    prepare_allgatherv,
    prepare_allreduce,
    prepare_alltoall,
    prepare_alltoallv,
    prepare_barrier,
    prepare_bcast,
    prepare_exscan,
    prepare_gather,
    prepare_gatherv,
    prepare_neighbor_allgather,
    prepare_neighbor_alltoall,
    prepare_reduce,
    prepare_reduce_scatter,
    prepare_reduce_scatter_block,
    prepare_scan,
    prepare_scatter,
    prepare_scatterv,
)
from ncclx_mpi.collectives.shm_leaving import part, watch
from ncclx_mpi.collectives.shm_mismatch import disagreement

_Arguments = ParamSpec("_Arguments")


def _starting(prepare: Callable[_Arguments, Collective]) -> Callable[_Arguments, Collective]:
    @functools.wraps(prepare)
    def start(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Collective:
        return prepare(*args, **kwargs).start()

    return start


start_allgather = _starting(prepare_allgather)
start_allgatherv = _starting(prepare_allgatherv)
start_allreduce = _starting(prepare_allreduce)
start_alltoall = _starting(prepare_alltoall)
start_alltoallv = _starting(prepare_alltoallv)
start_barrier = _starting(prepare_barrier)
start_bcast = _starting(prepare_bcast)
start_exscan = _starting(prepare_exscan)
start_gather = _starting(prepare_gather)
start_gatherv = _starting(prepare_gatherv)
start_reduce = _starting(prepare_reduce)
start_reduce_scatter = _starting(prepare_reduce_scatter)
start_reduce_scatter_block = _starting(prepare_reduce_scatter_block)
start_scan = _starting(prepare_scan)
start_scatter = _starting(prepare_scatter)
start_scatterv = _starting(prepare_scatterv)

__all__ = [
    "Collective", "Described", "Neighborhood", "Pending", "allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier",
    "bcast", "check", "disagreement", "exscan",
    "gather", "gatherv", "neighbor_allgather", "neighbor_alltoall", "part", "prepare_allgather", "prepare_allgatherv",
    "prepare_allreduce", "prepare_alltoall", "prepare_alltoallv", "prepare_barrier", "prepare_bcast", "prepare_exscan",
    "prepare_gather", "prepare_gatherv", "prepare_neighbor_allgather", "prepare_neighbor_alltoall", "prepare_reduce",
    "prepare_reduce_scatter", "prepare_reduce_scatter_block", "prepare_scan", "prepare_scatter",
    "prepare_scatterv", "reduce", "reduce_scatter", "reduce_scatter_block", "scan", "scatter", "scatterv",
    "start_allgather", "start_allgatherv", "start_allreduce", "start_alltoall", "start_alltoallv", "start_barrier",
    "start_bcast", "start_exscan", "start_gather", "start_gatherv", "start_reduce", "start_reduce_scatter",
    "start_reduce_scatter_block", "start_scan", "start_scatter", "start_scatterv", "watch",
]  # fmt: skip

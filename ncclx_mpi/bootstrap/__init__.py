"""How a process finds the other ranks of its job: one file per way, the first that is present wins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

from ncclx_mpi.bootstrap import launcher, mpi, singleton, slurm, torchrun
from ncclx_mpi.bootstrap.membership import Membership
from ncclx_mpi.compile_cache import on_demand, warm

WAYS: tuple[ModuleType, ...] = (launcher, torchrun, slurm, mpi, singleton)

__all__ = ["WAYS", "Membership", "detect", "join"]


def detect(environ: Mapping[str, str] | None = None) -> str:
    """Name of the way by which :func:`join` would go."""
    return _name(_choose(os.environ if environ is None else environ))


def join() -> Membership:
    """Join the job that started this process, and enter the arena as one of its ranks.

    Raises
    ------
    RuntimeError
        The job cannot be joined; the message says which variable or peer is at fault, and what to do.
    TimeoutError
        The other ranks did not come in time.
    """
    way = _choose(os.environ)
    if way is not launcher:
        warm.ensure()
    on_demand.install()
    membership: Membership = way.join()
    membership.enter()
    return membership


def _choose(environ: Mapping[str, str]) -> ModuleType:
    return next(way for way in WAYS if way.is_present(environ))


def _name(way: ModuleType) -> str:
    return way.__name__.rpartition(".")[2]

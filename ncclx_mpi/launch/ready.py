"""What a process does before it forks ranks, so that not each of them has to."""

from __future__ import annotations

from collections.abc import Collection

from ncclx_mpi import mpi4py_shim
from ncclx_mpi.compile_cache import warm
from ncclx_mpi.launch.imports import EVERYTHING
from numba_kernels.clock import ticks_per_us


def make_ready(nranks: int, spans_hosts: bool = False, also: Collection[str] = EVERYTHING) -> None:
    """Import the engine for so many ranks, and `also` what they may use, time the clock, and have ``mpi4py.MPI`` mean ours."""
    warm.load(nranks, spans_hosts, also)
    ticks_per_us()
    mpi4py_shim.install()

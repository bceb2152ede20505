"""What a process does before it forks ranks, so that not each of them has to."""

from __future__ import annotations

from ncclx_mpi import mpi4py_shim
from ncclx_mpi.compile_cache import warm
from numba_kernels.clock import ticks_per_us


def make_ready(nranks: int, spans_hosts: bool = False, with_numpy: bool = True) -> None:
    """Import the engine for so many ranks, and NumPy if they may use it, time the clock, and have ``mpi4py.MPI`` mean ours."""
    warm.load(nranks, spans_hosts, with_numpy)
    ticks_per_us()
    mpi4py_shim.install()

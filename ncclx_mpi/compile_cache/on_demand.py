"""Compiles what a program calls and the cache does not hold, in a process that has all cores for it.

A rank may have threads, so it cannot fork workers; and a rank that compiles imports the compiler, and keeps it. So it asks another process,
``ncclx warm``, which forks them, and links what that leaves in the cache. Where that fails the rank compiles for itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from ncclx_mpi import process
from numba_kernels import cache_files, jit

if TYPE_CHECKING:
    from numba_kernels.jit import Kernel

_P2P = "ncclx_mpi.p2p"
_TOGETHER = (
    tuple(
        f"numba_kernels.{name}" for name in ("pack.pack", "pack.unpack_range", "typemap.list_strided", "typemap.regular_step")
    ),
    tuple(
        f"{_P2P}.{name}"
        for name in (
            "request_pool.start_receive_array", "request_pool.start_send_array", "completing.complete_all", "completing.complete_one",
        )
    ),
    tuple(
        f"{_P2P}.object_requests.{name}"
        for name in ("start_receive_object", "start_send_plain", "complete_object", "complete_all_objects")
    ),
)  # fmt: skip
"""Whoever calls one of a row will call others: each for itself would take the time of a start more."""


def install() -> None:
    """Have functions that nothing was compiled of yet compiled in this way, from now on."""
    jit.compile_elsewhere(_ask)


def _ask(wanted: Kernel) -> None:
    """Have a function compiled into the cache by another process; where it is not in there then, something was in the way."""
    import subprocess  # few programs come here

    if not sys.executable:  # an interpreter inside a program
        return
    words = ["--quiet", "--only", wanted.py_func.__module__, wanted.name, str(os.getpid())]
    command = [sys.executable, "-m", "ncclx_mpi", "warm", *words]
    settings = {cache_files.CACHE_VARIABLE: cache_files.cache_root(), "PYTHONSAFEPATH": "1"}  # no module of the program's folder
    environ = {**process.environment_of_helpers(os.environ), **settings}
    with contextlib.suppress(OSError):
        subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def compile_named(module: str, name: str, parent: int) -> bool:
    """Compile the function of this name, and what goes with it, on all cores; returns whether all went well. Ends with its parent."""
    from ncclx_mpi.compile_cache import warm

    process.end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says what was interrupted
    row = next((row for row in _TOGETHER if name in row), (name,))
    for needed in (module, *(other.rpartition(".")[0] for other in row if other != name)):
        importlib.import_module(needed)
    with jit.one_at_a_time():
        return warm.compile_all(declared for declared in jit.entries() if declared.name in row and not declared.has_image())

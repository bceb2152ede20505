"""Everything that start-up does once: import the heavy modules, and compile what the cache does not hold yet."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib
import os
import pkgutil
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclx_mpi.launch import process, prune, tasks

_ENGINE_PACKAGES = (
    "transports.shm",
    "ncclx_mpi.p2p",
    "ncclx_mpi.collectives",
    "ncclx_mpi.buffers",
    "ncclx_mpi.api",
    "ncclx_mpi.extensions",
)
_MOST_COMPILERS = 8
_ALWAYS_USED = ("transports.", "numba_kernels.pyobject.", "ncclx_mpi.p2p.", "ncclx_mpi.collectives.fast.barrier_now")
"""What every rank uses, at its start and its end if nowhere else."""


def import_engine() -> None:
    """Import all modules that ``ncclx_mpi.MPI`` needs, but not that one: its import starts the communication."""
    for name in ("ncclx_mpi.errors", "ncclx_mpi.rc", "ncclx_mpi.runtime", *_ENGINE_PACKAGES):
        package = _import(name)
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            _import(module.name)


def _import(name: str) -> object:
    """Import a module ahead of time; if that fails, the rank that needs it will say so, with its traceback."""
    with contextlib.suppress(Exception):
        return importlib.import_module(name)
    return None


def is_warm() -> bool:
    """Does the cache hold everything for this version, this Python and this processor?"""
    return _mark().exists()


def _mark() -> Path:
    from numba_kernels import jit
    from numba_kernels.reduce import native as reduce_native

    total = hashlib.sha256(f"{sys.implementation.cache_tag} {platform.machine()} {_cpu()}".encode())
    for declared in sorted(jit.entries(), key=lambda kernel: kernel.name):
        total.update(f"{declared.name} {declared.signature} {jit.module_digest(_file_of(declared))}".encode())
    total.update(jit.module_digest(str(reduce_native.__file__)).encode())
    return jit.cache_root() / f"{prune.MARK}{total.hexdigest()[:20]}"


def _file_of(declared: Any) -> str:
    name: str = declared.dispatcher.py_func.__code__.co_filename
    return name


def _cpu() -> str:
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()}"


def warm_up(announce: bool = True) -> float:
    """Import the engine and fill the cache if it is cold. Returns the seconds spent compiling, 0 with a warm cache.

    One process of a node compiles; others that start at the same time wait for it.
    """
    from numba_kernels import jit

    import_engine()
    if is_warm():
        prune.note_use(_mark())
        return 0.0
    start = time.monotonic()
    with _one_at_a_time(jit.cache_root() / "lock"):
        if is_warm():
            return time.monotonic() - start
        if announce:
            print(
                f"ncclx_mpi: compiling {len(jit.entries())} engine functions into {jit.cache_root()} (once for this version and "
                "processor; up to a minute on two cores)",
                file=sys.stderr,
                flush=True,
            )
        if _compile_all():
            _keep(announce)
    seconds = time.monotonic() - start
    if announce:
        print(f"ncclx_mpi: compiled in {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def _keep(announce: bool) -> None:
    """Note that the cache holds everything. Where the disk is full it does not: each start compiles anew, and ranks what they call."""
    try:
        prune.write_mark(_mark())
    except OSError as reason:
        if announce:
            text = f"{_mark().parent}: {reason.strerror}; NCCLX_MPI_CACHE_DIR names another folder"
            print(f"ncclx_mpi: what was compiled cannot be kept in {text}", file=sys.stderr, flush=True)


def ensure() -> None:
    """Have a cold cache filled before this process goes on, by a process that can fork: this one may have threads.

    Where that fails, each function is compiled when it is first called.
    """
    import_engine()
    if not is_warm():
        command = [sys.executable, "-m", "ncclx_mpi", "warm", "--quiet"]
        with contextlib.suppress(OSError):
            environ = process.environment_of_helpers(os.environ)
            subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, check=False)


def _compile_all() -> bool:
    """Compile on all cores, callees before their callers: each function once. Returns whether all went well."""
    from numba_kernels import jit, reduce

    functions = jit.callees_first(declared.dispatcher for declared in jit.entries())
    place = {function: number for number, function in enumerate(functions)}
    work = [
        tasks.Task(
            functools.partial(_compile, function),
            frozenset(place[callee] for callee in jit.callees(function) if place[callee] < own),
        )
        for function, own in place.items()
    ]
    work.append(tasks.Task(lambda: reduce.warm() > 0))
    return tasks.run_all(work, min(len(os.sched_getaffinity(0)), _MOST_COMPILERS))


def _compile(function: Any) -> bool:
    """Compile a kernel, or load it; where that fails, who calls it will say why."""
    from numba_kernels import jit

    try:
        jit.compile_declared(function)
    except Exception as error:
        print(f"ncclx_mpi: {function.py_func.__name__} does not compile: {type(error).__name__}", file=sys.stderr)
        return False
    return True


def load(nranks: int) -> None:
    """Import the engine and load its functions into this process, and set it aside from garbage collection, before forking ranks.

    With a core for each of the `nranks` ranks, only what all of them use is loaded: a function takes some 5 ms, of 90 a program calls
    a few, and each rank loads those at the first call, all ranks at once. Ranks that share cores get everything ready made.
    """
    from numba_kernels import jit

    gc.disable()
    try:
        warm_up()
        has_cores = nranks <= len(os.sched_getaffinity(0))
        for declared in jit.entries():
            if not has_cores or declared.name.startswith(_ALWAYS_USED):
                _load(declared)
        gc.freeze()
    finally:
        gc.enable()


def _load(declared: Any) -> None:
    """Load an entry; where that fails, who calls it will say why."""
    with contextlib.suppress(Exception):
        declared.compile()


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the node's lock on the cache."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Everything that start-up does once: import the heavy modules, and compile what the cache does not hold yet."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import late, process
from ncclx_mpi.compile_cache import bytecode, prune, verdict
from numba_kernels.sha256 import sha256

if TYPE_CHECKING:
    from ncclx_mpi.compile_cache import bar, tasks
else:
    bar, tasks = late.module("ncclx_mpi.compile_cache.bar"), late.module("ncclx_mpi.compile_cache.tasks")

_ENGINE_PACKAGES = (
    "transports.shm",
    "ncclx_mpi.p2p",
    "ncclx_mpi.collectives",
    "ncclx_mpi.buffers",
    "ncclx_mpi.arguments",
    "ncclx_mpi.api",
    "ncclx_mpi.extensions",
)
_AT_START = (
    "ncclx_mpi.api.public", "ncclx_mpi.p2p.forced", "numba_kernels.cuda.cache", "transports.shm.transport",
)  # fmt: skip
"""What every rank imports at its start."""
_BESIDE = ("ncclx_mpi.collector", "ncclx_mpi.cli.run", "ncclx_mpi.launch.local", "ncclx_mpi.api.window", "ncclx_mpi.api.file")
"""What is imported before that, by launchers, and where a program names what only some use."""
_TOGETHER = (
    (
        "ncclx_mpi.rma", "ncclx_mpi.api.window", "ncclx_mpi.api.fast_windows", "ncclx_mpi.p2p.remote_memory", "ncclx_mpi.buffers.export",
        "ncclx_mpi.buffers.learned",
    ),
    ("ncclx_mpi.api.memory", "numba_kernels.pybuffers"),
    ("ncclx_mpi.io", "ncclx_mpi.api.file"),
    (
        *_ENGINE_PACKAGES, "numba_kernels.", "transports", "ncclx_mpi.algorithms", "ncclx_mpi.bootstrap", "ncclx_mpi.compile_cache",
        "ncclx_mpi.constants", "ncclx_mpi.gpu_memory", "ncclx_mpi.nodes", "ncclx_mpi.operations", "ncclx_mpi.runtime",
        "ncclx_mpi.state", "ncclx_mpi.typing",
    ),
)  # fmt: skip
"""How names begin of what is imported together: by a program with windows, with buffers, with files, and by every start; the first that
fits counts."""
_NOT_IMPORTED = ("ncclx_mpi.MPI", "ncclx_mpi.__main__", "ncclx_mpi.cli.script")
"""What starts something when it is imported."""
_FAR_PACKAGES = ("transports.tcp", "transports.ucx")
"""For jobs on several hosts only: the others do not import them."""
_WITH_FAR_PACKAGES = ("transports.granted",)
"""What these import, and simulated nodes: it is there or not, as they are."""
_MOST_COMPILERS = 8
_FEW_A_CORE = 32
"""Ranks of a core up to which each loads what it calls: a program that calls 25 functions then takes less time in all, by a third with 4
ranks on two cores, by nothing with 64 to 128."""
_ALWAYS_USED = (
    *(f"transports.shm.{name}." for name in ("lane", "bulk", "store_kind")),
    "transports.shm.arena._set_state",
    "numba_kernels.clock.",
    "numba_kernels.pyslots.empty_slots",
    *(f"ncclx_mpi.p2p.{name}." for name in ("arrivals", "inlined_arrivals", "leaving", "progress", "rendezvous", "requests")),
    "ncclx_mpi.p2p.keeping.let_go",
    "ncclx_mpi.p2p.waiting.wait_word_slowly",
    "ncclx_mpi.collectives.shm_leaving.",
    "ncclx_mpi.collectives.fast.barrier_now",
)
"""What every rank uses, at its start and its end if nowhere else: loaded before the ranks are forked, so not by each of them."""
_USED_WITH_NUMPY = ("numba_kernels.pyobject.",)
_FIRST = (
    "transports.",
    "numba_kernels.clock.",
    "numba_kernels.pyobject.",
    "ncclx_mpi.p2p.",
    "ncclx_mpi.collectives.fast.barrier_now",
    "numba_kernels.pickling.",
    "numba_kernels.unpickling.",
    *(f"ncclx_mpi.collectives.{name}.shm_object." for name in ("bcast", "gather", "allgather")),
)
"""What most programs use, a third of the work: compiled before the first start. The rest is when it is first called."""
_AT_FIRST_CALL = (
    *(
        f"ncclx_mpi.p2p.{name}"
        for name in (
            "alarm.", "completing.", "fast.receive_matched_array", "fast.replace_array", "fast_derived.", "gaps.", "joined.",
            "network_progress.", "object_requests.complete_", "object_requests.start_", "objects.exchange_plain", "progress_thread.",
            "remote_memory.", "request_pool.",
        )
    ),
    "transports.shm.slots.",
)  # fmt: skip
"""What of that a program may well not use, and takes long to compile: one that does waits no longer in all than if it were first."""


def import_engine() -> None:
    """Import all modules that ``ncclx_mpi.MPI`` needs, but not that one: its import starts the communication.

    What is in a folder ``device`` waits for the first array on a device.
    """
    from ncclx_mpi import rc

    simulated = [] if getattr(rc, "topology") == "machine" else ["transports.virtual"]  # noqa: B009 - rc answers by its class
    for name in ("ncclx_mpi.errors", "ncclx_mpi.rc", "ncclx_mpi.runtime", *_ENGINE_PACKAGES, *simulated):
        _import_package(name)


def _modules_in_groups() -> list[list[str]]:
    """Import what starts import, of ranks and of launchers; names of our modules, those that are imported together in one list."""
    from numba_kernels import digests

    for name in (*_AT_START, *_BESIDE):
        _import(name)
    groups: dict[Any, list[str]] = {name: [name] for name in _NOT_IMPORTED}
    for name in list(sys.modules):
        if name.partition(".")[0] in digests.PACKAGES:
            group = next((names for names in _TOGETHER if name.startswith(names)), name)
            groups.setdefault(group, []).append(name)
    return list(groups.values())


def _import_package(name: str) -> None:
    import pkgutil

    package = _import(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
        if "device" not in module.name.split("."):
            _import(module.name)


def _import(name: str) -> object:
    """Import a module ahead of time; if that fails, the rank that needs it will say so, with its traceback."""
    with contextlib.suppress(Exception):
        return importlib.import_module(name)
    return None


def is_warm(everything: bool = False) -> bool:
    """Does the cache hold what most programs use, or everything, for this version, this Python and this processor?

    What most programs use may have come with the installation instead.
    """
    return _find_mark(everything) is not None or (not everything and _is_shipped())


def _find_all(everything: bool) -> bool:
    """Whether the cache holds it all, found by importing the engine; if so, note what later starts need not look for."""
    from numba_kernels import digests

    groups = _modules_in_groups()
    import_engine()
    if not is_warm(everything):
        return False
    if mark := _find_mark(everything):
        prune.note_use(mark)
    digests.keep()
    bytecode.keep(groups)
    verdict.keep(_find_mark(False))
    return True


def _is_shipped() -> bool:
    from numba_kernels import shipped
    from numba_kernels.reduce import natives

    return all(declared.is_shipped() for declared in _chosen(False)) and all(
        shipped.find(declared.sources, declared.image_name) for declared in natives()
    )


def _find_mark(everything: bool) -> str | None:
    marks = [_mark(True)] if everything else [_mark(True), _mark(False)]
    return next((mark for mark in marks if os.path.exists(mark)), None)


def _chosen(everything: bool) -> list[Any]:
    """Return the entries that are to be compiled ahead, without those for several hosts: whether these are declared depends on the job."""
    from numba_kernels import jit

    engine = [declared for declared in jit.entries() if not declared.name.startswith((*_FAR_PACKAGES, *_WITH_FAR_PACKAGES))]
    return [each for each in engine if everything or (each.name.startswith(_FIRST) and not each.name.startswith(_AT_FIRST_CALL))]


def _chosen_for_hosts(packages: tuple[str, ...]) -> list[Any]:
    """Return the entries of transports for jobs on several hosts."""
    from numba_kernels import jit

    for package in packages:
        _import_package(package)
    return [declared for declared in jit.entries() if declared.name.startswith((*packages, *_WITH_FAR_PACKAGES))]


def _mark(everything: bool) -> str:
    from numba_kernels import cache_files, digests, processor
    from numba_kernels.reduce import native as reduce_native

    total = sha256(f"{sys.implementation.cache_tag} {processor.name()}".encode())
    for declared in sorted(_chosen(everything), key=lambda kernel: kernel.name):
        total.update(f"{declared.name} {declared.signature} {digests.module_digest(_file_of(declared))}".encode())
    total.update(digests.module_digest(str(reduce_native.__file__)).encode())
    if everything:
        for file in _files_of_far_transports():
            total.update(digests.module_digest(file).encode())
    return os.path.join(cache_files.cache_root(), f"{prune.MARK}{total.hexdigest()[:20]}")


def _file_of(declared: Any) -> str:
    name: str = declared.py_func.__code__.co_filename
    return name


def _files_of_far_transports() -> list[str]:
    """The modules that import all others of their packages, which are not imported for that."""
    folder = importlib.import_module("transports").__path__[0]
    return [os.path.join(folder, package.rpartition(".")[2], "transport.py") for package in _FAR_PACKAGES]


def warm_up(announce: bool = True, everything: bool = False) -> float:
    """Import the engine and fill the cache if it is cold. Returns the seconds spent compiling, 0 with a warm cache.

    One process of a node compiles; others that start at the same time wait for it. What is left out without `everything` is compiled
    when a program first calls it.
    """
    from numba_kernels import cache_files, digests, jit

    if not everything and verdict.is_warm():
        for name in _AT_START:
            _import(name)
        return 0.0
    if _find_all(everything):
        return 0.0
    start = time.monotonic()
    with jit.one_at_a_time():
        if is_warm(everything):
            return time.monotonic() - start
        chosen = [*_chosen(everything), *(_chosen_for_hosts(_FAR_PACKAGES) if everything else ())]
        if announce:
            print(
                f"ncclx_mpi: compiling {len(chosen)} of {len(jit.entries())} functions into {cache_files.cache_root()} (once for this "
                "version and processor; a core takes some 0.4 s for each)",
                file=sys.stderr,
                flush=True,
            )
        if compile_all(chosen, bar.Bar(sys.stderr) if announce else None, with_reductions=True):
            _keep(_mark(everything), announce)
        digests.keep()
    seconds = time.monotonic() - start
    if announce:
        print(f"ncclx_mpi: compiled in {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def _keep(mark: str, announce: bool) -> None:
    """Note what the cache holds. Where the disk is full it does not: each start compiles anew, and ranks what they call."""
    try:
        prune.write_mark(mark)
    except OSError as reason:
        if announce:
            text = f"{os.path.dirname(mark)}: {reason.strerror}; NCCLX_MPI_CACHE_DIR names another folder"
            print(f"ncclx_mpi: what was compiled cannot be kept in {text}", file=sys.stderr, flush=True)


def ensure(everything: bool = False) -> None:
    """Have a cold cache filled before this process goes on, by a process that can fork: this one may have threads.

    Where that fails, each function is compiled when it is first called.
    """
    if not everything and verdict.is_warm():
        return
    if not _find_all(everything):
        import subprocess

        command = [sys.executable, "-m", "ncclx_mpi", "warm", "--quiet", *([] if everything else ["--first"])]
        with contextlib.suppress(OSError):
            environ = process.environment_of_helpers(os.environ)
            subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, check=False)


def compile_all(chosen: Iterable[Any], progress: bar.Bar | None = None, with_reductions: bool = False) -> bool:
    """Compile entries on all cores, callees before their callers: each function once. Returns whether all went well."""
    from numba_kernels import jit

    functions = jit.callees_first(chosen)
    place = {function: number for number, function in enumerate(functions)}
    work = [
        tasks.Task(
            functools.partial(_compile, function),
            frozenset(place[callee] for callee in jit.callees(function) if place[callee] < own),
        )
        for function, own in place.items()
    ]
    if with_reductions:
        from numba_kernels import reduce

        work.append(tasks.Task(lambda: reduce.warm() > 0))
    processes = min(len(os.sched_getaffinity(0)), _MOST_COMPILERS)
    return tasks.run_all(work, processes, progress.show) if progress else tasks.run_all(work, processes)


def _compile(function: Any) -> bool:
    """Compile a kernel, or load it; where that fails, who calls it will say why."""
    from numba_kernels import jit

    try:
        jit.compile_declared(function)
    except Exception as error:
        print(f"ncclx_mpi: {function.py_func.__name__} does not compile: {type(error).__name__}", file=sys.stderr)
        return False
    return True


def load(nranks: int, spans_hosts: bool, also: Collection[str]) -> None:
    """Import the engine and load its functions into this process, and set it aside from garbage collection, before forking ranks.

    Of few ranks a core, `nranks` altogether, only what all of them use is loaded: a function takes some 0.4 ms, of 240 a program
    calls a few, and each rank loads those at the first call. Where more ranks share a core they get everything ready made. In a
    job that `spans_hosts`, they get what reaches other hosts, too. `also` are modules that a program may import.
    """
    from numba_kernels import clock, jit

    gc.disable()
    try:
        if with_numpy := "numpy" in also:  # first: what is imported then has not to learn of it later
            importlib.import_module("numpy")
        warm_up()
        clock.begin()
        for module in also:
            _import(module)
        if spans_hosts:
            _compile_for_hosts()
        are_few = nranks <= _FEW_A_CORE * len(os.sched_getaffinity(0))
        used = (*_ALWAYS_USED, *(_USED_WITH_NUMPY if with_numpy else ()))
        if not are_few:
            import_engine()
        for declared in jit.entries():
            if declared.name.startswith(used) or (not are_few and declared.is_cached()):
                _load(declared)
        _forget_finalizers()
        gc.freeze()
    finally:
        gc.enable()


def _compile_for_hosts() -> None:
    """Compile what the cache does not hold of what a job on several hosts needs beside the engine."""
    from ncclx_mpi import far_transport
    from numba_kernels import jit

    package = (f"transports.{far_transport.chosen()}",)
    if not all(declared.is_cached() for declared in _chosen_for_hosts(package)):
        with jit.one_at_a_time():
            compile_all(_chosen_for_hosts(package))


def _forget_finalizers() -> None:
    if "numba_kernels.compiling" in sys.modules:
        from numba_kernels import compiling

        compiling.forget_finalizers()


def _load(declared: Any) -> None:
    """Load an entry; where that fails, who calls it will say why."""
    with contextlib.suppress(Exception):
        declared.compile()

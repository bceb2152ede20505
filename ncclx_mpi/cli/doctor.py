"""``ncclx doctor``: checks, in the order in which things are needed, with a fix for each finding."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ncclx_mpi.cli.main import program_name

_OLDEST_PYTHON = (3, 11)


@dataclass
class Finding:
    """What a check found.

    Attributes
    ----------
    is_good
        Nothing to do; None for a warning: it works, but not as it could.
    text
        What was found.
    fix
        What to do about it.
    """

    is_good: bool | None
    text: str
    fix: str = ""


def main(args: list[str]) -> int:
    """Run all checks; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(prog=f"{program_name()} doctor", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="print findings with a fix only")
    options = parser.parse_args(args)
    failed = False
    for name, check in CHECKS.items():
        finding = _safely(check)
        failed |= finding.is_good is False
        if not options.quiet or finding.is_good is not True:
            word = {True: "ok", False: "FAIL", None: "warn"}[finding.is_good]
            print(f"{word:4}  {name}: {finding.text}" + (f"\n      fix: {finding.fix}" if finding.fix else ""))
        if finding.is_good is False and name in _ESSENTIAL:
            print("      the checks after this one need it; stopped")
            break
    return 1 if failed else 0


def _safely(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        return Finding(False, f"{type(error).__name__}: {error}", "report it, with the output of `ncclx info`")


def check_system() -> Finding:
    """Linux on a supported Python."""
    text = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if platform.system() != "Linux":
        return Finding(False, text, "the engine needs Linux; use a container or WSL 2")
    if sys.version_info < _OLDEST_PYTHON:
        return Finding(False, text, "use Python 3.11 or newer")
    return Finding(True, text)


def check_packages() -> Finding:
    """The three packages that we need."""
    missing = [name for name in ("numpy", "numba", "mpi4py") if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(False, f"missing {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Finding(True, "numpy, numba and mpi4py are there")


def check_cache() -> Finding:
    """A folder for compiled code that lasts, and that nobody else can write."""
    from numba_kernels import cache_files

    folder = cache_files.cache_root()
    source, wanted = next(cache_files.cache_candidates())
    if wanted == folder:
        return Finding(True, f"compiled code is kept in {folder}")
    named = f"{source}={os.environ[source]}" if source in os.environ else source
    why = cache_files.why_not(wanted)
    fix = (
        f"chmod go-w {wanted}"
        if "by others" in why
        else f"set {cache_files.CACHE_VARIABLE} to a folder that lasts and that you can write"
    )
    return Finding(None, f"{named}: {wanted} {why}; compiled code goes to {folder}", fix)


def check_compiled() -> Finding:
    """The engine compiles, or is compiled."""
    from ncclx_mpi.compile_cache import warm

    seconds = warm.warm_up(everything=True)
    if not warm.is_warm(everything=True):
        return Finding(False, "some engine functions do not compile", "report the lines above, with the output of `ncclx info`")
    return Finding(True, f"compiled in {seconds:.1f} s" if seconds else "everything is compiled")


def check_memory_file() -> Finding:
    """Anonymous memory files, in which the ranks meet."""
    from transports.shm.arena import Arena

    try:
        Arena.create(2).close()
    except OSError as error:
        fix = "allow memfd_create (seccomp) and raise the address-space limit: `ulimit -v unlimited`"
        return Finding(False, f"no arena can be mapped: {error}", fix)
    return Finding(True, "ranks can share memory")


def check_limits() -> Finding:
    """Limits that hit jobs of many ranks."""
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 512:
        return Finding(None, f"{files} open files allowed: about {files // 3} ranks", f"ulimit -n {hard_files}")
    if 0 <= processes < 256:
        return Finding(None, f"{processes} processes allowed", "ulimit -u 4096")
    return Finding(True, f"{files} open files allowed")


def check_pidfd() -> Finding:
    """Prompt notice of dead peers under foreign launchers."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        fix = "use `ncclx run`, which needs none, or allow pidfd_open (seccomp; Linux 5.3)"
        return Finding(None, f"no pidfd ({error.strerror}): under mpiexec or srun a dead rank may go unnoticed", fix)
    return Finding(True, "dead peers are noticed at once")


def check_launcher() -> Finding:
    """Which way a program started here would find its peers."""
    from ncclx_mpi import bootstrap

    way = bootstrap.detect()
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if way == "singleton" and tasks not in ("", "1"):
        return Finding(
            None,
            f"Slurm gave {tasks} tasks, but this shell is none of them: a program started here is a world of one",
            "start it with `srun python -m ncclx_mpi script.py` or `ncclx run -n N script.py`",
        )
    return Finding(True, f"programs started here join by: {way}")


def check_job() -> Finding:
    """Two ranks start, meet and end."""
    from ncclx_mpi import launch

    start = time.monotonic()
    sizes = launch.run(_meet, 2, timeout=60)
    if sizes != [2, 2]:
        return Finding(False, f"two ranks see worlds of {sizes}", "report it, with the output of `ncclx info`")
    return Finding(True, f"two ranks met and ended, {time.monotonic() - start:.2f} s")


def _meet() -> int:
    mpi: Any = importlib.import_module("ncclx_mpi.MPI")
    mpi.COMM_WORLD.Barrier()
    return int(mpi.COMM_WORLD.size)


def check_leftovers() -> Finding:
    """Jobs whose launcher is gone."""
    orphans = list(_orphans())
    if orphans:
        fix = f"kill {' '.join(map(str, orphans))}"
        return Finding(None, f"processes {orphans} belong to a job whose launcher has ended", fix)
    return Finding(True, "no forgotten ranks")


def _orphans() -> Iterator[int]:
    from ncclx_mpi.observe.describe import reports
    from ncclx_mpi.observe.view import jobs

    for job in jobs():
        views = job.open()
        if not os.path.exists(f"/proc/{job.holder}"):
            yield from (report.pid for report in reports(views, 1) if report.state == "running" and not report.process)
        for view in views:
            view.close()


def check_signals() -> Finding:
    """Signals that a parent had ignored stay ignored in all ranks."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = ", ".join(number.name for number in numbers if signal.getsignal(number) == signal.SIG_IGN)
    if ignored:
        return Finding(None, f"{ignored} ignored by this shell: jobs started here cannot be ended by it", "use another shell")
    return Finding(True, "jobs can be ended by signals")


def check_gpu() -> Finding:
    """Device arrays: a driver, and a compiler for the kernels."""
    from numba_kernels.cuda import driver as drivers
    from numba_kernels.cuda import pack
    from numba_kernels.cuda.ptx import CompilerMissing

    try:
        driver = drivers.find()
        architectures = {driver.arch(device) for device in range(driver.device_count())}
    except drivers.DriverError as error:
        return Finding(True, f"all arrays are the host's: {error}")
    try:
        for architecture in architectures:
            pack.KERNELS[0].cubin(architecture)
    except CompilerMissing as error:
        return Finding(
            None, f"device arrays go through the host, derived datatypes of them slowly: {error}", "pip install as it says"
        )
    names = ", ".join(f"sm_{major}{minor}" for major, minor in sorted(architectures))
    return Finding(True, f"{driver.device_count()} GPU(s) of {names}; kernels can be made")


CHECKS: dict[str, Callable[[], Finding]] = {
    "system": check_system,
    "packages": check_packages,
    "cache": check_cache,
    "compiler": check_compiled,
    "memory": check_memory_file,
    "limits": check_limits,
    "signals": check_signals,
    "death notice": check_pidfd,
    "launcher": check_launcher,
    "leftovers": check_leftovers,
    "GPU": check_gpu,
    "two ranks": check_job,
}
_ESSENTIAL = {"system", "packages", "compiler", "memory"}

"""Starts ``ncclx run`` for the tests of the launcher."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from numba_kernels import cache_files

HOME = str(Path(__file__).resolve().parents[2])


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ncclx_mpi", *words]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([HOME, *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCLX_MPI_R", "NCCLX_MPI_J"))}
    return {**kept, "PYTHONPATH": path, **more}


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    """``ncclx WORDS`` in the background, with pipes."""
    settings: dict[str, object] = {"stdin": subprocess.DEVNULL, "env": environment(), **options}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )


def run(*words: str, stdin: str = "", timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    """``ncclx WORDS`` to its end."""
    return subprocess.run(
        command(*words), input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=environment(**variables)
    )


def run_code(nranks: int, code: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    """``ncclx run -n NRANKS -c CODE`` to its end."""
    return run("run", "-n", str(nranks), "-c", code, *args, **options)  # type: ignore[arg-type]


def copy_cache(target: Path) -> None:
    """What is compiled already, in another folder; links, which take no room, where both are in one file system."""

    def link_or_copy(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileNotFoundError:
            pass  # of a process that compiles something: it has its last name now
        except OSError:
            shutil.copy2(source, target)

    shutil.copytree(cache_files.cache_root(), target, copy_function=link_or_copy, symlinks=True)


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next `count` lines of its output."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def all_gone(pids: list[int], seconds: float) -> bool:
    """Have all processes ended within so many seconds?"""
    end = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > end:
            for pid in filter(is_running, pids):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True

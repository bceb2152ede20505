"""Makes the images that a wheel carries (:mod:`numba_kernels.shipped`): everything is compiled for each level of processors, by Numba."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclx_mpi.compile_cache import warm
from numba_kernels import cache_files, jit, reduce, shipped


def make(home: Path, levels: Sequence[str]) -> None:
    """Compile everything for these levels into folders of `home`, in processes whose Numba compiles for them.

    Raises
    ------
    CalledProcessError
        One of them failed, and has said why.
    """
    for level in levels:
        with tempfile.TemporaryDirectory(prefix="ncclx_mpi-") as cache:
            target = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", cache_files.CACHE_VARIABLE: cache}
            words = [sys.executable, "-m", "ncclx_mpi", "warm", "--collect", str(home), "--level", level]
            subprocess.run(words, env={**os.environ, **target}, check=True)


def collect(home: Path, level: str) -> int:
    """Compile what the cache does not hold, and put the images of all into the folder of a level. Returns how many there are.

    What has no image is compiled when a program calls it, as from a checkout.
    """
    warm.warm_up(everything=True)
    reduce.warm(common_only=False)
    folder = Path(shipped.folder_of(str(home), level))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.image"):
        old.unlink()
    return put([*jit.entries(), *reduce.natives(common_only=False)], folder)


def put(functions: Iterable[jit.Kernel | jit.Native], folder: Path) -> int:
    """Copy the images of functions from the cache to the folder of a level. Returns how many there are."""
    made = [function for function in functions if os.path.exists(function.image)]
    for function in made:
        target = Path(shipped.place(str(folder), function.sources, function.image_name))
        target.write_bytes(cache_files.read_own(function.image))
    return len(made)

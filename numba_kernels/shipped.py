"""Images that come with the installation: machine code for a level of processors, with which a first start compiles nothing.

A wheel carries what was in the folder ``images`` when it was built (:mod:`ncclx_mpi.compile_cache.ship` fills it)::

    images / cpython-311-x86-64-v3 / fast.send_array-44-0123456789abcdef0123.image
             interpreter, level      function, digest of the sources that it was made from

What the cache holds is made for this very processor and comes first. Who has Numba compile for another processor (``NUMBA_CPU_NAME``) gets
nothing from here.
"""

from __future__ import annotations

import functools
import os
import sys

from numba_kernels import linking, processor

_V3 = "avx2 bmi1 bmi2 f16c fma abm movbe xsave"
LEVELS = {"x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": _V3}
"""Levels of the x86-64 psABI, the best one first, and what the kernel calls the instructions that each one asks for beyond x86-64-v2."""
HOME = os.path.join(os.path.dirname(__file__), "images")


def find(sources: str, name: str) -> str | None:
    """Return where the image of a function is that was made from these sources, and runs here; None if there is none."""
    return next((path for folder in _folders() if os.path.exists(path := place(folder, sources, name))), None)


def place(folder: str, sources: str, name: str) -> str:
    """Return where the image of a function lies in the folder of a level."""
    return os.path.join(folder, f"{name}-{sources}.image")


def folder_of(home: str, level: str) -> str:
    """Return the folder of a level for this interpreter."""
    return os.path.join(home, f"{sys.implementation.cache_tag}-{level}")


@functools.cache
def _folders() -> tuple[str, ...]:
    """Return the folders with images that run on this processor, the best one first."""
    if not linking.CAN_LINK or any(os.environ.get(variable) for variable in processor.VARIABLES):
        return ()
    folders = (folder_of(HOME, level) for level in LEVELS if processor.has(LEVELS[level].split()))
    return tuple(folder for folder in folders if os.path.isdir(folder))

"""mpi4py programs on an engine of their own: no MPI library carries a message.

``from ncclx_mpi import MPI`` is the twin of ``from mpi4py import MPI``. Importing this package is cheap: Numba is
imported, and the communication started, by the import of :mod:`ncclx_mpi.MPI`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

__version__ = "0.1.0"
__all__ = ["MPI", "launch", "rc"]


def _refuse_shadows() -> None:
    """Say it in one sentence when a file of the user hides one of our top-level packages."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("numba_kernels", "transports"):
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec else None
        if origin is None or os.path.dirname(os.path.dirname(os.path.abspath(origin))) != home:
            found = origin or "nothing"
            raise ImportError(
                f"ncclx_mpi needs its own package '{name}' from {home}, but Python finds {found}; "
                "rename that file or take its folder out of sys.path"
            )


_refuse_shadows()
importlib.import_module(f"{__name__}.compile_cache.bytecode").install()  # named, not imported: see below


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext ncclx_mpi``: the magic ``%%ranks``, which runs a cell on ranks."""
    _magics().load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext ncclx_mpi``: end the ranks."""
    _magics().unload(shell)


def _magics() -> Any:
    """Named, not imported: what was compiled is good for as long as what this file imports."""
    return importlib.import_module(f"{__name__}.notebook.magics")

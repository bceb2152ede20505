"""The command line: ``ncclx COMMAND`` and ``python -m ncclx_mpi [COMMAND | script.py]``."""

from __future__ import annotations

from ncclx_mpi.cli.main import main

__all__ = ["main"]

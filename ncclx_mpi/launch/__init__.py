"""The embedded launcher: ``ncclx run`` on the command line, :func:`run` from Python."""

from __future__ import annotations

from ncclx_mpi.launch.client import run
from ncclx_mpi.launch.failure import RankFailed

__all__ = ["RankFailed", "run"]

"""The embedded launcher: ``ncclx run`` on the command line, :func:`run` from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncclx_mpi.launch.client import run as run
    from ncclx_mpi.launch.failure import RankFailed as RankFailed

__all__ = ["RankFailed", "run"]


def __getattr__(name: str) -> Any:
    """The command line, which is in this package too, needs none of what they import."""
    if name == "run":
        from ncclx_mpi.launch.client import run

        return run
    if name == "RankFailed":
        from ncclx_mpi.launch.failure import RankFailed

        return RankFailed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

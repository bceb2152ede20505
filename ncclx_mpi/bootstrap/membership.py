"""What a process learns when it joins a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transports.shm.arena import Arena


def _nothing() -> None:
    """Nothing to undo."""


@dataclass
class Membership:
    """The place of this process in its job.

    Attributes
    ----------
    rank, size
        World rank and number of ranks.
    arena
        The memory that all ranks of the node map.
    kind
        Which way led here: ``launcher``, ``torchrun``, ``mpi``, ``slurm`` or ``singleton``.
    detail
        One line for ``ncclx info``: what was found, and where.
    close
        Ends what the bootstrap keeps running in this process (the watch over the peers).
    """

    rank: int
    size: int
    arena: Arena
    kind: str
    detail: str
    close: Callable[[], None] = _nothing

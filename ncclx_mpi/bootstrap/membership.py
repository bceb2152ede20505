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
    node
        Number of this process's node.
    near
        World ranks of the node, in the order of their ranks in it: those that map the arena. Empty: all ranks.
    """

    rank: int
    size: int
    arena: Arena
    kind: str
    detail: str
    close: Callable[[], None] = _nothing
    node: int = 0
    near: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.near = self.near or tuple(range(self.size))

    @property
    def local_rank(self) -> int:
        """Rank of this process in its node, by which the arena knows it."""
        return self.near.index(self.rank)

    @property
    def local_size(self) -> int:
        """Ranks of the node."""
        return len(self.near)

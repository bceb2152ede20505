"""What a process learns when it joins a job."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from ncclx_mpi.p2p.forced import Said
from transports.shm.arena import Arena, start_time

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap.exchange import Directory
    from transports.virtual.network import Network

_HEAD = struct.Struct("!IQQ")
"""What travels before an endpoint: the first world rank of the node, and what the rank has said of its settings."""
_AGENT_SECONDS = 5.0
"""The agent of the host gives up first, as it knows whom it waits for."""


def _nothing() -> None:
    """Nothing to undo."""


class Membership:
    """The place of this process in its job.

    Attributes
    ----------
    rank
        World rank.
    arena
        The memory that all ranks of the node map.
    kind
        Which way led here: ``launcher``, ``torchrun``, ``mpi``, ``slurm`` or ``singleton``.
    detail
        One line for ``ncclx info``: what was found, and where.
    close
        Ends what the bootstrap keeps running in this process (the watch over the peers).
    network
        What joins it to the other nodes of the job, if these are simulated on this machine.
    directory
        Where it learns how ranks of other hosts are reached, if there are any.
    nodes
        The first world rank of the node of each; known where nodes are simulated, and on several hosts after the exchange.
    settings
        What ranks of other hosts have said of theirs; known after the exchange.
    """

    def __init__(
        self,
        rank: int,
        arena: Arena,
        kind: str,
        detail: str,
        close: Callable[[], None] = _nothing,
        network: Network | None = None,
        directory: Directory | None = None,
    ) -> None:
        self.rank = rank
        self.arena = arena
        self.kind = kind
        self.detail = detail
        self.close = close
        self.network = network
        self.directory = directory
        self.nodes = () if network is None else network.nodes()
        self.settings: dict[int, Said] = {}

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self.arena.plan.world_size

    @property
    def local_rank(self) -> int:
        """Rank of this process in its node, by which the arena knows it."""
        return self.arena.near.index(self.rank)

    def say(self, said: Said) -> None:
        """Tell the others what the settings of this rank are, on which all have to agree. To be called before it enters."""
        for name, value in said._asdict().items():
            self.arena.set_control_word(self.local_rank, name, value)
            if self.network is not None:
                self.network.set_member_word(self.rank, name, value)

    def heard(self) -> dict[int, Said]:
        """What this rank, and those others that have come, have said of their settings, by world rank."""
        near = {
            rank: Said(*(self.arena.control_word(local, name) for name in Said._fields))
            for local, rank in enumerate(self.arena.near)
        }
        simulated = (
            {rank: Said(*(self.network.member_word(rank, name) for name in Said._fields)) for rank in range(self.size)}
            if self.network is not None
            else {}
        )
        return {rank: said for rank, said in {**self.settings, **simulated, **near}.items() if all(said)}

    def enter(self) -> None:
        """Let the others know which process this rank is; it may be said again.

        Raises
        ------
        RuntimeError
            Another living process is that rank already.
        """
        self.arena.join(self.local_rank)
        if self.network is not None:
            self.network.join(self.rank, os.getpid(), start_time(os.getpid()))

    def exchange(self, endpoint: bytes) -> list[bytes]:
        """Say how this rank is reached from other hosts, who shares its node, and its settings; returns how each is. All ranks take part.

        Raises
        ------
        RuntimeError, TimeoutError
            Not all have come; names those that are missing.
        """
        from ncclx_mpi.bootstrap.handover import join_timeout
        from ncclx_mpi.bootstrap.patience import Patience

        assert self.directory is not None
        own = _HEAD.pack(self.arena.near[0], *self.heard()[self.rank]) + endpoint
        found = self.directory.exchange(self.rank, own, Patience(join_timeout() + _AGENT_SECONDS))
        heads = [_HEAD.unpack_from(each) for each in found]
        self.nodes = tuple(first for first, *_ in heads)
        self.settings = {rank: Said(*words) for rank, (_, *words) in enumerate(heads)}
        return [each[_HEAD.size :] for each in found]

    def leave(self) -> None:
        """Let the others know that this rank ended its communication in order: its exit is no death."""
        if self.network is not None:
            self.network.leave(self.rank)
        self.arena.finalized(self.local_rank)
        self.close()

"""The memory of a job whose ranks are all on this machine: an arena for each node, and the network between them if there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclx_mpi import late
from ncclx_mpi.bootstrap import topology
from numba_kernels.rows import NamedTuple
from transports.shm.arena import Arena, new_key
from transports.shm.layout import DEAD, FINALIZED, HEADER

if TYPE_CHECKING:
    from transports.virtual import network as simulated
    from transports.virtual.network import Network
else:
    simulated = late.module("transports.virtual.network")


class Share(NamedTuple):
    """What of a job on several hosts is here.

    Attributes
    ----------
    ranks
        World ranks, which follow each other.
    job
        The number of the job, the same on all hosts.
    machine_size
        Ranks that share the cores.
    """

    ranks: range
    job: int
    machine_size: int


class Nodes:
    """What whoever starts a job makes, keeps while it watches over the ranks, and hands to them.

    Parameters
    ----------
    size
        Number of ranks of the job.
    setting
        The topology; empty: that of ``rc.topology``.
    share
        The ranks of this host, where there are several; it is one node. None: all are here.

    Attributes
    ----------
    size : int
        Number of ranks of the job.
    ranks : range
        World ranks of those that are here.
    arenas : tuple of Arena
        That of each node.
    network : Network or None
        Between the ranks of all nodes; None where there is one node.

    Raises
    ------
    ValueError
        There cannot be that many ranks, or the settings describe no topology.
    OSError
        The limits of this process are too low for it.
    """

    def __init__(self, size: int, setting: str = "", share: Share | None = None) -> None:
        groups = [share.ranks] if share else topology.nodes(size, setting) or [range(0)]
        job, machine_size = (share.job, share.machine_size) if share else (new_key(), size)
        self.size = size
        self.ranks = share.ranks if share else range(size)
        self.arenas: tuple[Arena, ...] = ()
        self.network: Network | None = None
        try:
            for group in groups:
                self.arenas += (Arena.create(len(group), group, size, job, machine_size=machine_size),)
            if len(groups) > 1:
                self.network = simulated.Network.create(size, topology.network(), [group[0] for group in groups for _ in group])
        except BaseException:
            self.close()
            raise

    def place_of(self, rank: int) -> tuple[Arena, int]:
        """The arena of a world rank, and its rank there."""
        arena = next(arena for arena in self.arenas if rank in arena.near)
        return arena, arena.near.index(rank)

    def fds_of(self, rank: int) -> list[int]:
        """The descriptors that a process needs to be `rank`."""
        return [self.place_of(rank)[0].fd, *([] if self.network is None else [self.network.fd])]

    def leave_to(self, rank: int) -> tuple[Arena, Network | None]:
        """What `rank` keeps of it; the rest is closed in this process."""
        own = self.place_of(rank)[0]
        for arena in self.arenas:
            if arena is not own:
                arena.close()
        return own, self.network

    def control_word(self, rank: int, field: str) -> int:
        """A word of the control block of a world rank."""
        arena, local_rank = self.place_of(rank)
        return arena.control_word(local_rank, field)

    def ended(self, rank: int) -> None:
        """Let all nodes know that the process of a world rank has ended: it is dead, unless it finalized."""
        own, local_rank = self.place_of(rank)
        own.declare_dead(local_rank, "its process ended")
        for arena in self.arenas:
            if arena is not own:
                arena.ended_elsewhere(rank, FINALIZED if own.state(local_rank) == FINALIZED else DEAD)

    @property
    def acknowledged(self) -> int:
        """How many deaths ranks know of, and go on without those ranks."""
        return max(arena.acknowledged for arena in self.arenas)

    @property
    def first_dead(self) -> int:
        """World rank of the first one that died, -1 if none has."""
        return next((death - 1 for arena in self.arenas if (death := arena.word(HEADER.death))), -1)

    @property
    def abort_code(self) -> int | None:
        """The exit code of an Abort, None while there was none."""
        return next((code for arena in self.arenas if (code := arena.abort_code) is not None), None)

    def close(self) -> None:
        """Unmap everything."""
        for arena in self.arenas:
            arena.close()
        if self.network is not None:
            self.network.close()

"""What the bootstraps of unrelated processes share: from (rank, size, job name) to a membership."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ncclx_mpi import late
from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.membership import Membership
from ncclx_mpi.bootstrap.nodes import Nodes
from ncclx_mpi.bootstrap.watch import Watch
from transports.shm.arena import Arena

if TYPE_CHECKING:
    from transports.virtual import network as simulated
    from transports.virtual.network import Network
else:
    simulated = late.module("transports.virtual.network")

_ASKING_SECONDS = 0.002


def meet(rank: int, size: int, job: str, kind: str, detail: str) -> Membership:
    """Meet the other ranks of this node under the name `job`, and watch over them.

    Raises
    ------
    TimeoutError, RuntimeError
        They did not come, or do not belong together.
    """
    name, token = handover.place(job)
    arena, network = _serve(name, token, size) if rank == 0 else attach(handover.fetch(name, token, rank, size))
    watch = Watch(arena, rank, network)
    membership = Membership(rank, arena, kind, detail, watch.close, network)
    membership.enter()
    wait_all_joined(arena if network is None else network, handover.join_timeout())
    watch.start()
    return membership


def wait_all_joined(shared: Arena | Network, seconds: float) -> None:
    """Return when every rank that maps `shared` has joined; a network is joined after the arena.

    Raises
    ------
    TimeoutError
        Some rank did not join in time; names them.
    """
    end = time.monotonic() + seconds
    while absent := shared.absent_ranks():
        if time.monotonic() > end:
            raise TimeoutError(f"ranks {absent} of {shared.nranks} did not start within {seconds:g} s")
        time.sleep(_ASKING_SECONDS)


def attach(fds: list[int]) -> tuple[Arena, Network | None]:
    """Map what :meth:`~ncclx_mpi.bootstrap.nodes.Nodes.fds_of` names in another process; takes over the descriptors."""
    return Arena.attach(fds[0]), simulated.Network.attach(fds[1]) if len(fds) > 1 else None


def _serve(name: str, token: str, size: int) -> tuple[Arena, Network | None]:
    if size == 1:
        return Nodes(1).leave_to(0)
    with handover.listen(name, size) as server:
        nodes = Nodes(size)
        handover.hand_out(server, token, size, nodes.fds_of)
    return nodes.leave_to(0)


def whole_number(environ_name: str, text: str) -> int:
    """The value of a launcher's variable."""
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"{environ_name}={text!r} is not a whole number; who set it is not the launcher") from None

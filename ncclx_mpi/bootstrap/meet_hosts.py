"""What the bootstraps of unrelated processes on several hosts share: from (rank, size, node) to a membership."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from ncclx_mpi import process
from ncclx_mpi.bootstrap import handover, secret
from ncclx_mpi.bootstrap.agent_process import Order
from ncclx_mpi.bootstrap.exchange import TOKEN_LENGTH, Directory, name_of
from ncclx_mpi.bootstrap.hosts import TOKEN, token_from
from ncclx_mpi.bootstrap.meet import attach, wait_all_joined
from ncclx_mpi.bootstrap.membership import Membership
from ncclx_mpi.bootstrap.watch import Watch
from transports.shm.layout import HEADER

_agents: list[subprocess.Popen[bytes]] = []
"""Those that this process has started, which end after it."""

_AGENT_SECONDS = 15.0
"""For the agent to start, and to say who is missing: a rank that waits for it does so for longer."""


@dataclass
class Place:
    """Where a rank is, as who started it says.

    Attributes
    ----------
    rank, size
        Of the world.
    local_rank, local_size
        Of its host.
    node, nnodes
        The number of the host, and how many there are.
    rendezvous
        By what the first host is reached.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nnodes: int
    rendezvous: str


def meet_on_hosts(place: Place, job: str, kind: str, detail: str, token: str = "") -> Membership:
    """Meet the other ranks of all hosts under the name `job`; the first rank of each host starts its agent.

    Where the ranks have no `token` in common, it is that of the user's setting, or follows from `job` and the user's key.

    Raises
    ------
    TimeoutError, RuntimeError
        They did not come, or do not belong together.
    """
    name, local_token = handover.place(f"{job} node {place.node}")
    if place.local_rank == 0:
        _start_agent(place, token.encode() or _token(job), name, local_token)
    arena, _ = attach(handover.fetch(name, local_token, place.rank, place.size, handover.join_timeout() + _AGENT_SECONDS))
    watch = Watch(arena, place.rank, agent=arena.word(HEADER.creator))
    directory = Directory(name_of(name), local_token[:TOKEN_LENGTH])
    membership = Membership(place.rank, arena, kind, detail, watch.close, directory=directory)
    membership.enter()
    wait_all_joined(arena, handover.join_timeout())
    watch.start()
    return membership


def _token(job: str) -> bytes:
    return token_from(os.environ) if TOKEN in os.environ else secret.token_of(job)


def _start_agent(place: Place, token: bytes, name: str, local_token: str) -> None:
    order = Order(
        place.rendezvous, place.node, place.nnodes, place.local_size, token.decode(), place.size, place.rank, name, local_token
    )
    agent = subprocess.Popen(
        [sys.executable, "-m", "ncclx_mpi.bootstrap.agent_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=process.environment_of_helpers(os.environ),
    )
    assert agent.stdin is not None
    agent.stdin.write(order.pack())
    agent.stdin.flush()
    _agents.append(agent)

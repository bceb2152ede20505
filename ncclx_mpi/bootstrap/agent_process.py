"""``python -m ncclx_mpi.bootstrap.agent_process``: the agent of a host whose ranks were not started by us.

The first rank of the host starts it. It meets the other hosts, makes the arena and hands it to the ranks of its host, watches over their
processes, and ends with the last of them. Signals are for the ranks.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import asdict, dataclass

from ncclx_mpi.bootstrap import handover, hosts
from ncclx_mpi.bootstrap.agent import Agent
from ncclx_mpi.bootstrap.exchange import TOKEN_LENGTH
from ncclx_mpi.bootstrap.nodes import Nodes, Share
from ncclx_mpi.bootstrap.patience import Gone, Patience
from ncclx_mpi.compile_cache import warm

_SLICE_SECONDS = 0.5
_RETRY_SECONDS = 0.01
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Why there is no descriptor for a process now, but may be one soon."""
_REFUSING_SECONDS = 10.0
"""For ranks that come late to hear why there is no job."""


@dataclass
class Order:
    """What the first rank of a host knows.

    Attributes
    ----------
    rendezvous, node, nnodes, nranks, token
        As for :func:`ncclx_mpi.bootstrap.hosts.meet`.
    size
        Ranks of the job.
    first
        World rank of the first rank here, as who started them counts.
    name, local_token
        Where the ranks of this host get the arena, and by what.
    """

    rendezvous: str
    node: int
    nnodes: int
    nranks: int
    token: str
    size: int
    first: int
    name: str
    local_token: str

    def pack(self) -> bytes:
        """What the process reads."""
        return json.dumps(asdict(self)).encode() + b"\n"


class AgentProcess:
    """The agent's loop.

    Parameters
    ----------
    order
        What to do.
    lifeline
        Descriptor that ends when the first rank does, who counts until the hosts have met.
    """

    def __init__(self, order: Order, lifeline: int) -> None:
        self._order = order
        self._server = handover.listen(order.name, order.nranks)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, self._welcome)
        self._server.setblocking(False)
        self._missing = set(range(order.first, order.first + order.nranks))
        self._watched: dict[int, tuple[int, int]] = {}
        self._refusal = ""
        self._nodes: Nodes | None = None
        self._agent: Agent | None = None
        try:
            self._meet(Patience(handover.join_timeout(), lifeline))
        except (RuntimeError, ValueError, OSError) as error:
            self._refusal = str(error)
        self._until = time.monotonic() + (_REFUSING_SECONDS if self._refusal else handover.join_timeout())

    def _meet(self, patience: Patience) -> None:
        order = self._order
        found = hosts.meet(order.rendezvous, order.node, order.nnodes, order.nranks, order.token.encode(), patience)
        ranks = found.ranks_of(order.node)
        if found.size != order.size or ranks[0] != order.first:
            raise RuntimeError(
                f"the ranks of node {order.node} are {ranks[0]} to {ranks[-1]} if hosts are counted one after the other, but its first one "
                f"is {order.first}: start ranks host by host (srun --distribution=block)"
            )
        self._nodes = Nodes(found.size, share=Share(ranks, found.job, found.machine_size))
        self._agent = Agent(found, self._nodes.arenas[0], order.name, order.local_token[:TOKEN_LENGTH], self)
        self._agent.register(self._selector)

    def run(self) -> None:
        """Serve the ranks of this host until all have ended."""
        while self._missing or self._watched:
            seconds = _SLICE_SECONDS if self._agent is None else max(0.0, min(_SLICE_SECONDS, self._agent.due - time.monotonic()))
            for key, _ in self._selector.select(seconds):
                key.data(self._selector, key.fd)
            if self._agent is not None:
                self._agent.beat()
            if self._missing and time.monotonic() > self._until:
                self._declare_missing_dead()
                self._missing.clear()
        if self._agent is not None:
            self._agent.done()
            self._agent.close()

    def _welcome(self, selector: selectors.BaseSelector, _: int) -> None:
        """Let a rank in whose end will be noticed; where descriptors have run out it is turned away, and tries again."""
        try:
            connection, _address = self._server.accept()
        except OSError:
            time.sleep(_RETRY_SECONDS)  # it is still there for the selector
            return
        pid = handover.peer_of(connection)[0]
        fd: int | None = None
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            pass  # it may have been let in already, as far as it knew
        except OSError as error:
            if error.errno in _SHORTAGES:
                connection.close()
                return
            self._refusal = f"the agent of this host cannot watch over its ranks: pidfd_open: {error.strerror}"
        rank = handover.answer(connection, self._order.local_token, self._order.size, self._fds_of, self._reason_against)
        if rank is not None:
            self._missing.discard(rank)
            self._watch(selector, rank, pid, fd)
        elif fd is not None:
            os.close(fd)

    def _reason_against(self, rank: int) -> str:
        if not self._order.first <= rank < self._order.first + self._order.nranks:
            self._refusal = f"rank {rank} is not on node {self._order.node}: start ranks host by host (srun --distribution=block)"
            self._until = time.monotonic() + _REFUSING_SECONDS
            self._declare_missing_dead()
        if self._refusal:
            self._missing.discard(rank)
        return self._refusal

    def _fds_of(self, rank: int) -> list[int]:
        assert self._nodes is not None
        return self._nodes.fds_of(rank)

    def _watch(self, selector: selectors.BaseSelector, rank: int, pid: int, fd: int | None) -> None:
        if fd is None:
            self._ended(rank, pid)
            return
        self._watched[fd] = (rank, pid)
        selector.register(fd, selectors.EVENT_READ, self._process_ended)

    def _process_ended(self, selector: selectors.BaseSelector, fd: int) -> None:
        selector.unregister(fd)
        os.close(fd)
        self._ended(*self._watched.pop(fd))

    def _ended(self, rank: int, pid: int) -> None:
        assert self._nodes is not None and self._agent is not None
        has_joined = self._nodes.control_word(rank, "pid") != 0
        if has_joined:
            self._nodes.ended(rank)
        if self._nodes.abort_code is not None:
            self._agent.abort(self._nodes.abort_code)
        self._agent.ended(rank, pid, 0)

    def _declare_missing_dead(self) -> None:
        """Ranks that did not come, or are elsewhere, are dead for those that did."""
        for rank in self._missing:
            if self._nodes is not None and self._agent is not None:
                if self._refusal:
                    self._agent.refuse(self._refusal)
                self._nodes.ended(rank)
                self._agent.ended(rank, 0, 1)

    # What happens on other hosts is in the arena, where ranks see it: nobody here starts or ends any.

    def failed_elsewhere(self, rank: int, pid: int, code: int, host: str) -> None:
        """A rank of another host did not succeed."""

    def host_lost(self, rank: int, story: str) -> None:
        """A host is lost with its ranks, of which `rank` is the first one."""

    def aborted_elsewhere(self, code: int) -> None:
        """A rank of another host has ended the job."""

    def signalled_elsewhere(self, number: int) -> None:
        """The job got a signal on another host."""


def main() -> None:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # and nothing of it is taken that is not ours
        order = Order(**json.loads(stdin.readline()))
    warm.ensure()
    try:
        AgentProcess(order, 0).run()
    except Gone:
        sys.exit(1)


if __name__ == "__main__":
    main()

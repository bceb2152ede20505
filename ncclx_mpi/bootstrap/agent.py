"""What speaks for the ranks of one host to the agents of the others: endpoints, ends, signals.

It belongs to the loop of whoever started the ranks, and writes what it hears of other hosts into the arena, where waits look.
"""

from __future__ import annotations

import base64
import selectors
import time
from dataclasses import asdict
from typing import Protocol

from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.exchange import Exchange, name_of
from ncclx_mpi.bootstrap.hosts import Hosts
from ncclx_mpi.bootstrap.lookout import MOST_RECORDS, Lookout, Question
from ncclx_mpi.bootstrap.wire import Message
from ncclx_mpi.observe.describe import ask_for_stacks, reports
from transports.shm.arena import Arena
from transports.shm.layout import ABSENT, DEAD, FINALIZED


class Starter(Protocol):
    """Who started the ranks of this host, and hears of the others."""

    def failed_elsewhere(self, rank: int, pid: int, code: int, host: str) -> None:
        """A rank of another host did not succeed."""

    def host_lost(self, rank: int, story: str) -> None:
        """A host is lost with its ranks, of which `rank` is the first one."""

    def aborted_elsewhere(self, code: int) -> None:
        """A rank of another host has ended the job."""

    def signalled_elsewhere(self, number: int) -> None:
        """The job got a signal on another host."""


class Agent:
    """The agent of one host.

    Parameters
    ----------
    hosts
        All hosts; the agent owns the mesh.
    arena
        That of this host.
    job, token
        By what the ranks of this host find it.
    starter
        Hears of what happens elsewhere.
    """

    def __init__(self, hosts: Hosts, arena: Arena, job: str, token: str, starter: Starter) -> None:
        self._hosts = hosts
        self._arena = arena
        self._starter = starter
        self._exchange = Exchange(name_of(job), token, self._given)
        self._lookout = Lookout(hosts.job, hosts.node, self._ask_all)
        self._endpoints: dict[int, bytes] = {}
        self._asked_at = float("inf")
        self._is_answered = False
        self._running = {node for node in range(len(hosts.records)) if node != hosts.node}

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a loop call us, as ``key.data(selector, fd)``; it also calls :meth:`beat` when that is :attr:`due`."""
        self._arena.load_death_notice()
        self._exchange.register(selector)
        self._lookout.register(selector)
        self._hosts.mesh.register(selector, self._heard, self._lost)

    @property
    def due(self) -> float:
        """When :meth:`beat` is to be called at the latest."""
        answer = float("inf") if self._is_answered else self._asked_at + handover.join_timeout()
        return min(self._hosts.mesh.due, self._lookout.due, answer)

    @property
    def is_alone(self) -> bool:
        """Whether all other hosts are done, or lost."""
        return not self._running

    def beat(self) -> None:
        """Do what is due."""
        self._hosts.mesh.beat()
        self._lookout.beat()
        if not self._is_answered and time.monotonic() >= self._asked_at + handover.join_timeout():
            missing = [rank for rank in range(self._hosts.size) if rank not in self._endpoints]
            self.refuse(
                f"ranks {handover.short(missing)} of {self._hosts.size} did not start within {handover.join_timeout():g} s; "
                f"they never import MPI, or are late (more time: {handover.TIMEOUT_VARIABLE})"
            )

    def ended(self, rank: int, pid: int, code: int) -> None:
        """A rank of this host has ended, with this exit status, as :func:`os.waitstatus_to_exitcode` gives it."""
        state = self._arena.state(self._arena.near.index(rank))
        state = FINALIZED if state == ABSENT and not code else DEAD if state == ABSENT else state
        self._hosts.mesh.tell({"kind": "ended", "rank": rank, "pid": pid, "code": code, "state": state})
        self._never_came(rank)

    def abort(self, code: int) -> None:
        """The job is to end with this status."""
        self._hosts.mesh.tell({"kind": "abort", "code": code})

    def refuse(self, reason: str) -> None:
        """There will be no table of endpoints, unless there is one already."""
        self._is_answered = True
        self._exchange.refuse(reason)

    def signal(self, number: int) -> None:
        """The job got a signal here."""
        self._hosts.mesh.tell({"kind": "signal", "number": number})

    def done(self) -> None:
        """All ranks of this host have ended."""
        self._hosts.mesh.tell({"kind": "done"})

    def close(self) -> None:
        """Leave the job."""
        self._hosts.mesh.close()
        self._exchange.close()
        self._lookout.close()

    def close_in_child(self) -> None:
        """A rank must not hold the connections: their end tells the other hosts that the agent has gone."""
        self._hosts.mesh.close_here()
        self._exchange.close()
        self._lookout.close()

    def _given(self, rank: int, endpoint: bytes) -> None:
        if rank not in self._hosts.ranks_of(self._hosts.node) or self._is_answered:
            return
        self._asked_at = min(self._asked_at, time.monotonic())
        text = base64.b64encode(endpoint).decode()
        self._hosts.mesh.tell({"kind": "endpoint", "rank": rank, "endpoint": text})
        self._enter(rank, endpoint)

    def _enter(self, rank: int, endpoint: bytes) -> None:
        self._endpoints[rank] = endpoint
        if len(self._endpoints) == self._hosts.size:
            self._is_answered = True
            self._exchange.answer([self._endpoints[rank] for rank in range(self._hosts.size)])

    def _never_came(self, rank: int) -> None:
        if not self._is_answered and rank not in self._endpoints:
            self.refuse(f"rank {rank} ended before it imported MPI, so this job never was complete")

    def _heard(self, node: int, message: Message) -> None:
        ranks, host = self._hosts.ranks_of(node), self._hosts.records[node].host
        match message:
            case {"kind": "endpoint", "rank": int(rank), "endpoint": str(text)} if rank in ranks:
                self._enter(rank, base64.b64decode(text))
            case {"kind": "ended", "rank": int(rank), "pid": int(pid), "code": int(code), "state": int(state)} if rank in ranks:
                self._arena.ended_elsewhere(rank, DEAD if state == DEAD else FINALIZED)
                self._never_came(rank)
                if code:
                    self._starter.failed_elsewhere(rank, pid, code, host)
            case {"kind": "abort", "code": int(code)}:
                self._arena.declare_abort(code)
                self._starter.aborted_elsewhere(code)
            case {"kind": "signal", "number": int(number)}:
                self._starter.signalled_elsewhere(number)
            case {"kind": "look", "number": int(number), "records": int(records), "stacks": bool(stacks)}:
                self._look(node, number, records, stacks)
            case {"kind": "seen", "number": int(number), "rank": dict(rank)}:
                self._lookout.seen(node, number, {**rank, "host": host})
            case {"kind": "shown", "number": int(number)}:
                self._lookout.seen(node, number, None)
            case {"kind": "done"}:
                self._running.discard(node)
                self._hosts.mesh.part(node)
                self._lookout.lost(node)

    def _ask_all(self, question: Question) -> None:
        question.waiting.update(self._hosts.mesh.nodes)
        self._hosts.mesh.tell({"kind": "look", "number": question.number, "records": question.records, "stacks": question.stacks})

    def _look(self, node: int, number: int, records: int, stacks: bool) -> None:
        """Tell a node what the ranks here are in."""
        found = reports([self._arena], max(1, min(records, MOST_RECORDS)))
        if stacks:
            ask_for_stacks(found)
        for report in found:
            self._hosts.mesh.tell_one(node, {"kind": "seen", "number": number, "rank": asdict(report)})
        self._hosts.mesh.tell_one(node, {"kind": "shown", "number": number})

    def _lost(self, node: int, why: str) -> None:
        self._running.discard(node)
        self._lookout.lost(node)
        ranks = self._hosts.ranks_of(node)
        for rank in ranks:
            self._arena.ended_elsewhere(rank, DEAD)
            self._never_came(rank)
        self._starter.host_lost(ranks[0], f"{self._hosts.records[node]} with {_named(ranks)} is lost: {why}")


def _named(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"

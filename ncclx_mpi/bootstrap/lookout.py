"""What the ranks of all hosts are in, for who asks on one of them: ``ncclx trace``.

Who asks connects to the agent of his host by a Unix socket, whose name follows from the number of the job, and gets one memory file when
all hosts have answered, or have had their time::

    ncclx trace                agent of this host                    agents of the others
      | -- records, stacks? ---> |                                          |
      |                          | -- look: number, records, stacks? -----> |
      |                          | <- seen: number, one rank -------------- |   as many as there are ranks
      |                          | <- shown: number ----------------------- |
      | <- descriptor ---------- |

An agent waits for nobody: it answers from its loop, and what a host does not send in time is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.exchange import memory_file
from ncclx_mpi.bootstrap.wire import Message

MOST_RECORDS = 64
"""Of each rank, so that what is said of a rank is a message."""
_SOCKETS = Path("/proc/net/unix")
_REQUEST = struct.Struct("!II")
_HOST_SECONDS = 2.0
_MOST_ASKING = 16

Start = Callable[["Question"], None]


@dataclass
class Question:
    """What somebody on this host wants to know.

    Attributes
    ----------
    number
        By which answers are told apart.
    records, stacks
        How many of the last operations of each rank; whether the ranks are to print their stacks.
    waiting
        The nodes that have not answered.
    ranks
        What was seen.
    until
        When it is answered at the latest.
    """

    number: int
    records: int
    stacks: bool
    waiting: set[int] = field(default_factory=set)
    ranks: list[Message] = field(default_factory=list)
    until: float = 0.0


class Lookout:
    """The agent's side.

    Parameters
    ----------
    job, node
        The number of the job, and of this node.
    start
        Has the other hosts asked: it fills ``waiting``.
    """

    def __init__(self, job: int, node: int, start: Start) -> None:
        self._start = start
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(f"\0{_name(job)}{node}")
        self._listener.listen(_MOST_ASKING)
        self._listener.setblocking(False)
        self._asking: dict[int, tuple[socket.socket, Question | None]] = {}
        self._count = 0
        self._selector: selectors.BaseSelector | None = None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a loop call us, as ``key.data(selector, fd)``; it also calls :meth:`beat` when that is :attr:`due`."""
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def due(self) -> float:
        """When :meth:`beat` is to be called at the latest."""
        return min((question.until for _, question in self._asking.values() if question is not None), default=float("inf"))

    def beat(self) -> None:
        """Answer what all hosts have answered, or have had their time for."""
        now = time.monotonic()
        for fd, (_, question) in list(self._asking.items()):
            if question is not None and (not question.waiting or now >= question.until):
                self._answer(fd, question)

    def seen(self, node: int, number: int, rank: Message | None) -> None:
        """A node has said what a rank of it is in; None: it has said all."""
        for _, question in self._asking.values():
            if question is not None and question.number == number and node in question.waiting:
                if rank is None:
                    question.waiting.discard(node)
                else:
                    question.ranks.append(rank)
        self.beat()

    def lost(self, node: int) -> None:
        """A node will say nothing more."""
        for _, question in self._asking.values():
            if question is not None:
                question.waiting.discard(node)
        self.beat()

    def close(self) -> None:
        """Close everything, in a fork as well."""
        for connection, _ in self._asking.values():
            connection.close()
        self._asking.clear()
        self._listener.close()

    def _accept(self, selector: selectors.BaseSelector, _: int) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return
        if handover.peer_of(connection)[1] not in (0, os.getuid()) or len(self._asking) >= _MOST_ASKING:
            connection.close()
            return
        connection.setblocking(False)
        self._asking[connection.fileno()] = (connection, None)
        selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, _: selectors.BaseSelector, fd: int) -> None:
        """Somebody asks; or has gone."""
        connection, question = self._asking[fd]
        try:
            packet = connection.recv(_REQUEST.size + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if question is not None or len(packet) != _REQUEST.size:
            self._forget(fd)
            return
        records, stacks = _REQUEST.unpack(packet)
        self._count += 1
        question = Question(self._count, min(records, MOST_RECORDS), bool(stacks), until=time.monotonic() + _HOST_SECONDS)
        self._asking[fd] = (connection, question)
        self._start(question)
        self.beat()

    def _answer(self, fd: int, question: Question) -> None:
        data = json.dumps({"ranks": question.ranks, "missing": sorted(question.waiting)}).encode()
        file = memory_file("ncclx_mpi-seen", data)
        with contextlib.suppress(OSError):
            socket.send_fds(self._asking[fd][0], [b"+"], [file])
        os.close(file)
        self._forget(fd)

    def _forget(self, fd: int) -> None:
        if self._selector is not None:
            self._selector.unregister(fd)
        self._asking.pop(fd)[0].close()


def ask(job: int, records: int, stacks: bool) -> tuple[Sequence[Message], Sequence[int]]:
    """What ranks of other hosts are in, and the nodes that said nothing.

    Raises
    ------
    LookupError
        No agent of the job is on this host, or none that answers this user.
    """
    for name in _agents(job):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as agent, contextlib.suppress(OSError):
            agent.settimeout(2 * _HOST_SECONDS)
            agent.connect(f"\0{name}")
            agent.send(_REQUEST.pack(min(records, MOST_RECORDS), stacks))
            _, files, _, _ = socket.recv_fds(agent, 1, 1)
            if files:  # it hangs up on another user, and when too many ask
                with open(files[0], "rb") as read:
                    found = json.load(read)
                return found["ranks"], found["missing"]
    raise LookupError("the agent of this host, which would know of the others, is in another network namespace, or does not answer")


def _name(job: int) -> str:
    return f"ncclx_mpi-trace-{job & (1 << 64) - 1:x}-"


def _agents(job: int) -> Iterable[str]:
    """Names of the sockets of all agents of a job here: several nodes may be one machine."""
    with contextlib.suppress(OSError):
        yield from re.findall(rf"@({re.escape(_name(job))}\d+)$", _SOCKETS.read_text(), re.MULTILINE)

"""The connections between the agents of a job's hosts: one for each pair, so that no host's end takes another one's news away.

Every agent sends a sign of life each period. A host whose connection breaks, or that says nothing for the limit, is lost: for
good, as its ranks are dead for ours from then on. The connections are made in one order, each node calling those of smaller
numbers, so that nobody waits in a circle.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ncclx_mpi.bootstrap import gate, wire
from ncclx_mpi.bootstrap.gate import Gate
from ncclx_mpi.bootstrap.handover import TIMEOUT_VARIABLE
from ncclx_mpi.bootstrap.heartbeat import Heartbeat
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.record import Record
from ncclx_mpi.bootstrap.wire import Message, ProtocolError, Reader

_RETRY_SECONDS = (0.01, 0.1)
_MOST_WAITING = 4 << 20
_PIECE_BYTES = 1 << 16
_PARTING_SECONDS = 1.0
_NUMBER_BYTES = 4
_BEAT: Message = {"kind": "beat"}

Heard = Callable[[int, Message], None]
Lost = Callable[[int, str], None]


@dataclass
class _Link:
    """The connection with one other host."""

    node: int
    connection: socket.socket
    reader: Reader = field(default_factory=Reader)
    heard_at: float = 0.0
    waiting: bytearray = field(default_factory=bytearray)
    is_parting: bool = False


class Mesh:
    """The connections of this host with all others.

    Parameters
    ----------
    connections
        By node.
    beat
        Times of the signs of life.
    """

    def __init__(self, connections: dict[int, socket.socket], beat: Heartbeat) -> None:
        self._beat = beat
        now = time.monotonic()
        self._links: dict[int, _Link] = {}
        for node, connection in connections.items():
            connection.setblocking(False)
            self._links[connection.fileno()] = _Link(node, connection, heard_at=now)
        self._next_beat = now
        self._selector: selectors.BaseSelector | None = None
        self._heard: Heard = lambda *_: None
        self._lost: Lost = lambda *_: None

    @property
    def nodes(self) -> list[int]:
        """The hosts that we are connected with."""
        return sorted(link.node for link in self._links.values())

    def register(self, selector: selectors.BaseSelector, heard: Heard, lost: Lost) -> None:
        """Have a loop call us, as ``key.data(selector, fd)``; it also calls :meth:`beat` when that is :attr:`due`.

        Parameters
        ----------
        selector
            The loop's.
        heard
            Gets each message, and from which node it is.
        lost
            Gets each node that is lost, and why.
        """
        self._selector, self._heard, self._lost = selector, heard, lost
        now = time.monotonic()
        for fd, link in self._links.items():
            link.heard_at = now
            selector.register(fd, selectors.EVENT_READ, self._ready)

    @property
    def due(self) -> float:
        """When :meth:`beat` is to be called at the latest, on the monotonic clock."""
        return (
            min([self._next_beat, *(link.heard_at + self._beat.limit for link in self._links.values())])
            if self._links
            else float("inf")
        )

    def beat(self) -> None:
        """Give a sign of life if it is time, and look for those that gave none."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._beat.period
            for link in list(self._links.values()):
                if not link.waiting:  # what waits is a sign of life, too
                    self._send(link, _BEAT)
        for link in list(self._links.values()):
            if now >= link.heard_at + self._beat.limit:
                self._drop(link, f"gave no sign of life for {self._beat.limit:g} s")

    def tell(self, message: Message) -> None:
        """Send a message to all hosts."""
        for link in list(self._links.values()):
            self._send(link, message)

    def tell_one(self, node: int, message: Message) -> None:
        """Send a message to one host; nothing happens if it is lost."""
        for link in list(self._links.values()):
            if link.node == node:
                self._send(link, message)

    def part(self, node: int) -> None:
        """Note that a node has said that it will close its connection: that is no loss then."""
        for link in self._links.values():
            link.is_parting |= link.node == node

    def close(self) -> None:
        """Send what still waits, and close, in such an order that nothing that was sent is lost."""
        end = time.monotonic() + _PARTING_SECONDS
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.connection.settimeout(max(0.001, end - time.monotonic()))
                link.connection.sendall(link.waiting)
                link.connection.shutdown(socket.SHUT_WR)
        for link in self._links.values():
            with contextlib.suppress(OSError):
                while time.monotonic() < end:
                    link.connection.settimeout(max(0.001, end - time.monotonic()))
                    if not link.connection.recv(_PIECE_BYTES):
                        break
        self.close_here()

    def close_here(self) -> None:
        """Close the descriptors of this process, which is a fork that has no part in it, or gives up."""
        for fd, link in self._links.items():
            if self._selector is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)
            link.connection.close()
        self._links.clear()

    def _ready(self, selector: selectors.BaseSelector, fd: int) -> None:
        link = self._links.get(fd)
        if link is None:  # lost a moment ago, in the same round
            return
        if link.waiting:
            self._push(link)
        try:
            data = link.connection.recv(_PIECE_BYTES)
            messages = link.reader.feed(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, f"its connection broke ({error.strerror})")
        except ProtocolError as error:
            self._drop(link, f"it does not speak our protocol ({error})")
        else:
            self._take(link, data, messages)

    def _take(self, link: _Link, data: bytes, messages: list[Message]) -> None:
        if not data:
            return self._drop(link, "its launcher ended")
        link.heard_at = time.monotonic()
        for message in messages:
            if message != _BEAT:
                self._heard(link.node, message)
        return None

    def _send(self, link: _Link, message: Message) -> None:
        link.waiting += wire.pack(message)
        if len(link.waiting) > _MOST_WAITING:
            self._drop(link, "it does not read what it is told")
        else:
            self._push(link)

    def _push(self, link: _Link) -> None:
        try:
            sent = link.connection.send(link.waiting)
        except BlockingIOError:
            sent = 0
        except OSError:  # what it has said before is read first, and then that it has gone
            sent = len(link.waiting)
        del link.waiting[:sent]
        if self._selector is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
            self._selector.modify(link.connection, events, self._ready)

    def _drop(self, link: _Link, why: str) -> None:
        fd = link.connection.fileno()
        if self._links.pop(fd, None) is None:
            return
        if self._selector is not None:
            self._selector.unregister(fd)
        link.connection.close()
        if not link.is_parting:
            self._lost(link.node, why)


def listen(host: str) -> socket.socket:
    """Where the agent of this host waits for the others, which reach this host as they reach the store: by the same family of addresses."""
    return gate.listen(host, 0)


def connect(
    records: Sequence[Record], own: Record, listener: socket.socket, token: bytes, patience: Patience
) -> dict[int, socket.socket]:
    """Connect with all other hosts of the table.

    Raises
    ------
    TimeoutError
        Some were not reached in time, or did not come; names them.
    """
    calls = _Calls(own, listener, token)
    try:
        for record in records[: own.node]:
            calls.found[record.node] = _call(record, own, token, patience)
        calls.wait(len(records) - 1, records, patience)
    except BaseException:
        for connection in calls.found.values():
            connection.close()
        raise
    finally:
        calls.close()
    return calls.found


def _call(record: Record, own: Record, token: bytes, patience: Patience) -> socket.socket:
    reason: Exception | None = None
    while not patience.is_over:
        try:
            connection = gate.connect(record.address, record.port, token, patience)
            connection.sendall(own.node.to_bytes(_NUMBER_BYTES, "big"))
            return connection
        except (OSError, gate.Refused) as error:
            reason = error
        patience.check(random.uniform(*_RETRY_SECONDS))
    raise TimeoutError(
        f"{own} did not reach {record} at {record.address}:{record.port} within {patience.seconds:g} s ({reason}); "
        "hosts of a job must reach each other at any port"
    )


class _Calls:
    """Takes the calls of hosts with greater numbers."""

    def __init__(self, own: Record, listener: socket.socket, token: bytes) -> None:
        self._own = own
        self._gate = Gate(listener, token, self._welcome)
        self._selector = selectors.DefaultSelector()
        self._gate.register(self._selector)
        self._nameless: dict[int, tuple[socket.socket, bytearray]] = {}
        self.found: dict[int, socket.socket] = {}

    def wait(self, count: int, records: Sequence[Record], patience: Patience) -> None:
        while len(self.found) < count:
            patience.check()
            if patience.is_over:
                missing = [str(record) for record in records if record.node != self._own.node and record.node not in self.found]
                raise TimeoutError(
                    f"{self._own} waited {patience.seconds:g} s for calls of {', '.join(missing)}: hosts of a job must reach each other "
                    f"at any port (more time: {TIMEOUT_VARIABLE})"
                )
            for key, _ in self._selector.select(patience.slice):
                key.data(self._selector, key.fd)
            self._gate.expire(self._selector)

    def _welcome(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._nameless[connection.fileno()] = (connection, bytearray())
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        """Who calls says his number; no byte of what follows is taken here."""
        connection, number = self._nameless[fd]
        try:
            data = connection.recv(_NUMBER_BYTES - len(number))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        number += data
        if data and len(number) < _NUMBER_BYTES:
            return
        selector.unregister(connection)
        del self._nameless[fd]
        node = int.from_bytes(number, "big")
        if data and self._own.node < node < self._own.nnodes and node not in self.found:
            self.found[node] = connection
        else:
            connection.close()

    def close(self) -> None:
        for connection, _ in self._nameless.values():
            connection.close()
        self._gate.close(self._selector)
        self._selector.close()

"""Where the hosts of a job meet: node 0 gathers one record from each, and gives all of them to everybody.

Two operations a host, whatever number of ranks it has: its record goes in, the table comes out. Nothing else goes through node 0:
hosts talk to each other afterwards (:mod:`ncclx_mpi.bootstrap.mesh`).
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import selectors
import socket
import time
from collections.abc import Sequence

from ncclx_mpi.bootstrap import gate, wire
from ncclx_mpi.bootstrap.gate import Gate
from ncclx_mpi.bootstrap.handover import TIMEOUT_VARIABLE
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.record import Record, odd_ones
from ncclx_mpi.bootstrap.wire import Message, ProtocolError, Reader

_FIRST_PORT, _PORTS, _CANDIDATES = 20000, 12000, 8
"""Below the ports that Linux gives to clients."""
_RETRY_SECONDS = (0.02, 0.2)
_RECORD_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0


class JobRefused(RuntimeError):
    """The hosts cannot make a job together."""


def ports_of(token: bytes) -> list[int]:
    """Where to look for the store of a job, one after the other, if nobody has said a port: the first one may be taken."""
    digest = hashlib.sha256(b"port" + token).digest()
    return [_FIRST_PORT + int.from_bytes(digest[2 * k : 2 * k + 2], "big") % _PORTS for k in range(_CANDIDATES)]


def open_store(host: str, ports: Sequence[int]) -> socket.socket:
    """The socket of the store, on node 0, at the first port that is free.

    Raises
    ------
    RuntimeError
        None is.
    """
    reason: OSError | None = None
    for port in ports:
        try:
            return gate.listen(host, port)
        except OSError as error:
            reason = error
    assert reason is not None
    raise RuntimeError(f"node 0 cannot listen at {host}, port {_either(ports)}: {reason.strerror}; choose another port") from None


class Store:
    """The gathering on node 0.

    Parameters
    ----------
    listener
        From :func:`open_store`; the store owns it.
    own
        What node 0 says of itself.
    token
        The job's.
    """

    def __init__(self, listener: socket.socket, own: Record, token: bytes) -> None:
        self._own = own
        self._gate = Gate(listener, token, self._welcome)
        self._selector = selectors.DefaultSelector()
        self._records: dict[int, Record] = {own.node: own}
        self._connections: dict[int, tuple[socket.socket, Reader, float]] = {}
        self._nodes: dict[int, int] = {}  # of the connections that have sent their record

    def gather(self, patience: Patience) -> list[Record]:
        """Wait for all hosts, and tell them of each other.

        Raises
        ------
        TimeoutError
            Some did not come in time; names them.
        JobRefused
            They cannot make a job; says which host is at fault. All that have come are told the same.
        """
        self._gate.register(self._selector)
        try:
            while len(self._records) < self._own.nnodes:
                patience.check()
                if patience.is_over:
                    raise TimeoutError(self._missing(patience.seconds))
                for key, _ in self._selector.select(patience.slice):
                    key.data(self._selector, key.fd)
                self._expire()
            records = [self._records[node] for node in range(self._own.nnodes)]
            if text := odd_ones(records):
                raise JobRefused(text)
            self._tell({"records": [record.as_message() for record in records]})
            return records
        except (TimeoutError, JobRefused) as error:
            self._tell({"refused": str(error)})
            raise
        finally:
            self._close()

    def _missing(self, seconds: float) -> str:
        missing = [node for node in range(self._own.nnodes) if node not in self._records]
        nodes = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:16]))}{', ...' if len(missing) > 16 else ''}"
        return (
            f"node 0 waited {seconds:g} s, but {nodes} of {self._own.nnodes} did not come; they did not start, "
            f"or do not reach {self._own.host} (more time: {TIMEOUT_VARIABLE})"
        )

    def _welcome(self, connection: socket.socket) -> None:
        self._connections[connection.fileno()] = (connection, Reader(), time.monotonic() + _RECORD_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        """A host has said something, which should be its record, or has gone."""
        connection, reader, _ = self._connections[fd]
        try:
            data = connection.recv(1 << 16)
            records = [Record.from_message(message) for message in reader.feed(data)]
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            data, records = b"", []
        if not data:
            self._forget(fd)
        elif records:
            records[0].address = connection.getpeername()[0]
            self._enter(fd, records[0])

    def _enter(self, fd: int, record: Record) -> None:
        self._nodes[fd] = record.node
        if not 0 <= record.node < self._own.nnodes or record.nnodes != self._own.nnodes:
            raise JobRefused(odd_ones([self._own, record]) or f"{record} came, but there are {self._own.nnodes} nodes, from 0")
        other = self._records.setdefault(record.node, record)
        if other is not record:
            raise JobRefused(f"two hosts came as node {record.node}: {other.host} and {record.host}; each has a number of its own")

    def _forget(self, fd: int) -> None:
        connection, _, _ = self._connections.pop(fd)
        self._selector.unregister(connection)
        if fd in self._nodes:
            del self._records[self._nodes.pop(fd)]
        connection.close()

    def _expire(self) -> None:
        self._gate.expire(self._selector)
        now = time.monotonic()
        for fd, (_, _, until) in list(self._connections.items()):
            if until < now and fd not in self._nodes:
                self._forget(fd)

    def _tell(self, message: Message) -> None:
        """Send the last word to all that have sent a record."""
        end = time.monotonic() + _GOODBYE_SECONDS
        for fd in self._nodes:
            connection = self._connections[fd][0]
            with contextlib.suppress(OSError):
                connection.settimeout(max(0.001, end - time.monotonic()))
                for part in _parts(message):
                    connection.sendall(wire.pack(part))

    def _close(self) -> None:
        self._gate.close(self._selector)
        for connection, _, _ in self._connections.values():
            connection.close()
        self._selector.close()


def _parts(message: Message) -> list[Message]:
    """A table of many hosts goes out record by record: no message is long."""
    records = message.get("records")
    if records is None:
        return [message]
    return [{"of": len(records), "record": record} for record in records]


def enter(host: str, ports: Sequence[int], own: Record, token: bytes, patience: Patience) -> list[Record]:
    """Enter the record of this host, which is not node 0, and wait for those of all.

    Raises
    ------
    TimeoutError
        Nobody served us in time; says why.
    JobRefused
        The hosts cannot make a job together, or tokens differ.
    """
    reason: Exception | str = "nobody listens there"
    turn = 0
    while not patience.is_over:
        port = ports[turn % len(ports)]
        turn += 1
        try:
            with gate.connect(host, port, token, patience) as connection:
                connection.sendall(wire.pack(own.as_message()))
                return _table(connection, host, patience)
        except gate.Refused:
            reason = f"the process that listens at {host}:{port} has another token"
            if len(ports) == 1:
                raise JobRefused(f"node {own.node} was refused: {reason}; give all hosts of a job the same one") from None
        except (OSError, ProtocolError) as error:
            reason = error
        patience.check(random.uniform(*_RETRY_SECONDS))  # not all at once
    raise TimeoutError(
        f"node {own.node} of {own.nnodes} waited {patience.seconds:g} s for node 0 at {host}, port {_either(ports)} ({reason}); "
        f"it did not start, or is not reached (more time: {TIMEOUT_VARIABLE})"
    )


def _table(connection: socket.socket, host: str, patience: Patience) -> list[Record]:
    reader = Reader()
    records: list[Record] = []
    count = 1
    peer = connection.getpeername()[0]
    while len(records) < count:
        for message in wire.receive(connection, reader, patience):
            if "refused" in message:
                raise JobRefused(str(message["refused"]))
            records.append(Record.from_message(message.get("record", {})))
            count = int(message.get("of", 0))
    records[0].address = peer  # node 0 does not know as what others reach it
    return records


def _either(ports: Sequence[int]) -> str:
    return str(ports[0]) if len(ports) == 1 else f"one of {', '.join(map(str, ports))}"

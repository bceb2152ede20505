"""Where processes of two jobs of one user meet on this machine, and what their speakers tell each other.

A port is an abstract Unix socket that listens: it lives in no file system and vanishes with its owner. Its name has what a client needs:
where it is, whose it is, and a token; that both are of one user is asked of the system, which knows (``SO_PEERCRED``)::

    ncclx_mpi-port-MACHINE-JOB.RANK.NUMBER:TOKEN

Speakers exchange messages of which each side knows how many there are, so nothing that the program sends over the same connection
afterwards is taken for one. No call of this module waits: whoever does asks again, and makes progress meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import socket
import struct
import threading
from pathlib import Path
from typing import Any

from ncclx_mpi.bootstrap import handover
from numba_kernels.rows import NamedTuple
from numba_kernels.sha256 import sha256

PREFIX = "ncclx_mpi-port"
_NAME = re.compile(rf"{PREFIX}-([0-9a-f]{{8}})-([0-9a-f]{{1,16}})\.([0-9a-f]{{1,8}})\.([0-9a-f]{{1,8}}):[0-9a-f]{{16}}")
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 16 << 20
_READ_BYTES = 1 << 16
_BACKLOG = 128
_numbers = itertools.count()


class Place(NamedTuple):
    """What the name of a port says: whether it is on this machine, of which job and rank, and which one of that rank's it is."""

    is_here: bool
    job: int
    rank: int
    number: int


class Port:
    """A port of this process.

    Parameters
    ----------
    job, rank
        Of this process.

    Attributes
    ----------
    name : str
        What a client has to know.
    number : int
        Which one of this process's it is.
    clients : list
        Those that have come and had no answer yet.
    lock
        Held by the thread that looks at them.
    """

    def __init__(self, job: int, rank: int) -> None:
        self.number = next(_numbers)
        address = f"{PREFIX}-{_machine_digest()}-{job:x}.{rank:x}.{self.number:x}"
        self.clients: list[Any] = []
        self.lock = threading.Lock()
        self._token = os.urandom(8).hex()
        self.name = f"{address}:{self._token}"
        self._listener = handover.listen(f"\0{address}", _BACKLOG)
        self._listener.setblocking(False)

    @property
    def is_closed(self) -> bool:
        """Whether it accepts nobody any more."""
        return self._listener.fileno() < 0

    def fileno(self) -> int:
        """What can be read from when a client has come."""
        return self._listener.fileno()

    def accept(self) -> SocketTalk | None:
        """The next client of this user, None while there is none; it has proved nothing yet."""
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if handover.peer_of(connection)[1] == os.getuid():
                return SocketTalk(connection)
            connection.close()
        return None

    def is_for(self, token: Any) -> bool:
        """Whether a client, which is of this user, knows the whole name."""
        return bool(token == self._token)

    def close(self) -> None:
        """Accept nobody any more, and send away who has had no answer."""
        self._listener.close()
        with self.lock:
            clients, self.clients = self.clients, []
        for talk, _ in clients:
            talk.close()


def place(name: str) -> Place | None:
    """What a name says, None if it can be the name of no port."""
    found = _NAME.fullmatch(name)
    return found and Place(found[1] == _machine_digest(), *(int(found[group], 16) for group in (2, 3, 4)))


def token_of(name: str) -> str:
    """The part of a port's name that its address does not have."""
    return name.partition(":")[2]


def connect(name: str) -> SocketTalk:
    """A connection with the port of that name.

    Raises
    ------
    ConnectionError
        There is no such port, or it is another user's.
    BlockingIOError
        Too many ask there at once: it may be tried again.
    """
    address = name.partition(":")[0]
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    client.setblocking(False)
    try:
        client.connect(f"\0{address}")
        if handover.peer_of(client)[1] != os.getuid():
            raise ConnectionRefusedError("another user has it")
    except OSError:
        client.close()
        raise
    return SocketTalk(client)


class SocketTalk:
    """Messages to and from the speaker of another group.

    Parameters
    ----------
    connection
        It is closed at the end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._out = bytearray()
        self._in = bytearray()

    def fileno(self) -> int:
        """What can be read from when the other side has said something."""
        return self._connection.fileno()

    def say(self, message: Any) -> None:
        """Send what JSON can write, as far as :meth:`poll` gets."""
        data = json.dumps(message).encode()
        self._out += _LENGTH.pack(len(data)) + data

    def poll(self) -> Any:
        """The next message whole, None while there is none; also sends what was said.

        Raises
        ------
        ConnectionError
            The other side has gone, or says what no speaker would.
        """
        self.flush()
        if (length := self._missing()) > 0:
            data = self._received(length)
            if data == b"":
                raise ConnectionResetError("the other side has gone")
            self._in += data or b""
        if self._missing():
            return None
        message = bytes(self._in[_LENGTH.size :])
        self._in.clear()
        try:
            return json.loads(message)
        except ValueError:
            raise ConnectionResetError("the other side is no ncclx_mpi") from None

    def flush(self) -> bool:
        """Send what was said, as far as that goes; whether all has been sent."""
        if self._out:
            with contextlib.suppress(BlockingIOError):
                sent = self._connection.send(self._out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self._out[:sent]
        return not self._out

    def _missing(self) -> int:
        """Bytes that are missing of the message that comes, or of its length."""
        if len(self._in) < _LENGTH.size:
            return _LENGTH.size - len(self._in)
        (length,) = _LENGTH.unpack_from(self._in)
        if length > _MOST_BYTES:
            raise ConnectionResetError("the other side is no ncclx_mpi")
        return int(length) + _LENGTH.size - len(self._in)

    def _received(self, most: int) -> bytes | None:
        if not select.select([self._connection], [], [], 0)[0]:
            return None
        with contextlib.suppress(BlockingIOError):
            return self._connection.recv(min(most, _READ_BYTES), socket.MSG_DONTWAIT)
        return None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def talk_over(fd: int) -> SocketTalk:
    """A talk over a connected socket of the program, which stays the program's.

    Raises
    ------
    OSError
        The descriptor is none of a connected socket.
    """
    connection = socket.socket(fileno=os.dup(fd))
    try:
        connection.getpeername()
    except OSError:
        connection.close()
        raise
    return SocketTalk(connection)


def _machine_digest() -> str:
    return sha256(machine().encode()).hexdigest()[:8]


def machine() -> str:
    """What processes have in common that can meet: the machine, what they see of its sockets, and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.getuid()}"

"""Messages between a program that calls :func:`ncclx_mpi.launch.run` and the process that forks for it."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

MAIN_ALIAS = "__ranks_main__"
"""Name under which ranks run the caller's main file, so that its ``if __name__ == "__main__"`` part stays quiet."""
_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


@dataclass
class Request:
    """A call to make on all ranks.

    Attributes
    ----------
    call
        Pickle of ``(function, args)``, opened by the ranks.
    main
        File, or ``-m`` and a module name, from which the ranks make the caller's ``__main__``; empty if they need none.
    preload
        Packages that the server imports once, so that not every rank has to.
    topology
        As :class:`ncclx_mpi.launch.job.Settings` has it.
    """

    call: bytes
    nranks: int
    timeout: float
    grace: float
    cwd: str
    path: list[str]
    environ: dict[str, str]
    main: list[str] = field(default_factory=list)
    preload: list[str] = field(default_factory=list)
    topology: str = ""


@dataclass
class Output:
    """Something that ranks wrote."""

    stream: int
    data: bytes


@dataclass
class Reply:
    """The end of a job.

    Attributes
    ----------
    values
        What each rank sent back: a pickle of ``("value", value)`` or ``("error", exception or None, traceback text)``.
    failed_rank
        The rank that failed first, -1 for none; `story` says how.
    report
        Where all ranks were when the time was up.
    refused
        Why no rank was started; empty if they were.
    """

    values: list[bytes]
    failed_rank: int
    story: str
    is_timed_out: bool
    abort_code: int | None
    report: str = ""
    refused: str = ""


def pack(message: Any) -> bytes:
    """One object as it travels."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def send(connection: socket.socket, message: Any) -> None:
    """Send one object."""
    connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any:
    """Receive one object.

    Raises
    ------
    EOFError
        The other side has gone.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


class Inbox:
    """Takes in objects from a connection as they come, for a loop that must not wait for the rest of one.

    Attributes
    ----------
    is_ended : bool
        The other side has gone, and everything of it was returned.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()
        self.is_ended = False

    def receive(self) -> list[Any]:
        """What has come completely since the last call."""
        try:
            part = self._connection.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            part = b""
        self.is_ended = not part
        self._data += part
        return list(iter(self._next, None))

    def _next(self) -> Any:
        """The first object, None if it is not complete."""
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        message = pickle.loads(memoryview(self._data)[_LENGTH.size : end])
        del self._data[:end]
        return message


def _exactly(connection: socket.socket, nbytes: int) -> bytearray:
    data = bytearray()
    while len(data) < nbytes:
        part = connection.recv(min(_CHUNK, nbytes - len(data)))
        if not part:
            raise EOFError("the other side closed the connection")
        data += part
    return data

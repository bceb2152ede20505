"""What hosts of a job say to each other: JSON objects, each behind its length, none longer than 64 KiB."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from ncclx_mpi.bootstrap.patience import Patience

Message = dict[str, Any]
MOST_BYTES = 64 << 10
_LENGTH = struct.Struct("!I")
_PIECE_BYTES = 1 << 16


class ProtocolError(Exception):
    """The other side does not speak as one of ours does."""


def pack(message: Message) -> bytes:
    """One message as it travels.

    Raises
    ------
    ProtocolError
        It is too long.
    """
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes is longer than the {MOST_BYTES} that hosts accept")
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Makes messages of the bytes of one connection."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take what has come; returns the messages that are complete.

        Raises
        ------
        ProtocolError
            That is no message, or too long a one.
        """
        self._data += data
        found: list[Message] = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MOST_BYTES:
                raise ProtocolError(f"a message is said to have {length} bytes, more than {MOST_BYTES}")
            if len(self._data) < _LENGTH.size + length:
                break
            found.append(_parse(bytes(self._data[_LENGTH.size : _LENGTH.size + length])))
            del self._data[: _LENGTH.size + length]
        return found


def _parse(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("a message is no JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("a message is no JSON object")
    return message


def receive(connection: socket.socket, reader: Reader, patience: Patience) -> list[Message]:
    """The next messages of a connection, at least one.

    Raises
    ------
    TimeoutError
        None came in time.
    OSError, ProtocolError
        The connection broke, or something else came.
    """
    while not patience.is_over:
        patience.check()
        connection.settimeout(max(0.001, patience.slice))
        try:
            data = connection.recv(_PIECE_BYTES)
        except TimeoutError:
            continue
        if not data:
            raise ConnectionResetError("the other side closed the connection")
        if found := reader.feed(data):
            return found
    raise TimeoutError("no answer")

"""Who may talk to a host of a job: whoever proves that he knows the job's token, which itself never travels.

::

    server                                                        client
      | -- magic, nonce s ------------------------------------------> |
      | <--------------------- nonce c, HMAC(token, "client" s c) --- |
      | -- "+", HMAC(token, "server" c s) --------------------------> |     or "-" and zeros: refused

The client proves himself first, so that a stranger learns nothing but a random number. These 41, 64 and 33 bytes are the same in all
versions; what may differ is said afterwards. A server keeps at most 64 connections that have proved nothing, each for at most 5 s; of more
than that, the oldest is dropped, whose client tries again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ncclx_mpi.bootstrap.patience import Patience

MAGIC = b"ncclx_mpi"
_NONCE_BYTES, _MAC_BYTES = 32, 32
_GREETING_BYTES, _PROOF_BYTES, _REPLY_BYTES = len(MAGIC) + _NONCE_BYTES, _NONCE_BYTES + _MAC_BYTES, 1 + _MAC_BYTES
_MOST_STRANGERS = 64
_STRANGER_SECONDS = 5.0
_CLIENT_SECONDS = 2.0
_BACKLOG = 512

Welcome = Callable[[socket.socket], None]


class Refused(Exception):
    """The other side and we have different tokens."""


@dataclass
class _Stranger:
    connection: socket.socket
    nonce: bytes
    until: float
    data: bytearray = field(default_factory=bytearray)


class Gate:
    """Accepts connections, and hands on those of clients that know the token.

    Parameters
    ----------
    listener
        Socket that listens; the gate owns it.
    token
        The job's.
    welcome
        Gets each connection that is one of ours.
    """

    def __init__(self, listener: socket.socket, token: bytes, welcome: Welcome) -> None:
        self._listener = listener
        self._token = token
        self._welcome = welcome
        self._strangers: dict[int, _Stranger] = {}
        listener.setblocking(False)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a loop call us, as ``key.data(selector, fd)``."""
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def expire(self, selector: selectors.BaseSelector) -> None:
        """Drop those who took too long."""
        now = time.monotonic()
        for fd, stranger in list(self._strangers.items()):
            if stranger.until < now:
                self._drop(selector, fd)

    def close(self, selector: selectors.BaseSelector) -> None:
        """Accept no more."""
        for fd in list(self._strangers):
            self._drop(selector, fd)
        selector.unregister(self._listener)
        self._listener.close()

    def _accept(self, selector: selectors.BaseSelector, _: int) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError:  # he has gone again, or there is no descriptor for him now
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            self._drop(selector, next(iter(self._strangers)))
        connection.setblocking(False)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            connection.send(MAGIC + nonce)
        except OSError:
            connection.close()
            return
        self._strangers[connection.fileno()] = _Stranger(connection, nonce, time.monotonic() + _STRANGER_SECONDS)
        selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        stranger = self._strangers[fd]
        try:
            data = stranger.connection.recv(_PROOF_BYTES - len(stranger.data))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.data += data
        if not data:
            self._drop(selector, fd)
        elif len(stranger.data) == _PROOF_BYTES:
            self._judge(selector, fd)

    def _judge(self, selector: selectors.BaseSelector, fd: int) -> None:
        stranger = self._strangers[fd]
        nonce, proof = bytes(stranger.data[:_NONCE_BYTES]), bytes(stranger.data[_NONCE_BYTES:])
        is_ours = hmac.compare_digest(proof, _proof(self._token, b"client", stranger.nonce, nonce))
        answer = b"+" + _proof(self._token, b"server", nonce, stranger.nonce) if is_ours else b"-" + bytes(_MAC_BYTES)
        with contextlib.suppress(OSError):
            stranger.connection.send(answer)
        if not is_ours:
            self._drop(selector, fd)
            return
        del self._strangers[fd]
        selector.unregister(stranger.connection)
        self._welcome(stranger.connection)

    def _drop(self, selector: selectors.BaseSelector, fd: int) -> None:
        stranger = self._strangers.pop(fd)
        selector.unregister(stranger.connection)
        stranger.connection.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens where others reach this host as `host`; port 0: at any port.

    A host's own name often means a loopback address on the host itself, so only who is asked for a loopback address by number
    listens there, and at all addresses otherwise.

    Raises
    ------
    OSError
        The port is taken, or `host` is not known.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if host not in (address[0], "localhost") or not is_loopback(str(address[0])):
        address = ("", port)
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_loopback(address: str) -> bool:
    """Whether only this host reaches itself there."""
    return address.startswith("127.") or address == "::1"


def connect(host: str, port: int, token: bytes, patience: Patience) -> socket.socket:
    """A connection with a gate, after both sides have proved that they know the token.

    Raises
    ------
    Refused
        The other side has another token.
    OSError
        There is no gate, or it dropped us: it may be tried again.
    """
    patience.check()
    connection = socket.create_connection((host, port), timeout=max(0.001, min(patience.left, _CLIENT_SECONDS)))
    try:
        if connection.getsockname() == connection.getpeername():  # nobody listens: the system took that very port for our own end
            raise ConnectionRefusedError("nobody listens there")
        end = time.monotonic() + min(patience.left, _CLIENT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = _exactly(connection, _GREETING_BYTES, end)
        if not greeting.startswith(MAGIC):
            raise ConnectionError("what listens there is not ncclx_mpi")
        theirs, ours = greeting[len(MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(ours + _proof(token, b"client", theirs, ours))
        answer = _exactly(connection, _REPLY_BYTES, end)
        if answer[:1] != b"+" or not hmac.compare_digest(answer[1:], _proof(token, b"server", ours, theirs)):
            raise Refused("the token of the job differs")
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(token: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(token, side + first + second, hashlib.sha256)


def _exactly(connection: socket.socket, nbytes: int, end: float) -> bytes:
    data = b""
    while len(data) < nbytes:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        data += part
    return data

"""How ranks learn by what ranks of other hosts are reached: each gives its endpoint to the agent of its host, and gets those of all.

Both are one packet of a Unix socket of which this user's processes alone have the token. The table comes as a descriptor of a memory file
that all ranks of the host share, so that an agent never waits for a rank that does not read.
"""

from __future__ import annotations

import contextlib
import hmac
import mmap
import os
import selectors
import socket
import struct
from collections.abc import Callable, Sequence

from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.patience import Patience

MOST_BYTES = 16 << 10
"""Of an endpoint: one of UCX has some hundred bytes an interface."""
TOKEN_LENGTH = 32
_HEAD = struct.Struct(f"!{TOKEN_LENGTH}sI")
_COUNT = struct.Struct("!I")
_MOST_ASKING = 4096
_REASON_BYTES = 4096

Given = Callable[[int, bytes], None]


def name_of(job: str) -> str:
    """Where the agent of a job that has this name on its host gets endpoints."""
    return f"\0{job.lstrip(chr(0))}-endpoints"


class Exchange:
    """The agent's side.

    Parameters
    ----------
    name
        From :func:`name_of`.
    token
        32 characters that the ranks of this host know.
    given
        Gets the endpoint of each rank.
    """

    def __init__(self, name: str, token: str, given: Given) -> None:
        self._token = token.encode()
        self._given = given
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(name)
        self._listener.listen(_MOST_ASKING)
        self._listener.setblocking(False)
        self._asking: dict[int, tuple[socket.socket, int]] = {}
        self._answer: tuple[bytes, list[int]] | None = None
        self._selector: selectors.BaseSelector | None = None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a loop call us, as ``key.data(selector, fd)``."""
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def answer(self, endpoints: Sequence[bytes]) -> None:
        """Give the table to all who have asked, and who will."""
        table = b"".join(_COUNT.pack(len(endpoint)) + endpoint for endpoint in endpoints)
        self._give((b"+", [memory_file("ncclx_mpi-endpoints", table)]))

    def refuse(self, reason: str) -> None:
        """Tell all who have asked, and who will, that there will be no table; the first word counts."""
        if self._answer is None:
            self._give((b"-" + reason.encode()[:_REASON_BYTES], []))

    def close(self) -> None:
        """Close everything, in a fork as well."""
        for connection, _ in self._asking.values():
            connection.close()
        self._asking.clear()
        self._listener.close()
        for fd in self._answer[1] if self._answer else []:
            os.close(fd)
        self._answer = None

    def _give(self, answer: tuple[bytes, list[int]]) -> None:
        self._answer = answer
        for fd, (_, rank) in list(self._asking.items()):
            if rank >= 0:
                self._reply(fd)

    def _reply(self, fd: int) -> None:
        assert self._answer is not None
        with contextlib.suppress(OSError):
            socket.send_fds(self._asking[fd][0], [self._answer[0]], self._answer[1])
        self._forget(fd)

    def _forget(self, fd: int) -> None:
        if self._selector is not None:
            self._selector.unregister(fd)
        self._asking.pop(fd)[0].close()

    def _accept(self, selector: selectors.BaseSelector, _: int) -> None:
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return
        if handover.peer_of(connection)[1] != os.getuid() or len(self._asking) >= _MOST_ASKING:
            connection.close()
            return
        connection.setblocking(False)
        self._asking[connection.fileno()] = (connection, -1)
        selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        """A rank has said who it is; or has gone, or is none."""
        connection, rank = self._asking[fd]
        try:
            packet = connection.recv(_HEAD.size + MOST_BYTES + 1)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if rank >= 0 or not _HEAD.size <= len(packet) <= _HEAD.size + MOST_BYTES:
            return self._forget(fd)
        token, rank = _HEAD.unpack_from(packet)
        if not hmac.compare_digest(token, self._token):
            return self._forget(fd)
        self._asking[fd] = (connection, rank)
        self._given(rank, packet[_HEAD.size :])
        if self._answer is not None and fd in self._asking:
            self._reply(fd)


def memory_file(name: str, data: bytes) -> int:
    """The descriptor of a memory file that holds `data`, for others to read."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.truncate(fd, len(data))
    with mmap.mmap(fd, len(data)) as mapped:
        mapped[:] = data
    return fd


class Directory:
    """A rank's side.

    Parameters
    ----------
    name, token
        Those of the :class:`Exchange`.
    """

    def __init__(self, name: str, token: str) -> None:
        self._name = name
        self._token = token

    def exchange(self, rank: int, endpoint: bytes, patience: Patience) -> list[bytes]:
        """Give the endpoint of `rank`, and wait for those of all ranks.

        Raises
        ------
        RuntimeError
            There will be none: a rank has ended without one, or the agent of this host has gone.
        TimeoutError
            Not all have come in time.
        """
        if len(endpoint) > MOST_BYTES:
            raise RuntimeError(
                f"rank {rank}: an endpoint of {len(endpoint)} bytes is longer than {MOST_BYTES}; let UCX use fewer devices"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as agent:
            try:
                agent.connect(self._name)
                agent.send(_HEAD.pack(self._token.encode(), rank) + endpoint)
                reply, fds = _reply(agent, patience)
            except ConnectionError:
                reply, fds = b"", []
        if not reply:
            raise RuntimeError(f"rank {rank}: the agent of this host ended before all ranks of the job had started")
        if not fds:
            raise RuntimeError(f"rank {rank}: {reply[1:].decode(errors='replace')}")
        return _table(fds[0])


def _reply(agent: socket.socket, patience: Patience) -> tuple[bytes, list[int]]:
    while not patience.is_over:
        agent.settimeout(max(0.001, patience.slice))
        with contextlib.suppress(TimeoutError):
            reply, fds, _, _ = socket.recv_fds(agent, _REASON_BYTES + 1, 1)
            return reply, list(fds)
    raise TimeoutError(
        f"not all ranks of the job have started within {patience.seconds:g} s: they never import MPI, or start later "
        f"(more time: {handover.TIMEOUT_VARIABLE})"
    )


def _table(fd: int) -> list[bytes]:
    try:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
    found, at = [], 0
    while at < len(data):
        (length,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size + length
        found.append(data[at - length : at])
    return found

"""Where unrelated processes of one machine meet: rank 0 hands the descriptors of the job's memory to the others.

The meeting place is an abstract Unix socket, which lives in no file system and vanishes with its owner. Its name and a
token are derived from what the launcher made unique to the job. Both sides check that the other runs under the same
user (``SO_PEERCRED``), and every wait has an end.

A peer sends one line, ``TOKEN RANK SIZE``; the answer is one byte, ``+`` with the descriptors attached, or ``-`` and a reason.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Collection

from ncclx_mpi import rc
from numba_kernels.sha256 import sha256

TIMEOUT_VARIABLE = "NCCLX_MPI_JOIN_TIMEOUT"
_RETRY_SECONDS = 0.005
_MAX_LINE = 512
_LINE_SECONDS = 1.0
"""For a peer to send its line; who is slower tries again."""
_HOLDER_SECONDS = 1.0
_MOST_FDS = 2
_OTHER_NAMESPACE = (
    "it is in another process namespace (container) than who started the memory of this node, so neither sees whether the other lives; have "
    "all ranks of a node in one container, or give it the processes of the host (--pid=host)"
)
_NOT_YET = (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, TimeoutError, BlockingIOError)
"""Rank 0 is not there, or has more ranks waiting than its queue holds: that is EAGAIN."""


FdsOf = Callable[[int], list[int]]
"""The descriptors that a rank is to have."""


def join_timeout() -> float:
    """Seconds to wait for the other ranks at start (``rc.join_timeout``, 60)."""
    return float(getattr(rc, "join_timeout"))  # noqa: B009 - rc answers by its class, which type checkers do not see


def place(job: str) -> tuple[str, str]:
    """Socket name and token of the job that the launcher calls `job`."""
    digest = sha256(f"{os.getuid()} {job}".encode()).hexdigest()
    return f"\0ncclx_mpi-{os.getuid()}-{digest[:24]}", digest[24:]


def listen(name: str, backlog: int) -> socket.socket:
    """A socket that waits for peers at `name`.

    Raises
    ------
    RuntimeError
        Another process has the name; says whose.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        server.bind(name)
    except OSError as error:
        server.close()
        raise RuntimeError(f"the meeting place @{name[1:]} is taken ({error.strerror}): {_story_of_holder(name)}") from None
    server.listen(backlog)
    return server


def _story_of_holder(name: str) -> str:
    """Who has a name that we cannot have. Names follow from what the launcher says of the job, which any user may read and be first."""
    holder = _holder(name)
    if holder is None:
        return "by a process that does not answer; start the job again, under another port or job id"
    pid, uid = holder
    if uid == os.getuid():
        return f"two processes were started as rank 0 of this job, the other one is {pid}"
    return f"process {pid} of another user ({uid}) holds it; start the job again, under another port or job id"


def _holder(name: str) -> tuple[int, int] | None:
    """Process and user that listen at `name`; None if nobody does, nor begins to."""
    end = time.monotonic() + _HOLDER_SECONDS
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client, contextlib.suppress(*_NOT_YET):
            client.settimeout(_HOLDER_SECONDS)
            client.connect(name)
            return peer_of(client)
        time.sleep(_RETRY_SECONDS)
    return None


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def answer(
    connection: socket.socket, token: str, size: int, fds_of: FdsOf, reason_against: Callable[[int], str] = lambda _: ""
) -> int | None:
    """Serve one peer: give its descriptors to a process of this user that knows the token. Returns the peer's rank, None if refused.

    `reason_against` says of a rank why it gets none, if it does not.
    """
    with connection:
        connection.settimeout(_LINE_SECONDS)
        try:
            if peer_of(connection)[1] != os.getuid():
                return None
            word, rank, peers = connection.recv(_MAX_LINE).decode().split()
            reason = _reason_against(word, int(rank), int(peers), token, size) or _unseen(connection) or reason_against(int(rank))
            if reason:
                connection.sendall(b"-" + reason.encode())
                return None
            socket.send_fds(connection, [b"+"], fds_of(int(rank)))
        except (OSError, ValueError):
            return None
        return int(rank)


def _reason_against(word: str, rank: int, peers: int, token: str, size: int) -> str:
    if word != token:
        return "wrong token"
    if peers != size or not 0 <= rank < size:
        return f"rank {rank} believes in {peers} ranks, rank 0 in {size}: they were not started by one command"
    return ""


def _unseen(connection: socket.socket) -> str:
    """Why ranks cannot share memory if the other end, which has just spoken, is a process that this one cannot see."""
    return "" if peer_of(connection)[0] else _OTHER_NAMESPACE


def hand_out(server: socket.socket, token: str, size: int, fds_of: FdsOf) -> None:
    """Give their descriptors to all other ranks.

    Raises
    ------
    TimeoutError
        Some did not come in time; names them.
    """
    missing = set(range(1, size))
    end = time.monotonic() + join_timeout()
    while missing:
        left = end - time.monotonic()
        server.settimeout(max(0.001, left))
        try:
            if left < 0:  # strangers that come again and again do not prolong it
                raise TimeoutError
            connection, _ = server.accept()
        except TimeoutError:
            raise TimeoutError(
                f"rank 0 waited {join_timeout():g} s, but ranks {short(missing)} of {size} did not come; they did not start, "
                f"never import MPI, or run on another machine (more time: {TIMEOUT_VARIABLE})"
            ) from None
        rank = answer(connection, token, size, fds_of)
        if rank is not None:
            missing.discard(rank)


def fetch(name: str, token: str, rank: int, size: int, seconds: float = 0.0) -> list[int]:
    """Get the descriptors of the job's memory from rank 0, or from the launcher, within `seconds`, 0: :func:`join_timeout`.

    Raises
    ------
    TimeoutError
        Nobody served it in time.
    RuntimeError
        We were refused, or the socket belongs to another user.
    """
    seconds = seconds or join_timeout()
    end = time.monotonic() + seconds
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
            client.settimeout(max(0.001, end - time.monotonic()))
            with contextlib.suppress(*_NOT_YET):
                client.connect(name)
                return _ask(client, token, rank, size)
        if time.monotonic() > end:
            raise TimeoutError(
                f"rank {rank} of {size} waited {seconds:g} s for rank 0, which did not come; it did not start, "
                f"never imports MPI, or runs on another machine (more time: {TIMEOUT_VARIABLE})"
            )
        time.sleep(_RETRY_SECONDS)


def _ask(client: socket.socket, token: str, rank: int, size: int) -> list[int]:
    pid, uid = peer_of(client)
    if uid != os.getuid():
        raise RuntimeError(f"the meeting place of this job is held by process {pid} of another user ({uid})")
    client.sendall(f"{token} {rank} {size}".encode())
    reply, fds, _, _ = socket.recv_fds(client, _MAX_LINE, _MOST_FDS)
    if not reply:
        raise ConnectionResetError
    for fd in fds:
        os.set_inheritable(fd, False)
    reason = _unseen(client) if reply[:1] == b"+" and fds else reply[1:].decode(errors="replace")
    if reason:
        for fd in fds:
            os.close(fd)
        raise RuntimeError(f"rank {rank} of {size} cannot join: {reason}")
    return list(fds)


def short(ranks: Collection[int]) -> str:
    """The first of so many ranks, and how many there are."""
    ordered = sorted(ranks)
    return str(ordered) if len(ordered) <= 16 else f"{str(ordered[:16])[:-1]}, ... {len(ordered)} in all]"

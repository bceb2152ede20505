"""Ranks that are reached by sockets of this process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import resource
import secrets
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import c_address, entry
from numba_kernels.layout import LINE, WORD, zeroed
from transports.addresses import addresses_of
from transports.base import Calls, Capabilities, DeathNotice, Functions
from transports.placed import PlacedTransport, word_at
from transports.tcp import channel, transfers
from transports.tcp.layout import BUFFER, GONE, GUEST, GUESTS, LINK, MAX_EAGER, STATE, TARGET_BYTES, UNREACHED, UP, WAYS
from transports.tcp.links import await_guests

_FLUSH_SECONDS = 1.0
"""At the end: until peers that take nothing are left alone with what they have."""
_LEAST_SILENCE = 20
"""Seconds after which the system gives an idle link up whose other end does not answer, or twice the patience if that is more: signs of
life of a job's hosts have told of it by then."""
_OTHER_DESCRIPTORS = 256
_MOST_READ = 64 << 20
"""Bytes that are read and dropped at the end, which is more than the system keeps: a peer may go on to send."""
_TOKEN_BYTES = 32
_HEAD = struct.Struct("!H32sH")
"""Of an endpoint: port, token, and how many addresses follow."""
_TARGET = struct.Struct("=HH4s8x")
"""``sockaddr_in``; its port is in the order of the network already."""
assert _TARGET.size == TARGET_BYTES


class Tcp(PlacedTransport):
    """Ranks whose processes have a socket that can be connected with: on other hosts, as a rule.

    Parameters
    ----------
    rank
        This process's world rank.
    size
        Number of ranks of the job.
    reached
        World ranks that are reached by it.
    on_death
        What is called when a peer is found dead; None: nothing.
    patience
        Seconds in which a link that is down may come back: a peer that does not answer is dead only after them.
    interfaces
        Those by whose addresses this rank is reached, as in ``"eth0,ib0"``; empty: all but the loopback, which is taken if there is no other.

    Raises
    ------
    OSError
        There can be no socket; says why.
    """

    name: ClassVar[str] = "tcp"
    needs: ClassVar[str] = "socket to connect with"

    def __init__(
        self,
        rank: int,
        size: int,
        reached: Collection[int],
        on_death: DeathNotice | None = None,
        patience: float = 0.0,
        interfaces: str = "",
    ) -> None:
        super().__init__(rank, size, reached, on_death, patience, LINK.total)
        self._hosts = _own_addresses([name.strip() for name in interfaces.split(",") if name.strip()])
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        _allow_sockets(len(self._reached))
        self._listener = socket.create_server(("", 0), backlog=1024)
        self._listener.setblocking(False)
        self._events = select.epoll()
        self._block, block_at = zeroed(STATE.total + LINE)
        self._state = -(-block_at // LINE) * LINE
        self._buffer, self._buffer_at = zeroed(2 * BUFFER)
        self._guests, self._guests_at = zeroed(GUESTS * GUEST.total)
        self._ways: dict[int, Any] = {}

    @property
    def caps(self) -> Capabilities:
        return Capabilities(max_eager=MAX_EAGER)

    @functools.cached_property
    def functions(self) -> Functions:
        return Functions.of(channel, transfers, transfers.poll, transfers.arm)

    @property
    def event(self) -> int:
        return self._events.fileno()

    @property
    def is_busy(self) -> bool:
        return bool(word_at(self._state + STATE.active_count).value) or any(self._word(peer, "unsent") for peer in self._ways)

    def why(self, peer: int) -> str:
        found = "they are on different hosts: TCP, by sockets of this library"
        return f"{found}; it goes by {self._ends_of(peer)}" if self._flags(peer) & UP else found

    def why_lost(self, peer: int) -> str:
        if peer not in self._ways or not self._flags(peer) & UNREACHED:
            return ""
        known = self._ways[peer].raw
        error, targets = int.from_bytes(known[WAYS.since : WAYS.since + WORD], sys.byteorder), known[WAYS.total :]
        addresses = (socket.inet_ntoa(targets[at + 4 : at + 8]) for at in range(0, len(targets), TARGET_BYTES))
        return f"rank {peer} cannot be connected with at {', '.join(addresses)}: {os.strerror(error)}"

    def endpoint(self) -> bytes:
        """Port and token, and the IPv4 addresses of this host."""
        return _HEAD.pack(self._listener.getsockname()[1], self._token, len(self._hosts)) + b"".join(self._hosts)

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        for field, value in (
            *calls._asdict().items(),
            ("engine", engine),
            *self._words_of_peers(peers),
            ("events", self._events.fileno()),
            ("listener", self._listener.fileno()),
            ("buffer", self._buffer_at),
            ("guests", self._guests_at),
            ("ticks_per_us", int(ticks_per_us())),
            ("patience", int(self._patience * 1e6 * ticks_per_us())),
            ("silence", max(_LEAST_SILENCE, int(2 * self._patience))),
        ):
            word_at(self._state + getattr(STATE, field)).value = value
        ctypes.memmove(self._state + STATE.token, self._token, _TOKEN_BYTES)
        entry(await_guests)(self._state)
        return self._state

    def connect(self, peer: int, endpoint: bytes) -> None:
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"tcp: {reason}")
        if not endpoint:
            raise ConnectionError(f"tcp: rank {peer} has not said where its socket is")
        port, token, count = _HEAD.unpack_from(endpoint)
        addresses = [endpoint[at : at + 4] for at in range(_HEAD.size, _HEAD.size + 4 * count, 4)]
        if not addresses:
            raise ConnectionError(f"tcp: rank {peer} has no IPv4 address")
        targets = b"".join(_TARGET.pack(socket.AF_INET, socket.htons(port), address) for address in addresses)
        head = bytearray(WAYS.total)
        head[WAYS.count : WAYS.count + WORD] = count.to_bytes(WORD, sys.byteorder)
        head[WAYS.token :] = token
        self._ways[peer] = block = ctypes.create_string_buffer(bytes(head) + targets, len(head) + len(targets))
        for field, value in (("ways", ctypes.addressof(block)), ("rank", self._places[peer]), ("state", self._state)):
            word_at(self._link(peer) + getattr(LINK, field)).value = value

    def greeting(self, peer: int) -> tuple[int, int, int]:
        """A function by C address, and its two arguments: makes the link, after which it is noticed when the peer ends."""
        return c_address(channel.greet), self._state, self._link(peer)

    def has_left(self, peer: int) -> bool:
        """Whether a peer has said goodbye."""
        return bool(self._flags(peer) & GONE)

    def close(self) -> None:
        """Wait until what was sent has come to the hosts of the peers, for a second at most, and close all sockets."""
        if self._events.closed:
            return
        end = time.monotonic() + _FLUSH_SECONDS
        sockets = [fd for peer in self._ways for fd in self._sockets_of(peer)]
        while any(map(_unacknowledged, sockets)) and time.monotonic() < end:
            time.sleep(1e-4)
        guests = (self._guests[number * GUEST.total // WORD] - 1 for number in range(GUESTS))
        for fd in (*sockets, *(fd for fd in guests if fd >= 0)):
            _close(fd)
        self._listener.close()
        self._events.close()

    def _word(self, peer: int, field: str) -> int:
        value: int = word_at(self._link(peer) + getattr(LINK, field)).value
        return value

    def _flags(self, peer: int) -> int:
        return self._word(peer, "flags")

    def _ends_of(self, peer: int) -> str:
        """The addresses of both ends of the link to a peer."""
        with socket.socket(fileno=os.dup(self._word(peer, "out") - 1)) as link:
            return f"{link.getsockname()[0]} to {link.getpeername()[0]}"

    def _sockets_of(self, peer: int) -> set[int]:
        return {self._word(peer, end) - 1 for end in ("out", "into") if self._word(peer, end)}


def _own_addresses(interfaces: Sequence[str]) -> list[bytes]:
    """The IPv4 addresses of these interfaces, or of all, four bytes each.

    Raises
    ------
    OSError
        One of them has none.
    """
    for name in interfaces:
        if not addresses_of([name], with_loopback=True):
            known = ", ".join(each for _, each in socket.if_nameindex() if addresses_of([each])) or "none"
            raise OSError(
                errno.ENODEV, f"NCCLX_MPI_INTERFACES names {name!r}, which has no IPv4 address here; those that have one: {known}"
            )
    if interfaces:
        return addresses_of(interfaces, with_loopback=True)
    return addresses_of(name for _, name in socket.if_nameindex()) or [socket.inet_aton("127.0.0.1")]


def _allow_sockets(number: int) -> None:
    """Let this process have so many more descriptors than a program opens, if the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, number + _OTHER_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _close(fd: int) -> None:
    """Close a socket. What has come by it is read first: else the system resets the connection, and what was sent may not arrive."""
    with contextlib.suppress(OSError):
        for _ in range(_MOST_READ >> 16):
            if not os.read(fd, 1 << 16):
                break
    os.close(fd)


def _unacknowledged(fd: int) -> int:
    """Bytes that were sent by a socket and have not come to the other host."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0

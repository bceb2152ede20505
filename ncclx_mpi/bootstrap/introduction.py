"""What ranks tell each other through the MPI of their launcher, before it ends: a token, who is on which host, where to meet.

All of it is collective over `comm`, the world of the real MPI, and raises the same on every rank.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclx_mpi.bootstrap.gate import is_loopback
from ncclx_mpi.bootstrap.record import machine_id

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap.meet_hosts import Place

_REACHING_SECONDS = 3.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_INTERFACE_REQUEST = struct.Struct("16s2xH4s16x")  # struct ifreq with a sockaddr_in
_SIX = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"


@dataclass
class Introduction:
    """What every rank knows afterwards.

    Attributes
    ----------
    token
        A secret that only this job has.
    place
        Where this rank is, if ranks are on several hosts.
    """

    token: str
    place: Place | None


def introduce(comm: Any) -> Introduction:
    """Introduce the ranks of `comm` to each other.

    Raises
    ------
    RuntimeError
        Ranks are not counted host by host, or a host does not reach the first one.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    token = comm.bcast(secrets.token_hex(16) if rank == 0 else None, root=0)
    hosts: list[tuple[str, str]] = comm.allgather((_host(), socket.gethostname()))
    nodes = _nodes([host for host, _ in hosts], [name for _, name in hosts])
    if len(nodes) == 1:
        return Introduction(token, None)
    from ncclx_mpi.bootstrap.meet_hosts import Place

    node = next(number for number, ranks in enumerate(nodes) if rank in ranks)
    names = [hosts[ranks[0]][1] for ranks in nodes]
    rendezvous = _agree_where_to_meet(comm, names, is_first=rank == nodes[node][0])
    return Introduction(token, Place(rank, size, rank - nodes[node][0], len(nodes[node]), node, len(nodes), rendezvous))


def _host() -> str:
    """The same for ranks that reach each other's sockets by name, and processes by number."""
    return " ".join([machine_id(), *(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("net", "pid"))])


def _nodes(hosts: Sequence[str], names: Sequence[str]) -> list[range]:
    """The ranks of each host."""
    starts = [rank for rank, host in enumerate(hosts) if rank == 0 or host != hosts[rank - 1]]
    for number, start in enumerate(starts):
        if hosts[start] in {hosts[earlier] for earlier in starts[:number]}:
            raise RuntimeError(
                f"rank {start} is on {names[start]}, as an earlier rank is, but rank {start - 1} is on {names[start - 1]}: ranks must be "
                "counted host by host (`-ppn N` of MPICH and Intel MPI, `--map-by slot` of Open MPI)"
            )
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(hosts)], strict=True)]


def _agree_where_to_meet(comm: Any, names: Sequence[str], is_first: bool) -> str:
    """The first of the addresses of rank 0's host at which the first rank of every other host reaches it."""
    with ExitStack() as stack:
        port, offered = 0, list[str]()
        if comm.Get_rank() == 0:
            port, offered = stack.enter_context(_listener()).getsockname()[1], addresses()
        port, offered = comm.bcast((port, offered), root=0)
        is_asked = is_first and comm.Get_rank() > 0
        reached = comm.allgather(reachable(offered, port, _REACHING_SECONDS) if is_asked else None)
    answers = [answer for answer in reached if answer is not None]
    for name, answer in zip(names[1:], answers, strict=True):
        if not answer:
            raise RuntimeError(f"{name} does not reach {names[0]}, where rank 0 is, at any of its addresses: {', '.join(offered)}")
    common = [address for address in offered if all(address in answer for answer in answers)]
    if not common:
        raise RuntimeError(f"no address of {names[0]}, where rank 0 is, is reached by all hosts: {', '.join(offered)}")
    return str(common[0])


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def addresses() -> list[str]:
    """By what this host may be reached: its name, where that means an address of its own, and the addresses of its interfaces."""
    found: list[str] = []
    with suppress(OSError):
        name = socket.gethostname()
        if not is_loopback(str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])):
            found.append(name)
    return found + _of_interfaces() + _of_interfaces_six()


def _of_interfaces() -> list[str]:
    found: list[str] = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:  # a system may have IPv6 alone
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked, _GET_ADDRESS, _INTERFACE_REQUEST.pack(name.encode(), 0, b""))
                found.append(socket.inet_ntoa(_INTERFACE_REQUEST.unpack(answer)[2]))
    return [address for address in found if not is_loopback(address)]


def _of_interfaces_six() -> list[str]:
    try:
        lines = _SIX.read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)) for digits, _, _, scope, *_ in fields if scope == _GLOBAL_SCOPE
    ]


def reachable(offered: Sequence[str], port: int, seconds: float) -> list[str]:
    """At which of these addresses something listens at `port`; asked for all at once, for at most so many seconds."""
    found, end = set(), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for address in offered:
            with suppress(OSError):
                family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                connection = stack.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK))
                connection.connect_ex(where)
                selector.register(connection, selectors.EVENT_WRITE, (address, connection))
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                address, connection = key.data
                selector.unregister(connection)
                if _is_connected(connection):
                    found.add(address)
    return [address for address in offered if address in found]


def _is_connected(connection: socket.socket) -> bool:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return False
    try:
        return bool(connection.getsockname() != connection.getpeername())  # the system may take that very port for our own end
    except OSError:
        return False

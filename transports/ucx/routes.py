"""Whether the system has a route to a peer: asked before UCX is told to connect, which must not fail for a link that comes back.

An endpoint that cannot be made costs more than an error: each attempt leaves a socket open (UCX 1.13), or ends the process a while later,
when UCX looks after the endpoint that it has dropped (1.22). So nothing is tried twice. A rank says with its endpoint which IPv4 addresses
it has on the interfaces that UCX goes by; a peer notes those that it has a route to at the start, and connects when it has one to each of
them. A datagram socket that is connected sends nothing, but fails where there is no route.

Cost: three system calls an address, when the first message goes to a peer.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Iterable

from numba_kernels import types
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import entry, kernel
from transports.ucx.layout import ROUTE, STATE

LOOK_US = 1000
"""After which a route is looked for again, as whoever waits would do it in each turn."""
_ANY_PORT = 9
_TARGET = struct.Struct("=H2s4s8x")
"""``sockaddr_in``."""
_TARGET_BYTES = _TARGET.size
_FAMILY, _KIND = int(socket.AF_INET), int(socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

_socket = types.external("socket", types.int32(types.int32, types.int32, types.int32))
_connect = types.external("connect", types.int32(types.int32, types.int64, types.int32))
_close = types.external("close", types.int32(types.int32))


def targets_of(addresses: Iterable[bytes]) -> tuple[array[int], int]:
    """Those to which there is a route now, as compiled code asks for them, and how many these are."""
    targets = (array("q", _TARGET.pack(_FAMILY, struct.pack("!H", _ANY_PORT), address)) for address in addresses)
    routed = [target for target in targets if entry(_is_routed)(target.buffer_info()[0])]
    return array("q", b"".join(routed)), len(routed)


@kernel("int64(int64)", is_entry=True)
def _is_routed(target):  # type: ignore[no-untyped-def]
    """Whether there is a route to an address; yes if that cannot be found out."""
    asked = _socket(types.int32(_FAMILY), types.int32(_KIND), types.int32(0))
    if asked < 0:
        return 1
    status = _connect(asked, target, types.int32(_TARGET_BYTES))
    _close(asked)
    return 1 if status == 0 else 0


@kernel("int64(int64)")
def _count_routed(route):  # type: ignore[no-untyped-def]
    """To how many addresses of a peer there is a route."""
    found = 0
    for number in range(load64(route + ROUTE.count)):
        found += _is_routed(load64(route + ROUTE.targets) + number * _TARGET_BYTES)
    return found


NO_ROUTE, WAIT, ROUTED = 0, 1, 2


@kernel("int64(int64, int64, int64)")
def look_for_route(state, rank, lane):  # type: ignore[no-untyped-def]
    """Whether there is a way to a peer, by a lane: ``ROUTED``; ``WAIT``: perhaps later; ``NO_ROUTE``: that was waited for in vain.

    Looks with a longer pause between them than what is waited for are no series: a link may have been up meanwhile.
    """
    route = load64(state + STATE.routes) + (lane * load64(state + STATE.count) + rank) * ROUTE.total
    count, last, now = load64(route + ROUTE.count), load64(route + ROUTE.last), ticks()
    if count == 0:
        return ROUTED
    if now - last < LOOK_US * load64(state + STATE.ticks_per_us):
        return WAIT
    routed, patience = _count_routed(route), load64(state + STATE.patience)
    if routed == count:
        return ROUTED
    if now - last > patience:
        store64(route + ROUTE.first, now)
    store64(route + ROUTE.last, now)
    if now - load64(route + ROUTE.first) < patience:
        return WAIT
    return ROUTED if routed > 0 else NO_ROUTE

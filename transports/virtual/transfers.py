"""Large messages over the simulated network: granted by the receiver, then sent packet by packet into its buffer.

::

    sender                                   receiver
      RTS -------------------------------------> fetch, once a receive has met it (perhaps much later)
      serve <------------------- CTS {receive, bytes wanted}
      DATA {receive, offset} ==================> copied to the buffer as far as it goes
      all sent: finish                           all there: finish

:data:`TRANSFER` is the beginning of a request (:data:`transports.messages.REQUEST`). A receive that is given up has no bytes any more, and
what still comes for it is dropped, so its buffer is free at once.

T = 3 alpha + m / `PAYLOAD_BYTES` * (two copies of a packet).
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import copy
from transports.granted import TRANSFER, fetch, offer, revoke, serve
from transports.messages import REQUEST
from transports.virtual.channel import (
    DATA,
    LINK,
    PACKETS_A_TURN,
    STATE,
    consume,
    credit,
    find_place,
    hand_up,
    next_packet,
    post,
)
from transports.virtual.layout import PACKET, PAYLOAD_BYTES

__all__ = ["fetch", "offer", "poll", "revoke", "serve", "step"]


@kernel("void(int64)", is_entry=True)
def poll(state):  # type: ignore[no-untyped-def]
    """Hand up what all peers have sent, and move transfers on."""
    for index in range(load64(state + STATE.count)):
        link = load64(load64(state + STATE.links) + WORD * index)
        _take_in(state, link)
        if load64(link + LINK.owed) != 0:
            credit(load64(state + STATE.engine), link, load64(link + LINK.released))
    if load64(state + STATE.active_count) != 0:
        step(state)


@kernel("void(int64, int64)")
def _take_in(state, link):  # type: ignore[no-untyped-def]
    for _ in range(PACKETS_A_TURN):
        packet = next_packet(state, link)
        if packet == 0:
            return
        is_data = load64(packet + PACKET.kind) == DATA
        if (_land(state, packet) if is_data else hand_up(state, link, packet)) == 0:
            return
        consume(link, packet)


@kernel("int64(int64, int64)")
def _land(state, packet):  # type: ignore[no-untyped-def]
    """Copy a part of a large message to its receive; 0 if its owner has not made room yet."""
    receive, offset = load64(packet + PACKET.first), load64(packet + PACKET.second)
    length, room = load64(packet + PACKET.length), load64(receive + REQUEST.nbytes)
    address, window = load64(receive + REQUEST.address), load64(receive + REQUEST.window)
    if room > 0 and window != 0:
        if offset + length > load64(receive + REQUEST.moved) + window:
            return 0
        first = min(length, window - offset % window)
        copy(address + offset % window, packet + PACKET.data, first)
        if first < length:
            copy(address, packet + PACKET.data + first, length - first)
    elif room > offset:
        copy(address + offset, packet + PACKET.data, min(length, room - offset))
    passed = offset + length
    store64(receive + REQUEST.passed, passed)
    if passed == load64(receive + TRANSFER.wanted):
        call_three(load64(state + STATE.finish), load64(state + STATE.engine), receive, 0)
    return 1


@kernel("void(int64)", is_entry=True)
def step(state):  # type: ignore[no-untyped-def]
    """Send parts of all messages that are under way, as far as there is credit."""
    before, request = 0, load64(state + STATE.active_first)
    while request != 0:
        after = load64(request + TRANSFER.next)
        if _feed(state, request) != 0:
            _unlink(state, before, request)
            call_three(load64(state + STATE.finish), load64(state + STATE.engine), request, 0)
        else:
            before = request
        request = after


@kernel("void(int64, int64, int64)")
def _unlink(state, before, request):  # type: ignore[no-untyped-def]
    """Take a send out of those under way; `before` is the one in front of it, or 0."""
    after = load64(request + TRANSFER.next)
    if before == 0:
        store64(state + STATE.active_first, after)
    else:
        store64(before + TRANSFER.next, after)
    if after == 0:
        store64(state + STATE.active_last, before)
    store64(state + STATE.active_count, load64(state + STATE.active_count) - 1)


@kernel("int64(int64, int64)")
def _feed(state, request):  # type: ignore[no-untyped-def]
    """Send parts of one message; 1 when all are sent."""
    link, wanted = load64(request + TRANSFER.link), load64(request + TRANSFER.wanted)
    address, window = load64(request + REQUEST.address), load64(request + REQUEST.window)
    offset = load64(request + REQUEST.passed)
    while offset < wanted:
        length = min(wanted - offset, PAYLOAD_BYTES)
        packet = 0
        if window == 0 or offset + length <= load64(request + REQUEST.moved):
            packet = find_place(state, link)
        if packet == 0:
            return 0
        first = length if window == 0 else min(length, window - offset % window)
        copy(packet + PACKET.data, address + (offset if window == 0 else offset % window), first)
        if first < length:
            copy(packet + PACKET.data + first, address, length - first)
        store64(packet + PACKET.kind, DATA)
        store64(packet + PACKET.first, load64(request + TRANSFER.remote))
        store64(packet + PACKET.second, offset)
        store64(packet + PACKET.length, length)
        post(link, packet)
        offset += length
        store64(request + REQUEST.passed, offset)
    return 1

# run by: run_datagram_tests.py
"""Messages: each is one datagram. A socket keeps where a datagram ends, and the order of those of one sender."""

import socket

from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_message
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.memory import copy
from transports.messages import CREDIT, EAGER

STATE = words("State", "engine arrive clear_to_send finish rank socket inbox is_held outbox links count")
LINK = words("Link", "state socket released is_owed first_send last_send")
PACKET = words("Packet", "source kind context tag nbytes first second third data")
PACKET_BYTES = 8192
PAYLOAD_BYTES = PACKET_BYTES - PACKET.data
DATA = 32  # a kind of our own: a part of a large message
FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

libc_send = types.external("send", types.int64(types.int32, types.intp, types.intp, types.int32))
libc_recv = types.external("recv", types.int64(types.int32, types.intp, types.intp, types.int32))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def send(engine, link, kind, context, tag, nbytes, first, second, third):
    """Send a message: 1, or 0 if the socket has no room for it."""
    state = load64(link + LINK.state)
    packet, length = load64(state + STATE.outbox), PACKET.data
    store64(packet + PACKET.source, load64(state + STATE.rank))
    store64(packet + PACKET.kind, kind)
    store64(packet + PACKET.context, context)
    store64(packet + PACKET.tag, tag)
    store64(packet + PACKET.nbytes, nbytes)
    store64(packet + PACKET.first, first)
    store64(packet + PACKET.second, second)
    store64(packet + PACKET.third, third)
    if kind in (EAGER, DATA):  # `first` is where the payload is
        copy(packet + PACKET.data, first, nbytes)
        length += nbytes
    return 1 if libc_send(types.int32(load64(link + LINK.socket)), packet, length, FLAGS) > 0 else 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def credit(engine, link, released):
    """Tell a peer how many of its eager bytes have found a receive: now, or when there is room for that."""
    store64(link + LINK.released, released)
    store64(link + LINK.is_owed, 1 - send(engine, link, CREDIT, 0, 0, 0, released, 0, 0))
    return 1


@kernel("int64(int64)")
def next_packet(state):
    """The packet that is to be handed up next, which may have been refused before; 0 if there is none."""
    packet = load64(state + STATE.inbox)
    if load64(state + STATE.is_held) == 0:
        if libc_recv(types.int32(load64(state + STATE.socket)), packet, PACKET_BYTES, FLAGS) <= 0:
            return 0
        store64(state + STATE.is_held, 1)
    return packet


@kernel("int64(int64, int64)")
def hand_up(state, packet):
    """Give a message to the engine: 1, or 0 if it refuses it."""
    kind, nbytes = load64(packet + PACKET.kind), load64(packet + PACKET.nbytes)
    first, second, third = packet + PACKET.data, nbytes, 0
    if kind != EAGER:
        first, second, third = load64(packet + PACKET.first), load64(packet + PACKET.second), load64(packet + PACKET.third)
    link = load64(load64(state + STATE.links) + WORD * load64(packet + PACKET.source))
    context, tag = load64(packet + PACKET.context), load64(packet + PACKET.tag)
    function, engine = load64(state + STATE.arrive), load64(state + STATE.engine)
    return call_message(function, engine, link, kind, context, tag, nbytes, first, second, third)

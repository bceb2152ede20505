"""Packets: a message is one, a large message's bytes are many; those of a peer are handed up in the order in which they were sent.

::

    sender                                             receiver
      a place of the wire that is empty: packet s,       the packet with the next number, wherever it is: handed up,
      full = 1, sent = s + 1  ------------------------>  full = 0, next + 1

A packet may be in any place of its wire and be due later than one behind it (:mod:`transports.virtual.delays`), so numbers restore the
order. Where all places are full, the sender has no credit left and tries again later, so a receiver that takes nothing costs no memory.

:data:`STATE` is the transport's own memory, :data:`LINK` the beginning of a peer's block.

Cost: alpha a message of up to `PAYLOAD_BYTES`, one copy in and one out; whoever receives looks at one word of each wire.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, load_acquire, load_relaxed, store64, store_release, ticks
from numba_kernels.calls import call_message
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.memory import copy
from transports.granted import GRANTING
from transports.messages import CREDIT, EAGER, PEER_WORDS
from transports.virtual.delays import DELAYS, due_time, first_place
from transports.virtual.layout import MEMBER, PACKET, PACKET_BYTES, PAGE, WIRE

STATE = words(
    "State",
    # and the addresses of the blocks of the peers that are reached; places of a wire
    f"{GRANTING} links count credits",
)
LINK = words("Link", f"state outbox inbox member sent next released owed delays*{DELAYS.total // WORD}")
"""``member``: the peer's ``MEMBER`` block; ``owed``: whether it has to be told of ``released``, for which there was no room."""
assert LINK.total <= PEER_WORDS * WORD

DATA = 32
"""Kind of a packet that is part of a large message: request of the receiver, offset."""
PACKETS_A_TURN = 64
"""Of one peer, before the next one has its turn."""


@kernel("int64(int64, int64)")
def find_place(state, link):  # type: ignore[no-untyped-def]
    """An empty place on the way to a peer; 0 if there is none."""
    places, count = load64(link + LINK.outbox) + PAGE, load64(state + STATE.credits)
    first = first_place(link + LINK.delays, load64(link + LINK.sent), count)
    for turn in range(count):
        place = places + (first + turn) % count * PACKET_BYTES
        if load_acquire(place + PACKET.full) == 0:
            return place
    return 0


@kernel("void(int64, int64)")
def post(link, packet):  # type: ignore[no-untyped-def]
    """Send the packet that was written to a place."""
    sent = load64(link + LINK.sent)
    store64(packet + PACKET.sequence, sent)
    store64(packet + PACKET.due, due_time(link + LINK.delays))
    store_release(packet + PACKET.full, 1)
    store64(link + LINK.sent, sent + 1)
    store_release(load64(link + LINK.outbox) + WIRE.sent, sent + 1)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def send(engine, link, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Send a message (:mod:`transports.messages`); 1, or 0 if there is no credit for it."""
    packet = find_place(load64(link + LINK.state), link)
    if packet == 0:
        return 0
    store64(packet + PACKET.kind, kind)
    store64(packet + PACKET.context, context)
    store64(packet + PACKET.tag, tag)
    store64(packet + PACKET.nbytes, nbytes)
    store64(packet + PACKET.first, first)
    store64(packet + PACKET.second, second)
    store64(packet + PACKET.third, third)
    if kind == EAGER and nbytes > 0:
        copy(packet + PACKET.data, first, nbytes)
    post(link, packet)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def credit(engine, link, released):  # type: ignore[no-untyped-def]
    """Let the peer know that `released` eager bytes of its have found their receive, now or when there is room for that."""
    store64(link + LINK.released, released)
    store64(link + LINK.owed, 1 if send(engine, link, CREDIT, 0, 0, 0, released, 0, 0) == 0 else 0)
    return 1


@kernel("int64(int64, int64)")
def next_packet(state, link):  # type: ignore[no-untyped-def]
    """The packet of a peer that is to be handed up next; 0 if it has not come."""
    inbox, sequence = load64(link + LINK.inbox), load64(link + LINK.next)
    if load_acquire(inbox + WIRE.sent) <= sequence or load_relaxed(load64(link + LINK.member) + MEMBER.silent) != 0:
        return 0
    packet = inbox + PAGE
    for _ in range(load64(state + STATE.credits)):
        if load_acquire(packet + PACKET.full) != 0 and load64(packet + PACKET.sequence) == sequence:
            return packet if ticks() >= load64(packet + PACKET.due) else 0
        packet += PACKET_BYTES
    return 0


@kernel("void(int64, int64)")
def consume(link, packet):  # type: ignore[no-untyped-def]
    """Go on behind a packet, whose place is the sender's again."""
    store64(link + LINK.next, load64(link + LINK.next) + 1)
    store_release(packet + PACKET.full, 0)


@kernel("int64(int64, int64, int64)")
def hand_up(state, link, packet):  # type: ignore[no-untyped-def]
    """Hand a message up; whether it was taken."""
    kind, nbytes = load64(packet + PACKET.kind), load64(packet + PACKET.nbytes)
    first, second, third = packet + PACKET.data, nbytes, 0
    if kind != EAGER:
        first, second, third = load64(packet + PACKET.first), load64(packet + PACKET.second), load64(packet + PACKET.third)
    context, tag = load64(packet + PACKET.context), load64(packet + PACKET.tag)
    function, engine = load64(state + STATE.arrive), load64(state + STATE.engine)
    return call_message(function, engine, link, kind, context, tag, nbytes, first, second, third)

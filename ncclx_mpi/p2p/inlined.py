"""Sending, by the transport that is compiled into the engine or by another.

Any transport but the former has its functions in the ``PEER`` blocks of the peers that it reaches, by C address. An address of 0 there means:
the one that is compiled in (:mod:`transports.inlined`). The test of it costs a load of a line that a send loads anyway.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import PEER
from numba_kernels.atomics import load64
from numba_kernels.calls import call_message, call_three
from numba_kernels.jit import kernel
from transports import inlined
from transports.messages import EAGER


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def send_eager(engine, peer, context, tag, nbytes, address):  # type: ignore[no-untyped-def]
    """Send a small message with its payload; 1, or 0 if its transport has no room for it now."""
    function = load64(peer + PEER.send)
    if function != 0:
        return call_message(function, engine, peer, EAGER, context, tag, nbytes, address, 0, 0)
    return inlined.send_eager(engine, peer, context, tag, nbytes, address)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def send(engine, peer, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Send a message of any kind (:mod:`transports.messages`); 1, or 0 if its transport has no room for it now."""
    function = load64(peer + PEER.send)
    if function != 0:
        return call_message(function, engine, peer, kind, context, tag, nbytes, first, second, third)
    return inlined.send(engine, peer, kind, context, tag, nbytes, first, second, third)


@kernel("void(int64, int64, int64)")
def credit(engine, peer, released):  # type: ignore[no-untyped-def]
    """Let a peer know that `released` eager bytes of its have found their receive."""
    function = load64(peer + PEER.credit)
    if function != 0:
        call_three(function, engine, peer, released)
    else:
        inlined.credit(engine, peer, released)


@kernel("int64(int64)")
def credited(peer):  # type: ignore[no-untyped-def]
    """Eager bytes sent to a peer that have found their receive, as far as is known here."""
    return inlined.credited(peer) if load64(peer + PEER.credit) == 0 else load64(peer + PEER.seen_released)


@kernel("int64(int64)")
def has_transfers(engine):  # type: ignore[no-untyped-def]
    """Whether transfers are under way."""
    return load64(engine + inlined.WORDS.active_count)


@kernel("int64(int64)")
def moved_at(engine):  # type: ignore[no-untyped-def]
    """``ticks()`` when one of them has moved last."""
    return load64(engine + inlined.WORDS.moved_at)


@kernel("int64(int64)")
def has_arrivals(engine):  # type: ignore[no-untyped-def]
    """Whether a peer of this node has sent something that was not taken yet."""
    peer = load64(engine + inlined.WORDS.first_lane)
    for _ in range(load64(engine + inlined.WORDS.lanes)):
        if inlined.next_line(engine, peer) != 0:
            return 1
        peer += PEER.total
    return 0

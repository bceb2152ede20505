"""Arrivals by the transport that is compiled into the engine: its ``poll``, with calls in place of calls by address.

Both of them, from the transport to ``arrive`` and back, would be felt in the latency of a small message, which is theirs and a line of cache.
"""

from __future__ import annotations

from ncclx_mpi.p2p.arrivals import arrive_control, arrive_eager
from ncclx_mpi.p2p.layout import PEER
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from transports import inlined
from transports.inlined import MESSAGE, kind_of, tag_of
from transports.messages import EAGER


@kernel("int64(int64, int64, int64)")
def _arrive(engine, peer, line):  # type: ignore[no-untyped-def]
    """Take the message at `line`: 1, or 0 if it has to stay."""
    kind, words = kind_of(line), line + MESSAGE.payload
    context, tag, nbytes = load64(line + MESSAGE.context), tag_of(line), load64(line + MESSAGE.nbytes)
    if kind == EAGER:
        payload, first_bytes = inlined.payload_of(engine, peer, line), inlined.bytes_before_the_wrap(engine, peer, line)
        return arrive_eager(engine, peer, context, tag, nbytes, payload, first_bytes, inlined.beginning_of(peer))
    first, second, third = load64(words), load64(words + 8), load64(words + 16)
    return arrive_control(engine, peer, kind, context, tag, nbytes, first, second, third)


@kernel("void(int64)", is_entry=True)
def take_in(engine):  # type: ignore[no-untyped-def]
    """Take what peers of this node have sent."""
    peer = load64(engine + inlined.WORDS.first_lane)
    for _ in range(load64(engine + inlined.WORDS.lanes)):
        for _ in range(inlined.MESSAGES_A_TURN):
            line = inlined.next_line(engine, peer)
            if line == 0 or _arrive(engine, peer, line) == 0:
                break
            inlined.consume_line(engine, peer, line)
        peer += PEER.total

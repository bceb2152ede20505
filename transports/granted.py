"""Large messages that are granted by their receiver, and come in order to a buffer that only its own process writes to.

::

    sender                                   receiver
      RTS -------------------------------------> fetch, once a receive has met it (perhaps much later)
      serve <------------------- CTS {receive, bytes wanted}
      the bytes, as the transport has them ====>
      all sent: finish                           all there: finish

What transports that move bytes so have in common. The state of such a one begins with :data:`GRANTING`, the block of a peer with the state's
address. :data:`TRANSFER` is the beginning of a request (:data:`transports.messages.REQUEST`), whose ``passed`` bytes have been sent, or have
come.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from transports.messages import REQUEST, REQUEST_WORDS

GRANTING = "engine arrive clear_to_send finish active_first active_last active_count"
"""The engine, and what it does for a transport, by C address; sends of large messages that are under way, first and last, and how many."""
_STATE = words("State", GRANTING)
TRANSFER = words("Transfer", "link remote wanted next")
"""Of a send: the peer, its request, the bytes that it wants, and the send behind this one. Of a receive: the bytes wanted."""
assert TRANSFER.total <= REQUEST_WORDS * WORD


@kernel("int64(int64, int64, int64)", is_entry=True)
def offer(engine, link, request):  # type: ignore[no-untyped-def]
    """There is nothing to say in the RTS of a send: its receiver asks for its bytes."""
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def fetch(engine, link, receive):  # type: ignore[no-untyped-def]
    """A receive has met an RTS of some bytes: 1 if it wants none of them; 0: the sender is asked for them."""
    wanted = load64(receive + REQUEST.message_bytes)
    if load64(receive + REQUEST.window) == 0:
        wanted = min(wanted, load64(receive + REQUEST.nbytes))
    if wanted == 0:
        return 1
    store64(receive + TRANSFER.wanted, wanted)
    store64(receive + REQUEST.passed, 0)
    store64(receive + REQUEST.second, receive)
    store64(receive + REQUEST.third, wanted)
    call_three(load64(load64(link) + _STATE.clear_to_send), engine, link, receive)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def serve(engine, link, request):  # type: ignore[no-untyped-def]
    """The receiver has sent a CTS: from now on its bytes are sent."""
    state = load64(link)
    store64(request + TRANSFER.link, link)
    store64(request + TRANSFER.remote, load64(request + REQUEST.second))
    store64(request + TRANSFER.wanted, load64(request + REQUEST.third))
    store64(request + TRANSFER.next, 0)
    store64(request + REQUEST.passed, 0)
    last = load64(state + _STATE.active_last)
    store64(last + TRANSFER.next if last != 0 else state + _STATE.active_first, request)
    store64(state + _STATE.active_last, request)
    store64(state + _STATE.active_count, load64(state + _STATE.active_count) + 1)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def revoke(engine, link, receive):  # type: ignore[no-untyped-def]
    """Nobody but this process writes to its buffers, and it drops what comes for a receive without bytes."""
    return 1


@kernel("int64(int64)")
def next_place(request):  # type: ignore[no-untyped-def]
    """Where the next bytes of a message are, or go."""
    offset, window = load64(request + REQUEST.passed), load64(request + REQUEST.window)
    return load64(request + REQUEST.address) + (offset if window == 0 else offset % window)


@kernel("int64(int64, int64, int64)")
def in_one_piece(request, most, filled):  # type: ignore[no-untyped-def]
    """How many of so many bytes stand there in one piece: of a window up to its end, and up to the message's byte `filled`."""
    offset, window = load64(request + REQUEST.passed), load64(request + REQUEST.window)
    return most if window == 0 else min(most, window - offset % window, filled - offset)

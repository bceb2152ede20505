"""Large and synchronous messages: announced, matched, then moved by the transport that reaches the peer.

::

    sender                                   receiver
      RTS {nbytes, request, where} ----------> is matched with a receive (perhaps much later)
                                               the transport fetches it:  all here: receive complete
               <---------------------------- CTS {request, ...}           else: the transport asks the sender to take part
      the transport serves it  ==============> until receive and send are complete
               <---------------------------- ATS {request}                or reads all without it: send complete

What the transport does in between, and what its two words of an RTS and a CTS mean, is its own (:class:`transports.base.Functions`). No
message but the header crosses before the match. A synchronous message without bytes is an RTS and its ATS.

Messages that find no room on their way wait in a queue for each peer, and are sent by whoever makes progress.

Cost: two messages without a payload more than eager, then what the transport takes.
"""

from __future__ import annotations

from ncclx_mpi.p2p.inlined import send
from ncclx_mpi.p2p.layout import ASKED, ASKING, CONTROL_MESSAGE, ENGINE, ERR_TRUNCATE, PEER, RECEIVE, REQUEST
from ncclx_mpi.p2p.matching import complete, new_request, release_request
from ncclx_mpi.p2p.stirring import stir
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from transports.messages import ATS, CTS, EAGER, RTS


@kernel("int64(int64, int64)")
def peer_of(engine, world_rank):  # type: ignore[no-untyped-def]
    """Address of the ``PEER`` block of a world rank."""
    return load64(engine + ENGINE.peers) + world_rank * PEER.total


@kernel("int64(int64, int64, int64)")
def _try_send(engine, peer, request):  # type: ignore[no-untyped-def]
    """Send what `request` wants to tell its peer. Returns 1 if it went out, 0 if the transport has no room for it."""
    action, nbytes = load64(request + REQUEST.action), load64(request + REQUEST.nbytes)
    first, second, third = load64(request + REQUEST.remote), load64(request + REQUEST.second), load64(request + REQUEST.third)
    if action == EAGER:
        first = load64(request + REQUEST.address)
    elif action == RTS:
        first = request
    context, tag = load64(request + REQUEST.context), load64(request + REQUEST.tag)
    if send(engine, peer, action, context, tag, nbytes, first, second, third) == 0:
        return 0
    store64(request + REQUEST.action, 0)
    if action == EAGER:
        complete(request, 0)
    elif action == RTS:
        store64(request + REQUEST.announced, 1)
        store64(engine + ENGINE.announced, load64(engine + ENGINE.announced) + 1)
        stir(engine)
    elif load64(request + REQUEST.kind) == CONTROL_MESSAGE:
        release_request(engine, request)
    return 1


@kernel("void(int64, int64, int64)")
def send_or_queue(engine, peer, request):  # type: ignore[no-untyped-def]
    """Send now, or after what waits for room on the way to the same peer already."""
    last = load64(peer + PEER.queue_last)
    if last == 0 and _try_send(engine, peer, request) != 0:
        return
    store64(request + REQUEST.queue_next, 0)
    if last == 0:
        store64(peer + PEER.queue_first, request)
    else:
        store64(last + REQUEST.queue_next, request)
    store64(peer + PEER.queue_last, request)
    store64(engine + ENGINE.queued, load64(engine + ENGINE.queued) + 1)
    stir(engine)


@kernel("void(int64, int64)")
def flush_queue(engine, peer):  # type: ignore[no-untyped-def]
    """Send what waits for room, oldest first."""
    while True:
        request = load64(peer + PEER.queue_first)
        if request == 0:
            return
        after = load64(request + REQUEST.queue_next)
        if _try_send(engine, peer, request) == 0:
            return
        store64(peer + PEER.queue_first, after)
        if after == 0:
            store64(peer + PEER.queue_last, 0)
        store64(engine + ENGINE.queued, load64(engine + ENGINE.queued) - 1)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def tell(engine, peer, kind, first, second, third):  # type: ignore[no-untyped-def]
    """Send a control message of three words."""
    request = new_request(engine)
    store64(request + REQUEST.kind, CONTROL_MESSAGE)
    store64(request + REQUEST.action, kind)
    store64(request + REQUEST.remote, first)
    store64(request + REQUEST.second, second)
    store64(request + REQUEST.third, third)
    send_or_queue(engine, peer, request)


@kernel("void(int64, int64)")
def send_ats(engine, receive):  # type: ignore[no-untyped-def]
    """Tell the sender of an announced message that its memory is not needed any more."""
    tell(engine, peer_of(engine, load64(receive + REQUEST.peer)), ATS, load64(receive + REQUEST.remote), 0, 0)


@kernel("int64(int64, int64, int64)", is_entry=True)
def clear_to_send(engine, peer, receive):  # type: ignore[no-untyped-def]
    """A transport wants the sender of an announced message to take part: send it the CTS of the receive."""
    second, third = load64(receive + REQUEST.second), load64(receive + REQUEST.third)
    store64(receive + REQUEST.granted, 1)
    tell(engine, peer, CTS, load64(receive + REQUEST.remote), second, third)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def finish(engine, request, error):  # type: ignore[no-untyped-def]
    """A transport has ended the transfer of a request; a sender that had no part in it is told."""
    if load64(request + REQUEST.kind) == RECEIVE and load64(request + REQUEST.granted) == 0:
        send_ats(engine, request)
    complete(request, error)
    return 1


@kernel("void(int64, int64)")
def begin_receive(engine, receive):  # type: ignore[no-untyped-def]
    """A receive has met an announced message: `message_bytes`, the words of the RTS and the status are set."""
    nbytes = load64(receive + REQUEST.message_bytes)
    if nbytes > load64(receive + REQUEST.nbytes):
        store64(receive + REQUEST.error, ERR_TRUNCATE)
    if load64(receive + REQUEST.landing) == ASKING:
        store64(receive + REQUEST.landing, ASKED)
        return
    peer = peer_of(engine, load64(receive + REQUEST.peer))
    if nbytes == 0 or call_three(load64(peer + PEER.fetch), engine, peer, receive) != 0:
        send_ats(engine, receive)
        complete(receive, 0)
    else:
        stir(engine)


@kernel("void(int64, int64, int64, int64, int64)")
def begin_send(engine, peer, request, second, third):  # type: ignore[no-untyped-def]
    """The CTS of a send has come."""
    store64(request + REQUEST.granted, 1)
    store64(request + REQUEST.second, second)
    store64(request + REQUEST.third, third)
    if call_three(load64(peer + PEER.serve), engine, peer, request) != 0:
        complete(request, 0)

"""Arrivals: what a transport hands up meets a receive, or is kept until one asks for it; what a new receive asks for may have come already.

::

    transport ---> arrive -+- EAGER   a receive was posted: copied to its buffer      none was: copied to memory of the engine
                           |- RTS     ........................: its transfer begins   ........: noted
                           |- CTS, ATS, CANCEL, CANCELLED, CREDIT: for a request, or a peer, of this rank
                           |- ASK, ANSWER, GOODBYE: of ranks that leave (leaving.py)
                           |- REVOKE: of communicators that nobody is to use (revoking.py)
    receive -----> deliver     the oldest message that was kept, else posted

``arrive`` is what every transport calls by address, whatever it is (:mod:`transports.messages`). A payload comes in two pieces, which
covers the wrap of a ring and the buffer of a network alike. A message that there is no memory for stays where it is, and what comes after it
from the same peer too; waits end with an error then.

All functions run under the engine's lock. Cost: O(1) for receives without wildcards, and one copy of an eager payload, two where it
came before its receive.
"""

from __future__ import annotations

from ncclx_mpi.p2p.alarm import note_kept, offer
from ncclx_mpi.p2p.inlined import credit
from ncclx_mpi.p2p.layout import COMM, CONFIRMED, EAGER_COST, ENGINE, ERR_TRUNCATE, PEER, REQUEST, UNEXPECTED
from ncclx_mpi.p2p.leaving import arrive_of_leaving
from ncclx_mpi.p2p.matching import (
    complete,
    drop_unexpected,
    find_unexpected,
    keep_unexpected,
    post,
    release_request,
    take_posted,
    try_request,
)
from ncclx_mpi.p2p.rendezvous import begin_receive, begin_send, peer_of, tell
from ncclx_mpi.p2p.revoking import arrive_revoke
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import allocate, copy, copy_lines, release
from transports.messages import ATS, CANCEL, CANCELLED, CREDIT, CTS, EAGER, REVOKE, RTS


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def arrive(engine, peer, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Take a message that a transport hands up: 1, or 0 if it has to keep it. For the words of each kind see :mod:`transports.messages`."""
    if kind == EAGER:
        return arrive_eager(engine, peer, context, tag, nbytes, first, second, third)
    return arrive_control(engine, peer, kind, context, tag, nbytes, first, second, third)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def arrive_eager(engine, peer, context, tag, nbytes, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Take a small message in: 1; or 0 if it finds neither a receive nor memory."""
    source, remote = load64(peer + PEER.world), 0
    if context < 0:
        remote, context = load64(first), context ^ CONFIRMED
        first, first_bytes, nbytes = first + WORD, first_bytes - WORD, nbytes - WORD
    receive = take_posted(engine, context, source, tag)
    if receive == 0:
        return _keep_eager(engine, context, source, tag, nbytes, first, first_bytes, rest, remote)
    capacity = load64(receive + REQUEST.nbytes)
    set_status(receive, source, tag, nbytes)
    _copy_payload(load64(receive + REQUEST.address), min(nbytes, capacity), first, first_bytes, rest)
    _note_met(engine, peer, nbytes, remote)
    complete(receive, ERR_TRUNCATE if nbytes > capacity else 0)
    return 1


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def arrive_control(engine, peer, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Take a message without a payload in: 1; or 0 as above."""
    if kind == RTS:
        return _arrive_rts(engine, load64(peer + PEER.world), context, tag, nbytes, first, second, third)
    if kind == CTS:
        begin_send(engine, peer, first, second, third)
    elif kind == ATS:
        complete(first, 0)
    elif kind == CANCEL:
        _arrive_cancel(engine, peer, first)
    elif kind == CANCELLED:
        store64(first + REQUEST.cancelled, 1)
        complete(first, 0)
    elif kind == CREDIT:
        store64(peer + PEER.seen_released, first)
    elif kind == REVOKE:
        arrive_revoke(engine, first)
    else:
        arrive_of_leaving(engine, peer, kind, first, second, third)
    return 1


@kernel("void(int64, int64, int64, int64)")
def set_status(receive, source, tag, nbytes):  # type: ignore[no-untyped-def]
    """What the receive's status will say; `source` is a world rank."""
    local = load64(load64(receive + REQUEST.comm) + COMM.local)
    store64(receive + REQUEST.peer, source)
    store64(receive + REQUEST.status_source, load64(local + 8 * source))
    store64(receive + REQUEST.status_tag, tag)
    store64(receive + REQUEST.message_bytes, nbytes)


@kernel("void(int64, int64, int64, int64)")
def _note_met(engine, peer, nbytes, remote):  # type: ignore[no-untyped-def]
    """An eager message found its receive: the sender may send as much again, and its request `remote`, if it waits for that, is complete."""
    if remote != 0:
        tell(engine, peer, ATS, remote, 0, 0)
    _release_credit(engine, peer, nbytes)


@kernel("void(int64, int64, int64)")
def _release_credit(engine, peer, nbytes):  # type: ignore[no-untyped-def]
    """An eager message is done with: the sender may send as much again."""
    released = load64(peer + PEER.released) + nbytes + EAGER_COST
    store64(peer + PEER.released, released)
    credit(engine, peer, released)


@kernel("void(int64, int64, int64, int64, int64)")
def _copy_payload(target, length, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Copy the first `length` bytes of a payload of two pieces."""
    beginning = min(length, first_bytes)
    if beginning > 0:
        copy_lines(target, first, beginning)
    if length > beginning:
        copy_lines(target + beginning, rest, length - beginning)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _keep_eager(engine, context, source, tag, nbytes, first, first_bytes, rest, remote):  # type: ignore[no-untyped-def]
    """Serve, or keep, a small message that no receive has asked for: 1; or 0 if there is no memory for it."""
    if remote == 0 and offer(engine, context, source, nbytes, first, first_bytes, rest) != 0:
        _release_credit(engine, peer_of(engine, source), nbytes)
        return 1
    message = _new_unexpected(engine, context, source, tag, nbytes)
    if message != 0 and nbytes > 0:
        payload = allocate(nbytes)
        if payload == 0:
            store64(engine + ENGINE.short_of_memory, 1)
            release_request(engine, message)
            return 0
        _copy_payload(payload, nbytes, first, first_bytes, rest)
        store64(message + REQUEST.payload, payload)
        store64(message + REQUEST.remote, remote)
        store64(engine + ENGINE.unexpected_bytes, load64(engine + ENGINE.unexpected_bytes) + nbytes)
    if message != 0:
        keep_unexpected(engine, message)
        note_kept(engine, context, source)
    return 1 if message != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _new_unexpected(engine, context, source, tag, nbytes):  # type: ignore[no-untyped-def]
    """A message that no receive has asked for yet; 0 if there is no memory for it, which waits will say."""
    message = try_request(engine)
    store64(engine + ENGINE.short_of_memory, 1 if message == 0 else 0)
    if message == 0:
        return 0
    store64(message + REQUEST.kind, UNEXPECTED)
    store64(message + REQUEST.context, context)
    store64(message + REQUEST.source, source)
    store64(message + REQUEST.tag, tag)
    store64(message + REQUEST.message_bytes, nbytes)
    return message


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _arrive_rts(engine, source, context, tag, nbytes, remote, second, third):  # type: ignore[no-untyped-def]
    """Take the announcement of a large message in: 1; or 0 as above."""
    receive = take_posted(engine, context, source, tag)
    if receive != 0:
        _meet(engine, receive, source, tag, nbytes, remote, second, third)
        return 1
    message = _new_unexpected(engine, context, source, tag, nbytes)
    if message == 0:
        return 0
    store64(message + REQUEST.remote, remote)
    store64(message + REQUEST.second, second)
    store64(message + REQUEST.third, third)
    keep_unexpected(engine, message)
    note_kept(engine, context, source)
    return 1


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def _meet(engine, receive, source, tag, nbytes, remote, second, third):  # type: ignore[no-untyped-def]
    set_status(receive, source, tag, nbytes)
    store64(receive + REQUEST.third, third)
    store64(receive + REQUEST.remote, remote)
    store64(receive + REQUEST.second, second)
    begin_receive(engine, receive)


@kernel("void(int64, int64, int64)")
def _arrive_cancel(engine, peer, remote):  # type: ignore[no-untyped-def]
    """The sender takes an announcement back: it succeeds if no receive has met it."""
    source = load64(peer + PEER.world)
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0:
        if load64(message + REQUEST.remote) == remote and load64(message + REQUEST.source) == source:
            drop_unexpected(engine, message)
            if load64(message + REQUEST.payload) != 0:
                _let_go(engine, message)
                _release_credit(engine, peer, load64(message + REQUEST.message_bytes))
            release_request(engine, message)
            tell(engine, peer, CANCELLED, remote, 0, 0)
            return
        message = load64(message + REQUEST.order_next)


@kernel("void(int64, int64)")
def _let_go(engine, message):  # type: ignore[no-untyped-def]
    """Release the payload of a message that was kept."""
    release(load64(message + REQUEST.payload))
    store64(engine + ENGINE.unexpected_bytes, load64(engine + ENGINE.unexpected_bytes) - load64(message + REQUEST.message_bytes))


@kernel("void(int64, int64)")
def deliver(engine, receive):  # type: ignore[no-untyped-def]
    """Give a new receive the oldest unexpected message that it matches, or post it."""
    message = find_unexpected(
        engine,
        load64(receive + REQUEST.context),
        load64(receive + REQUEST.source),
        load64(receive + REQUEST.tag),
    )
    if message == 0:
        post(engine, receive)
        return
    drop_unexpected(engine, message)
    hand_over(engine, message, receive)


@kernel("void(int64, int64, int64)")
def hand_over(engine, message, receive):  # type: ignore[no-untyped-def]
    """Complete, or start, a receive with a message that was taken out of the unexpected ones."""
    source, tag = load64(message + REQUEST.source), load64(message + REQUEST.tag)
    nbytes, remote = load64(message + REQUEST.message_bytes), load64(message + REQUEST.remote)
    payload = load64(message + REQUEST.payload)
    if remote != 0 and payload == 0:
        _meet(engine, receive, source, tag, nbytes, remote, load64(message + REQUEST.second), load64(message + REQUEST.third))
    else:
        capacity = load64(receive + REQUEST.nbytes)
        set_status(receive, source, tag, nbytes)
        if nbytes > 0:
            copy(load64(receive + REQUEST.address), payload, min(nbytes, capacity))
            _let_go(engine, message)
        _note_met(engine, peer_of(engine, source), nbytes, remote)
        complete(receive, ERR_TRUNCATE if nbytes > capacity else 0)
    release_request(engine, message)

"""What Python calls: one compiled call for each operation on requests.

``post_send`` and ``post_receive`` are the same for code that holds the engine's lock already (plans).
A wait returns AGAIN every 50 ms so that Python can run signal handlers, and is then called again.
"""

from __future__ import annotations

from ncclx_mpi.p2p.arrivals import deliver, hand_over
from ncclx_mpi.p2p.inlined import credited
from ncclx_mpi.p2p.layout import (
    ANY_SOURCE,
    ASKED,
    COLLECTIVE,
    COMM,
    COMPLETE,
    DONE,
    EAGER_COST,
    ENGINE,
    FREE,
    PEER,
    PENDING,
    RECEIVE,
    REQUEST,
    SEND,
    SYNCHRONOUS,
    TO_CONFIRM,
    TRACE,
)
from ncclx_mpi.p2p.matching import complete, drop_unexpected, find_unexpected, new_request, release_request, unpost
from ncclx_mpi.p2p.progress import (
    give_away,
    idle,
    is_spinning,
    lock,
    progress,
    progress_locked,
    spin,
    trace_begin,
    trace_end,
    trouble,
    unlock,
)
from ncclx_mpi.p2p.rendezvous import peer_of, send_ats, send_or_queue, tell
from numba_kernels.atomics import load64, load_acquire, store64, ticks
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from transports.messages import CANCEL, EAGER, RTS

_TRACE_SEND, _TRACE_RECEIVE, _TRACE_WAIT, _TRACE_PROBE = 1, 2, 5, 6
STATUS_WORDS = 5
"""source (comm rank), tag, nbytes, error class, cancelled."""


@kernel("int64(int64, int64, int64, int64)")
def is_eager_allowed(engine, peer, nbytes, mode):  # type: ignore[no-untyped-def]
    """Small enough, and the receiver does not already hold too much that nobody asked for.

    A synchronous message has the address of its request in front; one of no bytes is announced, which takes no more.
    """
    is_confirmed = mode == SYNCHRONOUS
    if nbytes + (WORD if is_confirmed else 0) > load64(peer + PEER.max_eager) or (is_confirmed and nbytes == 0):
        return 0
    credit, sent = load64(engine + ENGINE.eager_credit), load64(peer + PEER.sent) + nbytes + EAGER_COST
    if sent - load64(peer + PEER.seen_released) <= credit:
        return 1
    released = credited(peer)
    store64(peer + PEER.seen_released, released)
    return 1 if sent - released <= credit else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def post_send(comm, offset, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start a send; the engine's lock is held. Returns the request, perhaps complete already."""
    request = new_request(load64(comm + COMM.engine))
    begin_message(comm, request, offset, address, nbytes, dest, tag, mode)
    return request


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def fill_send(comm, request, offset, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Write what a send is to a fresh request."""
    store64(request + REQUEST.kind, SEND)
    store64(request + REQUEST.comm, comm)
    store64(request + REQUEST.offset, offset)
    store64(request + REQUEST.context, load64(comm + COMM.context) + offset)
    store64(request + REQUEST.peer, load64(load64(comm + COMM.world) + 8 * dest))
    store64(request + REQUEST.tag, tag)
    store64(request + REQUEST.mode, mode)
    store64(request + REQUEST.address, address)
    store64(request + REQUEST.nbytes, nbytes)
    store64(request + REQUEST.status_source, dest)
    store64(request + REQUEST.status_tag, tag)
    store64(request + REQUEST.message_bytes, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def begin_message(comm, request, offset, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start a send with a fresh request; the engine's lock is held."""
    engine = load64(comm + COMM.engine)
    fill_send(comm, request, offset, address, nbytes, dest, tag, mode)
    peer = peer_of(engine, load64(request + REQUEST.peer))
    if is_eager_allowed(engine, peer, nbytes, mode) != 0:
        store64(request + REQUEST.action, TO_CONFIRM if mode == SYNCHRONOUS else EAGER)
        # While it waits for room, too: there were no bound on those that do.
        store64(peer + PEER.sent, load64(peer + PEER.sent) + nbytes + EAGER_COST)
    else:
        store64(request + REQUEST.action, RTS)
        call_three(load64(peer + PEER.offer), engine, peer, request)
    send_or_queue(engine, peer, request)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def post_receive(comm, offset, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Start a receive; the engine's lock is held. Returns the request, perhaps complete already."""
    receive = new_request(load64(comm + COMM.engine))
    begin_landing(comm, receive, offset, address, nbytes, source, tag)
    return receive


@kernel("void(int64, int64, int64, int64, int64, int64, int64)")
def begin_landing(comm, receive, offset, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Start a receive with a fresh request; the engine's lock is held."""
    store64(receive + REQUEST.kind, RECEIVE)
    store64(receive + REQUEST.comm, comm)
    store64(receive + REQUEST.offset, offset)
    store64(receive + REQUEST.context, load64(comm + COMM.context) + offset)
    store64(receive + REQUEST.source, world_source(comm, source))
    store64(receive + REQUEST.tag, tag)
    store64(receive + REQUEST.address, address)
    store64(receive + REQUEST.nbytes, nbytes)
    store64(receive + REQUEST.status_source, source)
    deliver(load64(comm + COMM.engine), receive)


@kernel("int64(int64, int64)")
def world_source(comm, source):  # type: ignore[no-untyped-def]
    """World rank of a source, ANY_SOURCE unchanged."""
    return source if source == ANY_SOURCE else load64(load64(comm + COMM.world) + 8 * source)


@kernel("int64(int64)", is_entry=True)
def new_idle_request(engine):  # type: ignore[no-untyped-def]
    """A request for one of the functions below, FREE until then."""
    lock(engine)
    request = new_request(engine)
    store64(request + REQUEST.state, FREE)
    unlock(engine)
    return request


@kernel("int64(int64, int64)")
def prepared(engine, request):  # type: ignore[no-untyped-def]
    """A new request if `request` is 0, else that one, idle until now; the engine's lock is held."""
    if request == 0:
        return new_request(engine)
    store64(request + REQUEST.state, PENDING)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_send(comm, request, offset, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start a send, with an idle request or a new one (0). Returns the request, perhaps complete already."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    request = prepared(engine, request)
    begin_message(comm, request, offset, address, nbytes, dest, tag, mode)
    unlock(engine)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_receive(comm, request, offset, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Start a receive, with an idle request or a new one (0). Returns the request, perhaps complete already."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    progress_locked(engine)
    request = prepared(engine, request)
    begin_landing(comm, request, offset, address, nbytes, source, tag)
    unlock(engine)
    return request


@kernel("int64(int64, int64)")
def trace_request(engine, request):  # type: ignore[no-untyped-def]
    """Open the record of a wait for a request."""
    kind = load64(request + REQUEST.kind)
    if kind == COLLECTIVE:
        return trace_begin(engine, load64(request + REQUEST.tag), load64(request + REQUEST.context), -1, 0, 0)
    return trace_begin(
        engine,
        _TRACE_SEND if kind == SEND else _TRACE_RECEIVE,
        load64(request + REQUEST.context),
        load64(request + REQUEST.status_source),
        load64(request + REQUEST.tag),
        load64(request + REQUEST.nbytes),
    )


@kernel("int64(int64, int64)")
def is_pending(request, serial):  # type: ignore[no-untyped-def]
    """Whether the request with this serial is under way. Another thread may have completed it, and given it back: it is another one then."""
    return 1 if load_acquire(request + REQUEST.state) == PENDING and load64(request + REQUEST.serial) == serial else 0


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def wait_request(engine, request, serial, resumed):  # type: ignore[no-untyped-def]
    """Wait a slice for a request: DONE (complete), AGAIN, PEER_DEAD, ABORTED or DEADLINE. `serial`: that of the request, or 0.

    Who shares a request with threads that may complete it gives its serial: given back, it is another message's as soon as there is one.
    """
    awaited = serial if serial != 0 else load64(request + REQUEST.serial)
    if is_pending(request, awaited) == 0:
        return DONE
    record = load64(engine + ENGINE.current)
    if resumed == 0:
        record = trace_request(engine, request)
    turn, started = 0, ticks()
    while is_pending(request, awaited) != 0:
        code = idle(engine, turn, started)
        turn += 1
        if code != 0 and is_pending(request, awaited) != 0:
            return code
    trace_end(record)
    return DONE


@kernel("int64(int64, int64)", is_entry=True)
def test_request(engine, request):  # type: ignore[no-untyped-def]
    """1 if the request is complete, after one progress if it was not."""
    if load_acquire(request + REQUEST.state) == PENDING:
        progress(engine)
    return 1 if load_acquire(request + REQUEST.state) == COMPLETE else 0


@kernel("int64(int64, int64)", is_entry=True)
def wait_turn(engine, turn):  # type: ignore[no-untyped-def]
    """One turn of a wait whose condition is checked in Python, and whose trace record is open."""
    if is_spinning(engine, turn, load64(load64(engine + ENGINE.current) + TRACE.start)) != 0:
        return spin(engine, turn)
    return give_away(engine, turn, ticks())


@kernel("void(int64, int64, int64, int64, int64, int64)", is_entry=True)
def trace_open(engine, kind, context, peer, tag, nbytes):  # type: ignore[no-untyped-def]
    """Open a trace record for an operation that Python drives."""
    trace_begin(engine, kind, context, peer, tag, nbytes)


@kernel("void(int64)", is_entry=True)
def trace_close(engine):  # type: ignore[no-untyped-def]
    """Close the newest trace record."""
    trace_end(load64(engine + ENGINE.current))


@kernel("void(int64, int64)", is_entry=True)
def read_status(request, status):  # type: ignore[no-untyped-def]
    """Write the request's five status words."""
    store64(status, load64(request + REQUEST.status_source))
    store64(status + 8, load64(request + REQUEST.status_tag))
    store64(status + 16, load64(request + REQUEST.message_bytes))
    store64(status + 24, load64(request + REQUEST.error))
    store64(status + 32, load64(request + REQUEST.cancelled))


@kernel("int64(int64, int64)")
def free_request(engine, request):  # type: ignore[no-untyped-def]
    """Give a request back: at once if it is not pending (returns 1), else when it completes (0)."""
    lock(engine)
    finished = load64(request + REQUEST.state) != PENDING
    if finished:
        release_request(engine, request)
    else:
        store64(request + REQUEST.detached, 1)
    unlock(engine)
    return 1 if finished else 0


@kernel("void(int64, int64)")
def give_back(engine, request):  # type: ignore[no-untyped-def]
    """Give a complete request back, however it ended."""
    lock(engine)
    release_request(engine, request)
    unlock(engine)


@kernel("int64(int64, int64)", is_entry=True)
def close_request(engine, request):  # type: ignore[no-untyped-def]
    """Give back a request that is complete, and ended neither with an error nor cancelled: 1, else 0."""
    if (
        load64(request + REQUEST.state) != COMPLETE
        or load64(request + REQUEST.error) != 0
        or load64(request + REQUEST.cancelled) != 0
    ):
        return 0
    give_back(engine, request)
    return 1


@kernel("void(int64, int64, int64)", is_entry=True)
def cancel_request(engine, request, serial):  # type: ignore[no-untyped-def]
    """Ask for a cancellation: it succeeds if the request has not met its counterpart yet. Nothing happens if it has another serial now."""
    lock(engine)
    if load64(request + REQUEST.serial) == serial and load64(request + REQUEST.state) == PENDING:
        if load64(request + REQUEST.kind) == SEND:
            if load64(request + REQUEST.action) == 0 and load64(request + REQUEST.granted) == 0:
                tell(engine, peer_of(engine, load64(request + REQUEST.peer)), CANCEL, request, 0, 0)
        elif _is_posted(request):
            unpost(engine, request)
            store64(request + REQUEST.cancelled, 1)
            complete(request, 0)
    unlock(engine)


@kernel("int64(int64)")
def _is_posted(receive):  # type: ignore[no-untyped-def]
    """Whether a pending receive still waits for its message (a met one has a remote request)."""
    return 1 if load64(receive + REQUEST.remote) == 0 else 0


@kernel("int64(int64, int64)")
def withdraw(engine, request):  # type: ignore[no-untyped-def]
    """Give up a request in the middle of its wait, so that nothing writes into its buffer any more.

    A posted receive is taken back; one whose transfer runs goes on without copying. Returns 1 if the buffer is free
    now, 0 for a send that still reads it, or a receive that a stopped sender may still write to (its owner must be kept until
    the request is released).
    """
    lock(engine)
    free = 1
    if load64(request + REQUEST.state) != PENDING:
        release_request(engine, request)
    elif load64(request + REQUEST.kind) == SEND:
        store64(request + REQUEST.detached, 1)
        free = 0
    elif _is_posted(request):
        unpost(engine, request)
        release_request(engine, request)
    elif load64(request + REQUEST.landing) == ASKED:
        send_ats(engine, request)
        release_request(engine, request)
    else:
        store64(request + REQUEST.nbytes, 0)
        store64(request + REQUEST.window, 0)
        store64(request + REQUEST.detached, 1)
        peer = peer_of(engine, load64(request + REQUEST.peer))
        free = call_three(load64(peer + PEER.revoke), engine, peer, request)
    unlock(engine)
    return free


@kernel("int64(int64, int64, int64, int64, int64)")
def find_message(comm, offset, source, tag, take):  # type: ignore[no-untyped-def]
    """The oldest message that (source, tag) matches, 0 if none has come; `take` = 1 takes it out of matching."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    context, world = load64(comm + COMM.context) + offset, world_source(comm, source)
    message = find_unexpected(engine, context, world, tag)
    if message == 0:
        progress_locked(engine)
        message = find_unexpected(engine, context, world, tag)
    if message != 0:
        store64(message + REQUEST.comm, comm)
        local = load64(comm + COMM.local)
        store64(message + REQUEST.status_source, load64(local + 8 * load64(message + REQUEST.source)))
        store64(message + REQUEST.status_tag, load64(message + REQUEST.tag))
        if take != 0:
            drop_unexpected(engine, message)
    unlock(engine)
    return message


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def ask_for_message(comm, offset, source, tag, take):  # type: ignore[no-untyped-def]
    """As :func:`find_message`, but minus the code of the trouble because of which none may ever come, if there is any."""
    message = find_message(comm, offset, source, tag, take)
    return message if message != 0 else -trouble(load64(comm + COMM.engine))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def wait_message(comm, offset, source, tag, take, resumed, found):  # type: ignore[no-untyped-def]
    """Wait a slice for a message that (source, tag) matches; its address goes to the word at `found`."""
    engine = load64(comm + COMM.engine)
    if resumed == 0:
        trace_begin(engine, _TRACE_PROBE, load64(comm + COMM.context) + offset, source, tag, 0)
    turn, started = 0, ticks()
    while True:
        message = find_message(comm, offset, source, tag, take)
        if message != 0:
            store64(found, message)
            trace_end(load64(engine + ENGINE.current))
            return DONE
        code = idle(engine, turn, started)
        turn += 1
        if code != 0:
            return code


@kernel("int64(int64, int64, int64, int64, int64)")
def new_matched(comm, request, message, address, nbytes):  # type: ignore[no-untyped-def]
    """An idle request, or a new one (0), as that of a receive of a message that was taken out of matching; the engine's lock is held."""
    receive = prepared(load64(comm + COMM.engine), request)
    store64(receive + REQUEST.kind, RECEIVE)
    store64(receive + REQUEST.comm, comm)
    store64(receive + REQUEST.context, load64(message + REQUEST.context))
    store64(receive + REQUEST.source, load64(message + REQUEST.source))
    store64(receive + REQUEST.tag, load64(message + REQUEST.tag))
    store64(receive + REQUEST.address, address)
    store64(receive + REQUEST.nbytes, nbytes)
    return receive


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def receive_matched(comm, request, message, address, nbytes):  # type: ignore[no-untyped-def]
    """Start the receive of a message that was taken out of matching, with an idle request or a new one (0). Returns the request."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    receive = new_matched(comm, request, message, address, nbytes)
    hand_over(engine, message, receive)
    unlock(engine)
    return receive

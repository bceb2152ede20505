"""Progress, and the one way to wait.

``progress`` reads every ring, meets arrivals with receives, pushes what waited for room, moves bulk transfers on and
steps non-blocking collectives. Every blocking call comes by here while it waits, so whatever is outstanding
moves on whoever waits for what (MPI's progress rule).

``idle`` is one turn of waiting: it progresses, then pauses, yields or dozes, and says when to stop waiting. A wait with
more ranks than cores yields at once (a spinning rank would hold the core that its peer needs).
"""

from __future__ import annotations

from ncclx_mpi.errors import ERR_NO_MEM
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import (
    ABORTED,
    AGAIN,
    ANNOUNCE,
    CANCEL,
    CANCELLED,
    COMM,
    DEADLINE,
    EAGER,
    ENGINE,
    ERR_TRUNCATE,
    FAILED,
    FINISH,
    GRANT,
    PEER,
    PEER_DEAD,
    REQUEST,
    UNEXPECTED,
)
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
from ncclx_mpi.p2p.rendezvous import begin_receive, begin_send, flush_queue, peer_of, step_transfers, tell
from numba_kernels import types
from numba_kernels.atomics import (
    call_step,
    compare_exchange,
    load64,
    load_relaxed,
    pause,
    store64,
    store_relaxed,
    store_release,
    ticks,
)
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, copy, release
from transports.shm.layout import CONTROL, HEADER, RING, TRACE, TRACE_RECORDS
from transports.shm.ring import MESSAGE, consume, copy_payload, kind_of, lines_for, peek, tag_of

sched_yield = types.external("sched_yield", types.int32())
usleep = types.external("usleep", types.int32(types.uint32))

_MESSAGES_A_TURN = 64
_DOZE_SHIFT, _LEAST_DOZE_US, _MOST_DOZE_US = 6, 50, 1000
"""A rank dozes a 64th of the time it has waited: many waiting ranks must not take the core from the one that computes."""
_LOOK_AT_CLOCK = 64
_LOCK_POLLS = 100


@kernel("void(int64)")
def lock(engine):  # type: ignore[no-untyped-def]
    """Enter the engine: one thread of this process at a time, for a slice. Spins briefly, then waits without the GIL."""
    for _ in range(_LOCK_POLLS):
        if compare_exchange(engine + ENGINE.lock, 0, 1) == 0:
            return
        pause()
    state = leave_gil()
    while compare_exchange(engine + ENGINE.lock, 0, 1) != 0:
        sched_yield()
    enter_gil(state)


@kernel("void(int64)")
def unlock(engine):  # type: ignore[no-untyped-def]
    """Leave the engine."""
    store_release(engine + ENGINE.lock, 0)


@kernel("int64(int64)")
def try_lock(engine):  # type: ignore[no-untyped-def]
    """Enter the engine unless another thread is in it; 1 if entered."""
    return 1 if compare_exchange(engine + ENGINE.lock, 0, 1) == 0 else 0


@kernel("void(int64, int64, int64, int64)")
def set_status(receive, source, tag, nbytes):  # type: ignore[no-untyped-def]
    """What the receive's status will say; `source` is a world rank."""
    local = load64(load64(receive + REQUEST.comm) + COMM.local)
    store64(receive + REQUEST.peer, source)
    store64(receive + REQUEST.status_source, load64(local + 8 * source))
    store64(receive + REQUEST.status_tag, tag)
    store64(receive + REQUEST.message_bytes, nbytes)


@kernel("void(int64, int64)")
def release_credit(peer, nbytes):  # type: ignore[no-untyped-def]
    """Eager bytes found their receive: the sender may send as many again."""
    released = load64(peer + PEER.released) + nbytes
    store64(peer + PEER.released, released)
    store_relaxed(load64(peer + PEER.inbox) + RING.released, released)


@kernel("int64(int64, int64, int64, int64, int64)")
def _arrive_eager(engine, peer, line, source, nbytes):  # type: ignore[no-untyped-def]
    """Take a small message in: 1; or 0 if it finds neither a receive nor memory, and stays where it is."""
    context, tag = load64(line + MESSAGE.context), tag_of(line)
    ring, ring_lines = load64(peer + PEER.inbox), load64(engine + ENGINE.ring_lines)
    receive = take_posted(engine, context, source, tag)
    if receive != 0:
        capacity = load64(receive + REQUEST.nbytes)
        set_status(receive, source, tag, nbytes)
        copy_payload(ring, ring_lines, line, load64(receive + REQUEST.address), min(nbytes, capacity))
        release_credit(peer, nbytes)
        complete(receive, ERR_TRUNCATE if nbytes > capacity else 0)
        return 1
    message = _new_unexpected(engine, context, source, tag, nbytes)
    if message != 0 and nbytes > 0:
        payload = allocate(nbytes)
        if payload == 0:
            store64(engine + ENGINE.short_of_memory, 1)
            release_request(engine, message)
            return 0
        copy_payload(ring, ring_lines, line, payload, nbytes)
        store64(message + REQUEST.payload, payload)
        store64(engine + ENGINE.unexpected_bytes, load64(engine + ENGINE.unexpected_bytes) + nbytes)
    if message != 0:
        keep_unexpected(engine, message)
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


@kernel("int64(int64, int64, int64, int64)")
def _arrive_announce(engine, line, source, nbytes):  # type: ignore[no-untyped-def]
    """Take the announcement of a large message in: 1; or 0 as above."""
    context, tag = load64(line + MESSAGE.context), tag_of(line)
    remote, direct = load64(line + MESSAGE.payload), load64(line + MESSAGE.payload + 8)
    far = load64(line + MESSAGE.payload + 16)
    receive = take_posted(engine, context, source, tag)
    if receive != 0:
        _meet(engine, receive, source, tag, nbytes, remote, direct, far)
        return 1
    message = _new_unexpected(engine, context, source, tag, nbytes)
    if message == 0:
        return 0
    store64(message + REQUEST.remote, remote)
    store64(message + REQUEST.direct, direct)
    store64(message + REQUEST.far, far)
    keep_unexpected(engine, message)
    return 1


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def _meet(engine, receive, source, tag, nbytes, remote, direct, far):  # type: ignore[no-untyped-def]
    set_status(receive, source, tag, nbytes)
    store64(receive + REQUEST.far, far)
    store64(receive + REQUEST.remote, remote)
    store64(receive + REQUEST.direct, direct)
    begin_receive(engine, receive)


@kernel("void(int64, int64, int64)")
def _arrive_cancel(engine, peer, remote):  # type: ignore[no-untyped-def]
    """The sender takes an announcement back: it succeeds if no receive has met it."""
    source = load64(peer + PEER.world)
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0:
        if load64(message + REQUEST.remote) == remote and load64(message + REQUEST.source) == source:
            drop_unexpected(engine, message)
            release_request(engine, message)
            tell(engine, peer, CANCELLED, remote, 0, 0)
            return
        message = load64(message + REQUEST.order_next)


@kernel("int64(int64, int64, int64)")
def _arrive(engine, peer, line):  # type: ignore[no-untyped-def]
    """Handle one message; returns the lines it takes, 0 if it has to stay."""
    kind, nbytes = kind_of(line), load64(line + MESSAGE.nbytes)
    if kind == EAGER:
        return lines_for(nbytes) if _arrive_eager(engine, peer, line, load64(peer + PEER.world), nbytes) != 0 else 0
    first = load64(line + MESSAGE.payload)
    if kind == ANNOUNCE:
        return lines_for(0) if _arrive_announce(engine, line, load64(peer + PEER.world), nbytes) != 0 else 0
    if kind == GRANT:
        begin_send(engine, first, load64(line + MESSAGE.payload + 8), load64(line + MESSAGE.payload + 16))
    elif kind == FINISH:
        complete(first, 0)
    elif kind == CANCEL:
        _arrive_cancel(engine, peer, first)
    elif kind == CANCELLED:
        store64(first + REQUEST.cancelled, 1)
        complete(first, 0)
    return lines_for(0)


@kernel("void(int64, int64)")
def _poll_peer(engine, peer):  # type: ignore[no-untyped-def]
    """Handle what `peer` has sent."""
    ring, ring_lines = load64(peer + PEER.inbox), load64(engine + ENGINE.ring_lines)
    key = load64(engine + ENGINE.key)
    for _ in range(_MESSAGES_A_TURN):
        head = load64(peer + PEER.head)
        line = peek(ring, ring_lines, key, head)
        if line == 0:
            return
        taken = _arrive(engine, peer, line)
        if taken == 0:
            return
        head += taken
        store64(peer + PEER.head, head)
        store64(peer + PEER.published, consume(ring, ring_lines, head, load64(peer + PEER.published)))


@kernel("void(int64)", is_entry=True)
def take_in(engine):  # type: ignore[no-untyped-def]
    """Handle what all peers have sent."""
    peer = load64(engine + ENGINE.peers)
    for _ in range(load64(engine + ENGINE.nranks)):
        _poll_peer(engine, peer)
        peer += PEER.total


@kernel("void(int64)", is_entry=True)
def move_on(engine):  # type: ignore[no-untyped-def]
    """Push what waits for room, and move bulk transfers on."""
    peer = load64(engine + ENGINE.peers)
    for _ in range(load64(engine + ENGINE.nranks)):
        if load64(peer + PEER.queue_first) != 0:
            flush_queue(engine, peer)
        peer += PEER.total
    if load64(engine + ENGINE.active_count) != 0:
        step_transfers(engine)


@kernel("int64(int64)")
def _has_arrivals(engine):  # type: ignore[no-untyped-def]
    key, ring_lines = load64(engine + ENGINE.key), load64(engine + ENGINE.ring_lines)
    peer = load64(engine + ENGINE.peers)
    for _ in range(load64(engine + ENGINE.nranks)):
        if peek(load64(peer + PEER.inbox), ring_lines, key, load64(peer + PEER.head)) != 0:
            return 1
        peer += PEER.total
    return 0


@kernel("void(int64)")
def progress_locked(engine):  # type: ignore[no-untyped-def]
    """Move on everything that is outstanding; the engine's lock is held.

    Whatever there is to do is done in functions called by address: as a part of every call that waits, they would be most of its code.
    """
    if _has_arrivals(engine) != 0:
        call_step(load64(engine + ENGINE.take_in), engine)
    if load64(engine + ENGINE.queued) != 0 or load64(engine + ENGINE.active_count) != 0:
        call_step(load64(engine + ENGINE.move_on), engine)
    if load64(engine + ENGINE.plan_count) != 0:
        call_step(load64(engine + ENGINE.plan_step), engine)
    if load64(engine + ENGINE.lines_first) != 0:
        call_step(load64(engine + ENGINE.lines_step), engine)


@kernel("void(int64)", is_entry=True)
def progress(engine):  # type: ignore[no-untyped-def]
    """Move on everything that is outstanding."""
    if try_lock(engine) != 0:
        progress_locked(engine)
        unlock(engine)


@kernel("int64(int64)", is_entry=True)
def trouble(engine):  # type: ignore[no-untyped-def]
    """PEER_DEAD once a rank has died, ABORTED once the job is to end, a failure while there is no memory for what has come, else 0."""
    header = load64(engine + ENGINE.header)
    if load_relaxed(header + HEADER.death) != 0:
        return PEER_DEAD
    if load_relaxed(header + HEADER.abort) != 0:
        return ABORTED
    return FAILED + ERR_NO_MEM if load64(engine + ENGINE.short_of_memory) != 0 else 0


@kernel("int64(int64, int64, int64)")
def idle(engine, turn, started):  # type: ignore[no-untyped-def]
    """One turn of waiting: progress, then give the core away as far as that is wise.

    Parameters
    ----------
    engine
        Address of the engine.
    turn
        How many turns this slice has waited.
    started
        ``ticks()`` at the entry of this slice.

    Returns
    -------
    int
        0: go on. AGAIN: return to Python for its signals, then call again. PEER_DEAD, ABORTED, DEADLINE: give up.
    """
    progress(engine)
    spins = load64(engine + ENGINE.spins)
    if turn < spins:
        pause()
        if turn & (_LOOK_AT_CLOCK - 1) != 0:
            return 0
        return trouble(engine)
    code = trouble(engine)
    if code != 0:
        return code
    sched_yield()
    now = ticks()
    record = load64(engine + ENGINE.current)
    waited = now - load64(record + TRACE.start)
    deadline = load64(engine + ENGINE.deadline_ticks)
    if deadline > 0 and waited > deadline:
        return DEADLINE
    if now - started > load64(engine + ENGINE.slice_ticks):
        return AGAIN
    if waited > load64(engine + ENGINE.doze_ticks):
        waited_us = waited // load64(engine + ENGINE.ticks_per_us)
        usleep(types.uint32(min(max(waited_us >> _DOZE_SHIFT, _LEAST_DOZE_US), _MOST_DOZE_US)))
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def trace_begin(engine, kind, context, peer, tag, nbytes):  # type: ignore[no-untyped-def]
    """Open the record of an operation in this rank's trace ring; about 10 ns. Returns its address."""
    control = load64(engine + ENGINE.control)
    count = load64(control + CONTROL.records)
    record = load64(engine + ENGINE.trace) + (count & (TRACE_RECORDS - 1)) * TRACE.total
    store64(record + TRACE.end, 0)
    store64(record + TRACE.kind, kind)
    store64(record + TRACE.context, context)
    store64(record + TRACE.peer, peer)
    store64(record + TRACE.tag, tag)
    store64(record + TRACE.nbytes, nbytes)
    store64(record + TRACE.start, ticks())
    store64(record + TRACE.sequence, count)
    store_relaxed(control + CONTROL.records, count + 1)
    store64(engine + ENGINE.current, record)
    return record


@kernel("void(int64)")
def trace_end(record):  # type: ignore[no-untyped-def]
    """Close the record of an operation."""
    store_relaxed(record + TRACE.end, ticks())


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
    if remote != 0:
        _meet(engine, receive, source, tag, nbytes, remote, load64(message + REQUEST.direct), load64(message + REQUEST.far))
    else:
        capacity, payload = load64(receive + REQUEST.nbytes), load64(message + REQUEST.payload)
        set_status(receive, source, tag, nbytes)
        if nbytes > 0:
            copy(load64(receive + REQUEST.address), payload, min(nbytes, capacity))
            release(payload)
            store64(engine + ENGINE.unexpected_bytes, load64(engine + ENGINE.unexpected_bytes) - nbytes)
        release_credit(peer_of(engine, source), nbytes)
        complete(receive, ERR_TRUNCATE if nbytes > capacity else 0)
    release_request(engine, message)

"""Large and synchronous messages: announced, matched, then moved: by both ranks at once, or through a bulk pipe of the receiver.

::

    sender                                   receiver
      RTS {nbytes, request} ----------------->  matched with a receive (perhaps much later)
                 <---------------------------- CTS {request, grant, pipe}     a pipe of the receiver's pool
      chunk k -> pipe[k % depth], posted = k+1
                                               posted > k: pipe[k % depth] -> buffer, consumed = k+1
      all posted: send complete                all read: receive complete, pipe back to the pool

No message but the header crosses before the match, so unmatched sends hold no pipe and cannot starve matched ones. A send from
memory in the arena is announced with its offset: the receiver reads it there, one copy, and answers ATS, as it does
for a synchronous message without bytes. Private memory is copied by sender and receiver together where the kernel
lets them and where the receiver has found that faster (:mod:`ncclx_mpi.p2p.shared`, :mod:`ncclx_mpi.p2p.trial`); the pipe then only
holds the words of that transfer.

Cost: two line transfers more than eager, then nbytes over the slower of the two copies, which run at the same time on two cores.
"""

from __future__ import annotations

from ncclx_mpi.p2p.inlined import send
from ncclx_mpi.p2p.layout import (
    ASKED,
    ASKING,
    AUTO,
    CONTROL_MESSAGE,
    DIRECT,
    ENGINE,
    ERR_OTHER,
    ERR_TRUNCATE,
    ON_DEVICE,
    PEER,
    PIPED,
    REQUEST,
    SEND,
)
from ncclx_mpi.p2p.matching import complete, new_request, release_request
from ncclx_mpi.p2p.shared import FINISHED, REFUSED, accept_shared, cut_shared, is_reached, offer_shared, share
from ncclx_mpi.p2p.trial import next_way, note_time, trial_of
from numba_kernels.atomics import load64, load_acquire, store64, store_release, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, stream, write_shared
from transports.messages import ATS, CTS, EAGER, RTS
from transports.shm.lane import SHM
from transports.shm.layout import BULK, BULK_BYTES, BULK_SLOTS

_SMALLEST_CHUNK = 16 << 10
_LARGEST_CHUNK = 128 << 10
CHUNKS_A_STEP = 4
_BROKEN_OFF = 1 << 40
"""In ``BULK.posted``: the sender cannot read its array any more."""
STREAM_LANDING_FROM = 12 << 20
"""Bytes of a message from which the receiver writes it past the caches, since it would not stay in them anyway."""


@kernel("int64(int64, int64)")
def peer_of(engine, world_rank):  # type: ignore[no-untyped-def]
    """Address of the ``PEER`` block of a world rank."""
    return load64(engine + ENGINE.peers) + world_rank * PEER.total


@kernel("int64(int64)")
def chunk_for(nbytes):  # type: ignore[no-untyped-def]
    """Bytes of a chunk: a function of the message's size alone, so that both sides cut alike."""
    eighth = (nbytes // 8 + 4095) // 4096 * 4096
    return min(max(eighth, _SMALLEST_CHUNK), _LARGEST_CHUNK)


@kernel("int64(int64, int64, int64)")
def _try_send(engine, peer, request):  # type: ignore[no-untyped-def]
    """Send what `request` wants to tell its peer. Returns 1 if it went out, 0 if the transport has no room for it."""
    action, nbytes = load64(request + REQUEST.action), load64(request + REQUEST.nbytes)
    first, second, third = load64(request + REQUEST.remote), load64(request + REQUEST.matched), load64(request + REQUEST.bulk)
    if action == EAGER:
        first = load64(request + REQUEST.address)
    elif action == RTS:
        first, second, third = request, load64(request + REQUEST.direct), load64(request + REQUEST.far)
    context, tag = load64(request + REQUEST.context), load64(request + REQUEST.tag)
    if send(engine, peer, action, context, tag, nbytes, first, second, third) == 0:
        return 0
    store64(request + REQUEST.action, 0)
    if action == EAGER:
        store64(peer + PEER.sent, load64(peer + PEER.sent) + nbytes)
        complete(request, 0)
    elif action == RTS:
        store64(request + REQUEST.announced, 1)
        store64(engine + ENGINE.announced, load64(engine + ENGINE.announced) + 1)
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
    store64(request + REQUEST.matched, second)
    store64(request + REQUEST.bulk, third)
    send_or_queue(engine, peer, request)


@kernel("void(int64, int64)")
def _activate(engine, request):  # type: ignore[no-untyped-def]
    store64(request + REQUEST.active_next, load64(engine + ENGINE.active_first))
    store64(engine + ENGINE.active_first, request)
    store64(engine + ENGINE.active_count, load64(engine + ENGINE.active_count) + 1)


@kernel("void(int64, int64)")
def _cut(request, nbytes):  # type: ignore[no-untyped-def]
    chunk = chunk_for(nbytes)
    store64(request + REQUEST.message_bytes, nbytes)
    store64(request + REQUEST.chunk, chunk)
    store64(request + REQUEST.chunks, (nbytes + chunk - 1) // chunk)
    store64(request + REQUEST.done_chunks, 0)


@kernel("void(int64, int64)")
def send_ats(engine, receive):  # type: ignore[no-untyped-def]
    """Tell the sender of an announced message that its memory is not needed any more."""
    tell(engine, peer_of(engine, load64(receive + REQUEST.peer)), ATS, load64(receive + REQUEST.remote), 0, 0)


@kernel("void(int64, int64)")
def begin_receive(engine, receive):  # type: ignore[no-untyped-def]
    """A receive has met an announced message: `remote`, `message_bytes`, `direct` and the status are set."""
    nbytes, direct = load64(receive + REQUEST.message_bytes), load64(receive + REQUEST.direct)
    if nbytes > load64(receive + REQUEST.nbytes):
        store64(receive + REQUEST.error, ERR_TRUNCATE)
    if load64(receive + REQUEST.landing) == ASKING:
        store64(receive + REQUEST.landing, ASKED)
        return
    if load64(receive + REQUEST.far) == ON_DEVICE:
        store64(receive + REQUEST.far, 0)
        direct = 0
    if nbytes == 0 or direct != 0:
        if nbytes > 0:
            wanted = min(nbytes, load64(receive + REQUEST.nbytes))
            copy(load64(receive + REQUEST.address), load64(engine + ENGINE.arena) + direct, wanted)
        send_ats(engine, receive)
        complete(receive, 0)
        return
    for i in range(BULK_SLOTS):
        pipe = load64(engine + ENGINE.bulk_free + 8 * i)
        if pipe != 0:
            store64(engine + ENGINE.bulk_free + 8 * i, 0)
            _grant(engine, receive, pipe)
            return
    store64(receive + REQUEST.queue_next, 0)
    last = load64(engine + ENGINE.starved_last)
    if last == 0:
        store64(engine + ENGINE.starved_first, receive)
    else:
        store64(last + REQUEST.queue_next, receive)
    store64(engine + ENGINE.starved_last, receive)


@kernel("void(int64, int64, int64)")
def _grant(engine, receive, pipe):  # type: ignore[no-untyped-def]
    """Lend a pipe to the sender. Nobody else touches it now, so both counters may be reset here."""
    store_release(pipe + BULK.posted, 0)
    store_release(pipe + BULK.consumed, 0)
    store64(receive + REQUEST.bulk, pipe)
    peer = peer_of(engine, load64(receive + REQUEST.peer))
    _choose_way(engine, receive, peer)
    grant = 0
    if load64(receive + REQUEST.far) != 0:
        grant = offer_shared(pipe, load64(receive + REQUEST.address), load64(receive + REQUEST.wanted))
        store64(receive + REQUEST.grant, grant)
    _activate(engine, receive)
    tell(engine, peer, CTS, load64(receive + REQUEST.remote), grant, pipe - load64(engine + ENGINE.arena))


@kernel("void(int64, int64, int64)")
def _choose_way(engine, receive, peer):  # type: ignore[no-untyped-def]
    """Cut the transfer for the way it goes; `far` becomes 0 if that is through the pipe."""
    nbytes, way = load64(receive + REQUEST.message_bytes), PIPED
    wanted = min(nbytes, load64(receive + REQUEST.nbytes))
    if load64(receive + REQUEST.far) != 0 and wanted > 0 and is_reached(engine, peer) != 0:
        way = load64(engine + ENGINE.copies)
        if way == AUTO:
            trial = trial_of(engine + ENGINE.trials, wanted)
            store64(receive + REQUEST.trial, trial)
            store64(receive + REQUEST.began, ticks())
            way = next_way(trial, wanted)
    if way == DIRECT:
        cut_shared(receive, wanted)
    else:
        store64(receive + REQUEST.far, 0)
        _cut(receive, nbytes)


@kernel("void(int64, int64)")
def _take_back(engine, pipe):  # type: ignore[no-untyped-def]
    """A pipe is free again: the oldest receive that waits for one gets it."""
    starved = load64(engine + ENGINE.starved_first)
    if starved != 0:
        after = load64(starved + REQUEST.queue_next)
        store64(engine + ENGINE.starved_first, after)
        if after == 0:
            store64(engine + ENGINE.starved_last, 0)
        _grant(engine, starved, pipe)
        return
    for i in range(BULK_SLOTS):
        if load64(engine + ENGINE.bulk_free + 8 * i) == 0:
            store64(engine + ENGINE.bulk_free + 8 * i, pipe)
            return


@kernel("void(int64, int64, int64, int64)")
def begin_send(engine, request, grant, pipe_offset):  # type: ignore[no-untyped-def]
    """The receiver has granted a pipe; `grant` is 0 if all goes through it."""
    pipe = load64(engine + ENGINE.arena) + pipe_offset
    store64(request + REQUEST.bulk, pipe)
    store64(request + REQUEST.far, 0)
    if grant == 0:
        _cut(request, load64(request + REQUEST.nbytes))
    elif accept_shared(request, pipe, grant) == 0:
        complete(request, 0)
        return
    _activate(engine, request)


@kernel("int64(int64, int64)")
def _feed(engine, request):  # type: ignore[no-untyped-def]
    """Write some chunks; 1 when all are written."""
    pipe, chunk = load64(request + REQUEST.bulk), load64(request + REQUEST.chunk)
    chunks, done = load64(request + REQUEST.chunks), load64(request + REQUEST.done_chunks)
    nbytes, address = load64(request + REQUEST.nbytes), load64(request + REQUEST.address)
    window, moved = load64(request + REQUEST.window), load64(request + REQUEST.moved)
    depth = BULK_BYTES // chunk
    streamed = load64(engine + SHM.streamed)
    budget = CHUNKS_A_STEP
    while budget > 0 and done < chunks and done - load_acquire(pipe + BULK.consumed) < depth:
        offset = done * chunk
        length = min(chunk, nbytes - offset)
        place = offset
        if window != 0:
            if offset + length > moved:
                break
            place = offset % window
        write_shared(pipe + BULK.data + (done % depth) * chunk, address + place, length, streamed)
        done += 1
        budget -= 1
        store_release(pipe + BULK.posted, done)
    store64(request + REQUEST.done_chunks, done)
    return 1 if done == chunks else 0


@kernel("int64(int64)")
def _drain(request):  # type: ignore[no-untyped-def]
    """Read the chunks that have come, as far as the receiver's buffer goes; 1 when all are read."""
    pipe, chunk = load64(request + REQUEST.bulk), load64(request + REQUEST.chunk)
    chunks, done = load64(request + REQUEST.chunks), load64(request + REQUEST.done_chunks)
    nbytes, address = load64(request + REQUEST.message_bytes), load64(request + REQUEST.address)
    wanted = min(nbytes, load64(request + REQUEST.nbytes))
    window, moved = load64(request + REQUEST.window), load64(request + REQUEST.moved)
    depth = BULK_BYTES // chunk
    budget = CHUNKS_A_STEP
    while budget > 0 and done < chunks and load_acquire(pipe + BULK.posted) > done:
        offset = done * chunk
        length = min(chunk, wanted - offset)
        place = offset
        if window != 0:
            if offset + length > moved + window:
                break
            place = offset % window
        if length > 0:
            source = pipe + BULK.data + (done % depth) * chunk
            if nbytes >= STREAM_LANDING_FROM:
                stream(address + place, source, length)
            else:
                copy(address + place, source, length)
        done += 1
        budget -= 1
        store_release(pipe + BULK.consumed, done)
    store64(request + REQUEST.done_chunks, done)
    if done == chunks and load_acquire(pipe + BULK.posted) >= _BROKEN_OFF:
        store64(request + REQUEST.error, ERR_OTHER)
    return 1 if done == chunks else 0


@kernel("void(int64)")
def break_off(request):  # type: ignore[no-untyped-def]
    """End a send that has been granted a pipe, and cannot be read any more: its receiver gets an error."""
    store64(request + REQUEST.done_chunks, load64(request + REQUEST.chunks))
    store_release(load64(request + REQUEST.bulk) + BULK.posted, _BROKEN_OFF)


@kernel("int64(int64, int64, int64)")
def _step_shared(engine, request, sending):  # type: ignore[no-untyped-def]
    """Copy a chunk of a transfer without a pipe; 1 when all are copied. What the kernel refused goes through the pipe after all."""
    outcome = share(request, peer_of(engine, load64(request + REQUEST.peer)), sending)
    if outcome == REFUSED:
        store64(request + REQUEST.far, 0)
        store64(request + REQUEST.trial, 0)
        _cut(request, load64(request + REQUEST.message_bytes))
    return 1 if outcome == FINISHED else 0


@kernel("void(int64)")
def step_transfers(engine):  # type: ignore[no-untyped-def]
    """Move every active transfer on by a few chunks."""
    link = engine + ENGINE.active_first
    request = load64(link)
    while request != 0:
        following = load64(request + REQUEST.active_next)
        sending = load64(request + REQUEST.kind) == SEND
        if load64(request + REQUEST.far) != 0:
            finished = _step_shared(engine, request, sending)
        else:
            finished = _feed(engine, request) if sending else _drain(request)
        if finished:
            store64(link, following)
            store64(engine + ENGINE.active_count, load64(engine + ENGINE.active_count) - 1)
            pipe, trial = load64(request + REQUEST.bulk), load64(request + REQUEST.trial)
            if trial != 0:
                note_time(trial, DIRECT if load64(request + REQUEST.far) != 0 else PIPED, ticks() - load64(request + REQUEST.began))
            complete(request, 0)
            if not sending:
                first = load64(engine + ENGINE.active_first)
                _take_back(engine, pipe)
                if link == engine + ENGINE.active_first and load64(link) != first:
                    link = load64(link) + REQUEST.active_next
        else:
            link = request + REQUEST.active_next
        request = following

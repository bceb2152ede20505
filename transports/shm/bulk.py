"""Large messages of a node: one copy out of memory in the arena, both ranks at once from buffer to buffer, or through a pipe of the receiver.

::

    sender                                   receiver
      offer: RTS {offset in the arena, or address} --->  fetch, once a receive has met it (perhaps much later)
                                                           in the arena: copies it, and is done
      serve <------------------ CTS {grant, pipe}          else: a pipe of the receiver's pool, when one is free
      chunk k -> pipe[(first + k) % depth], posted = k+1
                            posted > k: pipe[(first + k) % depth] -> buffer, consumed = k+1
      all posted: finish                       all read: finish, pipe back to the pool

Unmatched sends hold no pipe and cannot starve matched ones. Private memory is copied by sender and receiver together where the kernel
lets them and where the receiver has found that faster (:mod:`transports.shm.shared`, :mod:`transports.shm.trial`); the pipe then only
holds the words of that transfer.

A transfer begins in the pipe where the one before ended. A line that was read a moment ago is in the second-level cache of the receiver's
core, and to write it again takes it from there, one line after the other; one that was written a cache ago is in the cache that both
share. So a pipe has twice the bytes of a second-level cache. Of a pipe that is lent often both ends have the pages from then on: otherwise
each page would fault when the pipe first comes there, and what is measured meanwhile would be that.

:data:`TRANSFER` is the beginning of a request (:data:`transports.messages.REQUEST`). The functions that are entries are called by address.

Cost: nbytes over the slower of the two copies, which run at the same time on two cores; one copy where the message lies in the arena.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, load_acquire, store64, store_release, ticks
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import copy_lines, stream, take_pages, write_shared
from transports.messages import ERR_OTHER, ON_DEVICE, REQUEST, REQUEST_WORDS
from transports.shm.lane import LANE, SHM
from transports.shm.layout import BULK, BULK_SLOTS, BULK_STRIDE, LEAST_BULK_BYTES, PAGE
from transports.shm.shared import (
    AUTO,
    DIRECT,
    FINISHED,
    PIPED,
    REFUSED,
    TRANSFER,
    accept_shared,
    cut_shared,
    is_reached,
    is_streamed,
    offer_shared,
    revoke_shared,
    share,
)
from transports.shm.trial import LONG, next_way, note_time, trial_of

assert TRANSFER.total <= REQUEST_WORDS * WORD

_SMALLEST_CHUNK = 16 << 10
_LARGEST_CHUNK = 128 << 10
CHUNKS_A_STEP = 4
_BROKEN_OFF = 1 << 40
"""In ``BULK.posted``: the sender cannot read its array any more."""
STREAM_LANDING_FROM = 12 << 20
"""Bytes of a message from which the receiver writes it past the caches, since it would not stay in them anyway."""
_MAPPED_AT = 16
"""The grant of a pipe with which both ends take all its pages: a program that sends fewer large messages does not need them."""


@kernel("int64(int64, int64, int64)", is_entry=True)
def offer(engine, lane, request):  # type: ignore[no-untyped-def]
    """Say in the RTS of a send where its message is: in the arena, or where the peer may copy it from; nothing if it can do neither."""
    address = load64(request + REQUEST.address)
    if load64(engine + SHM.heap_first) <= address < load64(engine + SHM.heap_last):
        store64(request + REQUEST.second, address - load64(engine + SHM.arena))
    elif is_reached(engine, lane) != 0:
        store64(request + REQUEST.third, address)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def fetch(engine, lane, receive):  # type: ignore[no-untyped-def]
    """A receive has met an RTS of some bytes: 1 if they are in its buffer now, 0 if that is under way."""
    direct, far = load64(receive + REQUEST.second), load64(receive + REQUEST.third)
    if far == ON_DEVICE:
        direct = far = 0
    if direct != 0:
        wanted = min(load64(receive + REQUEST.message_bytes), load64(receive + REQUEST.nbytes))
        copy_lines(load64(receive + REQUEST.address), load64(engine + SHM.arena) + direct, wanted)
        return 1
    store64(receive + TRANSFER.lane, lane)
    store64(receive + TRANSFER.far, far)
    for i in range(BULK_SLOTS):
        pipe = load64(engine + SHM.bulk_free + 8 * i)
        if pipe != 0:
            store64(engine + SHM.bulk_free + 8 * i, 0)
            _grant(engine, receive, pipe)
            return 0
    store64(receive + TRANSFER.next, 0)
    last = load64(engine + SHM.starved_last)
    if last == 0:
        store64(engine + SHM.starved_first, receive)
    else:
        store64(last + TRANSFER.next, receive)
    store64(engine + SHM.starved_last, receive)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def serve(engine, lane, request):  # type: ignore[no-untyped-def]
    """The receiver has sent a CTS, with a grant of at most 0 for the pipe: 1 if it needs nothing any more, 0 if that is under way."""
    grant, pipe = load64(request + REQUEST.second), load64(engine + SHM.arena) + load64(request + REQUEST.third)
    store64(request + TRANSFER.lane, lane)
    store64(request + TRANSFER.sending, 1)
    store64(request + TRANSFER.pipe, pipe)
    store64(request + TRANSFER.far, 0)
    if grant <= 0:
        store64(request + TRANSFER.grant, grant)
        _cut(request, load64(request + REQUEST.nbytes))
        _map_of_peer(engine, lane, pipe)
    elif accept_shared(request, pipe, grant) == 0:
        return 1
    _activate(engine, request)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def revoke(engine, lane, receive):  # type: ignore[no-untyped-def]
    """Take the buffer of a receive back whose transfer is under way, or about to be; whether nobody writes there any more."""
    if load64(receive + TRANSFER.far) == 0 or load64(receive + TRANSFER.pipe) == 0:
        return 1
    return revoke_shared(engine, lane, receive)


@kernel("int64(int64)")
def chunk_for(nbytes):  # type: ignore[no-untyped-def]
    """Bytes of a chunk: a function of the message's size alone, so that both sides cut alike."""
    eighth = (nbytes // 8 + 4095) // 4096 * 4096
    return min(max(eighth, _SMALLEST_CHUNK), _LARGEST_CHUNK)


@kernel("void(int64, int64)")
def _activate(engine, request):  # type: ignore[no-untyped-def]
    store64(request + TRANSFER.next, load64(engine + SHM.active_first))
    store64(engine + SHM.active_first, request)
    store64(engine + SHM.active_count, load64(engine + SHM.active_count) + 1)


@kernel("void(int64, int64)")
def _cut(request, nbytes):  # type: ignore[no-untyped-def]
    chunk = chunk_for(nbytes)
    store64(request + REQUEST.message_bytes, nbytes)
    store64(request + TRANSFER.chunk, chunk)
    store64(request + TRANSFER.chunks, (nbytes + chunk - 1) // chunk)
    _note_progress(request, 0)


@kernel("void(int64, int64, int64)")
def _grant(engine, receive, pipe):  # type: ignore[no-untyped-def]
    """Lend a pipe to the sender. Nobody else touches it now, so both counters may be reset here."""
    store_release(pipe + BULK.posted, 0)
    store_release(pipe + BULK.consumed, 0)
    store64(receive + TRANSFER.pipe, pipe)
    lane = load64(receive + TRANSFER.lane)
    _map_own(engine, pipe)
    _choose_way(engine, receive, lane)
    grant = load64(receive + TRANSFER.grant)
    if load64(receive + TRANSFER.far) != 0:
        grant = offer_shared(pipe, load64(receive + REQUEST.address), load64(receive + TRANSFER.wanted))
        store64(receive + TRANSFER.grant, grant)
    else:
        _place(engine, receive, pipe)
    _activate(engine, receive)
    store64(receive + REQUEST.second, grant)
    store64(receive + REQUEST.third, pipe - load64(engine + SHM.arena))
    call_three(load64(engine + SHM.clear_to_send), engine, lane, receive)


@kernel("int64(int64, int64, int64)")
def _depth(engine, chunk, chunks):  # type: ignore[no-untyped-def]
    """How many chunks of a message a pipe has room for: of a long one, whose buffers are in no cache, it uses no more than it needs."""
    is_long = chunks * chunk >= LONG
    return (LEAST_BULK_BYTES if is_long else load64(engine + SHM.pipe_bytes)) // chunk


@kernel("void(int64, int64, int64)")
def _place(engine, receive, pipe):  # type: ignore[no-untyped-def]
    """Have a transfer begin in the pipe where the one before ended."""
    chunk, chunks = load64(receive + TRANSFER.chunk), load64(receive + TRANSFER.chunks)
    depth = _depth(engine, chunk, chunks)
    first = (load64(pipe + BULK.next) + chunk - 1) // chunk % depth
    store64(pipe + BULK.first, first)
    store64(pipe + BULK.next, (first + chunks) % depth * chunk)


@kernel("void(int64, int64)")
def _map_own(engine, pipe):  # type: ignore[no-untyped-def]
    """Count a grant; with one of them this rank takes all pages of the pipe, and says so to those that it is lent to."""
    grants = load64(pipe + BULK.grants) + 1
    store64(pipe + BULK.grants, grants)
    if grants == _MAPPED_AT:
        take_pages(pipe, PAGE + load64(engine + SHM.pipe_bytes))
        store64(pipe + BULK.mapped, 1 + _number_of(engine, pipe))


@kernel("int64(int64, int64)")
def _number_of(engine, pipe):  # type: ignore[no-untyped-def]
    """Which of this rank's pipes it is."""
    return (pipe - load64(engine + SHM.first_pipe)) // BULK_STRIDE


@kernel("void(int64, int64, int64)")
def _map_of_peer(engine, lane, pipe):  # type: ignore[no-untyped-def]
    """Take all pages of a pipe of a peer that has done so, once."""
    number, known = load64(pipe + BULK.mapped), load64(lane + LANE.mapped)
    if number != 0 and known >> number & 1 == 0:
        store64(lane + LANE.mapped, known | 1 << number)
        take_pages(pipe, PAGE + load64(engine + SHM.pipe_bytes))


@kernel("void(int64, int64, int64)")
def _choose_way(engine, receive, lane):  # type: ignore[no-untyped-def]
    """Cut the transfer for the way it goes; `far` becomes 0 if that is through the pipe."""
    nbytes, way = load64(receive + REQUEST.message_bytes), PIPED
    store64(receive + TRANSFER.grant, 0)
    wanted = min(nbytes, load64(receive + REQUEST.nbytes))
    if load64(receive + TRANSFER.far) != 0 and wanted > 0 and is_reached(engine, lane) != 0:
        way = load64(engine + SHM.copies)
        if way == AUTO:
            trial = trial_of(engine + SHM.trials, wanted)
            store64(receive + TRANSFER.trial, trial)
            store64(receive + TRANSFER.began, ticks())
            way = next_way(trial, wanted)
            store64(receive + TRANSFER.grant, -1 - way)
    if way == DIRECT:
        cut_shared(receive, wanted)
    else:
        store64(receive + TRANSFER.far, 0)
        _cut(receive, nbytes)


@kernel("void(int64, int64)")
def _take_back(engine, pipe):  # type: ignore[no-untyped-def]
    """A pipe is free again: the oldest receive that waits for one gets it."""
    starved = load64(engine + SHM.starved_first)
    if starved != 0:
        after = load64(starved + TRANSFER.next)
        store64(engine + SHM.starved_first, after)
        if after == 0:
            store64(engine + SHM.starved_last, 0)
        _grant(engine, starved, pipe)
        return
    for i in range(BULK_SLOTS):
        if load64(engine + SHM.bulk_free + 8 * i) == 0:
            store64(engine + SHM.bulk_free + 8 * i, pipe)
            return


@kernel("int64(int64, int64)")
def _feed(engine, request):  # type: ignore[no-untyped-def]
    """Write some chunks; 1 when all are written."""
    pipe, chunk = load64(request + TRANSFER.pipe), load64(request + TRANSFER.chunk)
    chunks, done = load64(request + TRANSFER.chunks), load64(request + TRANSFER.done_chunks)
    nbytes, address = load64(request + REQUEST.nbytes), load64(request + REQUEST.address)
    window, moved = load64(request + REQUEST.window), load64(request + REQUEST.moved)
    depth, first = _depth(engine, chunk, chunks), load64(pipe + BULK.first)
    streamed = is_streamed(engine, -min(load64(request + TRANSFER.grant), 0))
    budget = CHUNKS_A_STEP
    while budget > 0 and done < chunks and done - load_acquire(pipe + BULK.consumed) < depth:
        offset = done * chunk
        length = min(chunk, nbytes - offset)
        place = offset
        if window != 0:
            if offset + length > moved:
                break
            place = offset % window
        write_shared(pipe + BULK.data + (first + done) % depth * chunk, address + place, length, streamed)
        done += 1
        budget -= 1
        store_release(pipe + BULK.posted, done)
    _note_progress(request, done)
    return 1 if done == chunks else 0


@kernel("int64(int64, int64)")
def _drain(engine, request):  # type: ignore[no-untyped-def]
    """Read the chunks that have come, as far as the receiver's buffer goes; 1 when all are read."""
    pipe, chunk = load64(request + TRANSFER.pipe), load64(request + TRANSFER.chunk)
    chunks, done = load64(request + TRANSFER.chunks), load64(request + TRANSFER.done_chunks)
    nbytes, address = load64(request + REQUEST.message_bytes), load64(request + REQUEST.address)
    wanted = min(nbytes, load64(request + REQUEST.nbytes))
    window, moved = load64(request + REQUEST.window), load64(request + REQUEST.moved)
    depth, first = _depth(engine, chunk, chunks), load64(pipe + BULK.first)
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
            source = pipe + BULK.data + (first + done) % depth * chunk
            if nbytes >= STREAM_LANDING_FROM:
                stream(address + place, source, length)
            else:
                copy_lines(address + place, source, length)
        done += 1
        budget -= 1
        store_release(pipe + BULK.consumed, done)
    _note_progress(request, done)
    if done == chunks and load_acquire(pipe + BULK.posted) >= _BROKEN_OFF:
        store64(request + REQUEST.error, ERR_OTHER)
    return 1 if done == chunks else 0


@kernel("void(int64, int64)")
def _note_progress(request, done):  # type: ignore[no-untyped-def]
    """So many chunks of a message have gone into the pipe, or come out of it."""
    store64(request + TRANSFER.done_chunks, done)
    store64(request + REQUEST.passed, min(done * load64(request + TRANSFER.chunk), load64(request + REQUEST.message_bytes)))


@kernel("void(int64)")
def break_off(request):  # type: ignore[no-untyped-def]
    """End a send that has been granted a pipe, and cannot be read any more: its receiver gets an error."""
    store64(request + TRANSFER.done_chunks, load64(request + TRANSFER.chunks))
    store_release(load64(request + TRANSFER.pipe) + BULK.posted, _BROKEN_OFF)


@kernel("int64(int64)")
def _step_shared(request):  # type: ignore[no-untyped-def]
    """Copy a chunk of a transfer without a pipe; 1 when all are copied. What the kernel refused goes through the pipe after all."""
    outcome = share(request)
    if outcome == REFUSED:
        store64(request + TRANSFER.far, 0)
        store64(request + TRANSFER.trial, 0)
        _cut(request, load64(request + REQUEST.message_bytes))
    return 1 if outcome == FINISHED else 0


@kernel("void(int64, int64)")
def _finish(engine, request):  # type: ignore[no-untyped-def]
    """A transfer that is not active any more has ended: the engine completes its request, after which nothing may touch that."""
    pipe, trial = load64(request + TRANSFER.pipe), load64(request + TRANSFER.trial)
    sending = load64(request + TRANSFER.sending)
    if trial != 0:
        way = DIRECT if load64(request + TRANSFER.far) != 0 else -1 - load64(request + TRANSFER.grant)
        wanted = min(load64(request + REQUEST.message_bytes), load64(request + REQUEST.nbytes))
        note_time(trial, wanted, way, ticks() - load64(request + TRANSFER.began))
    call_three(load64(engine + SHM.finish), engine, request, 0)
    if sending == 0:
        _take_back(engine, pipe)


@kernel("void(int64)", is_entry=True)
def step(engine):  # type: ignore[no-untyped-def]
    """Move every active transfer on by a few chunks."""
    link = engine + SHM.active_first
    request = load64(link)
    while request != 0:
        following, before = load64(request + TRANSFER.next), load64(request + TRANSFER.done_chunks)
        if load64(request + TRANSFER.far) != 0:
            finished = _step_shared(request)
        else:
            finished = _feed(engine, request) if load64(request + TRANSFER.sending) != 0 else _drain(engine, request)
        if load64(request + TRANSFER.done_chunks) != before:
            store64(engine + SHM.moved_at, ticks())
        if finished:
            store64(link, following)
            store64(engine + SHM.active_count, load64(engine + SHM.active_count) - 1)
            first = load64(engine + SHM.active_first)
            _finish(engine, request)
            # A receive that waited for the pipe may be active now, at the head of the list: then `following` is behind that one.
            if link == engine + SHM.active_first and load64(link) != first:
                link = load64(link) + TRANSFER.next
        else:
            link = request + TRANSFER.next
        request = following

"""Messages: a header and what follows it, one behind the other through the socket to a peer, which keeps their order.

::

    sender                                       receiver
      header, payload   ------- socket ------->  BUFFER: handed up from there, as many as have come
      (no room: tried again by the engine)       the beginning of one: kept until the rest has come

A message goes straight from where it is to the socket, unless it does so in part: then the rest is copied, and nothing else is sent before.
What a peer has to know of eager bytes that found their receive rides on messages; where there are none, a NOTE says it.

A peer that has ended is noticed by its socket; what had come before is handed up first.

Cost: alpha a message: a call of the system for whoever sends, and one or two for whoever receives.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_message
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import allocate_or_end, copy, make_stack, release
from transports.ends import LEFT, UNKNOWN, is_end_known, note_end
from transports.messages import CREDIT, EAGER, GOODBYE
from transports.tcp.landing import LANDED, land, put
from transports.tcp.layout import (
    BUFFER,
    CUT,
    DATA,
    FAILED,
    GONE,
    HEADER,
    HEARD,
    LINK,
    NOTE,
    NOTED,
    OWES_WORD,
    STALLED,
    STATE,
    UNREACHED,
    UP,
    WATCHED,
    WELCOMED,
)
from transports.tcp.links import clear_flags, connect, enlist, has, is_wanted, look_after, lose, set_flags, start_over
from transports.tcp.sockets import ENDED, NOTHING, receive, receive_two, send_two, watch
from transports.tcp.sockets import send as send_bytes

CREDIT_BYTES = 1 << 20
"""Eager bytes of a peer that found their receive, from which it is told at once; fewer wait for a message to ride on."""
CREDIT_PATIENCE = 64
"""Looks at the network that fewer wait."""
MOST_WAITING = 256 << 10
"""Bytes of messages from which no more are kept for a link that is being made."""
_TOGETHER = 1024
"""Bytes of a payload up to which it is copied behind its header."""

_header = make_stack((HEADER.total + _TOGETHER) // WORD)


@kernel("void(int64, int64, int64, int64)")
def write_header(link, header, kind, nbytes):  # type: ignore[no-untyped-def]
    """What every message says."""
    released = load64(link + LINK.released)
    store64(header + HEADER.kind, kind)
    store64(header + HEADER.nbytes, nbytes)
    store64(header + HEADER.released, released)
    store64(link + LINK.announced, released)
    store64(link + LINK.waited, 0)


@kernel("void(int64, int64, int64)")
def cut(state, link, sent):  # type: ignore[no-untyped-def]
    """If nothing can be sent any more, what has come is still taken: it may be that the peer has left in order."""
    if sent == ENDED:
        set_flags(link, CUT)
        enlist(state, link)


@kernel("int64(int64, int64, int64)")
def _more_unsent(state, link, nbytes):  # type: ignore[no-untyped-def]
    """Memory for so many bytes behind those of messages that are left to be sent."""
    before = load64(link + LINK.unsent)
    first, end = (load64(link + LINK.unsent_first), load64(link + LINK.unsent_end)) if before != 0 else (0, 0)
    memory = allocate_or_end(end - first + nbytes)
    if before != 0:
        copy(memory, before + first, end - first)
        release(before)
    store64(link + LINK.unsent, memory)
    store64(link + LINK.unsent_first, 0)
    store64(link + LINK.unsent_end, end - first + nbytes)
    enlist(state, link)
    return memory + end - first


@kernel("void(int64, int64, int64, int64)")
def keep_unsent(state, link, address, nbytes):  # type: ignore[no-untyped-def]
    """Copy the end of a message that the socket has no room for."""
    copy(_more_unsent(state, link, nbytes), address, nbytes)


@kernel("int64(int64, int64)")
def push_unsent(state, link):  # type: ignore[no-untyped-def]
    """Send the end of a message that is left, as far as it goes; whether something else may be sent now."""
    if has(link, UP) == 0 or has(link, CUT) != 0:
        return 0
    if load64(link + LINK.unsent) != 0:
        first, end = load64(link + LINK.unsent_first), load64(link + LINK.unsent_end)
        sent = send_bytes(load64(link + LINK.out) - 1, load64(link + LINK.unsent) + first, end - first)
        cut(state, link, sent)
        store64(link + LINK.unsent_first, first + max(sent, 0))
        if first + sent < end:
            return 0
        release(load64(link + LINK.unsent))
        store64(link + LINK.unsent, 0)
    if has(link, WATCHED) != 0 and load64(link + LINK.frame) == 0:
        clear_flags(link, WATCHED)
        watch(load64(state + STATE.events), load64(link + LINK.out) - 1, link, 0, 0)
    return 1


@kernel("int64(int64, int64, int64, int64, int64)")
def write(state, link, header, address, nbytes):  # type: ignore[no-untyped-def]
    """Send a header and bytes behind it; what does not go at once is kept. Whether anything went."""
    total, sent = HEADER.total + nbytes, 0
    if nbytes <= _TOGETHER and nbytes > 0:
        copy(header + HEADER.total, address, nbytes)
    if has(link, UP) != 0:
        fd = load64(link + LINK.out) - 1
        sent = send_bytes(fd, header, total) if nbytes <= _TOGETHER else send_two(fd, header, HEADER.total, address, nbytes)
        cut(state, link, sent)
        if sent <= 0:
            return 0
        store64(state + STATE.used, ticks())
    if sent < HEADER.total:
        keep_unsent(state, link, header + sent, HEADER.total - sent)
        sent = HEADER.total
    if sent < total:
        keep_unsent(state, link, address + sent - HEADER.total, total - sent)
    return 1


@kernel("int64(int64, int64)")
def may_send(state, link):  # type: ignore[no-untyped-def]
    """Whether a message can be sent now; if there is no link, one is made, and some are kept until it is there."""
    if has(link, UP) == 0:
        connect(state, link)
        is_full = 1 if load64(link + LINK.unsent) != 0 and load64(link + LINK.unsent_end) > MOST_WAITING else 0
        return 1 - has(link, FAILED) - is_full
    if has(link, CUT) != 0 or load64(link + LINK.frame_left) != 0:
        return 0
    return 1 if load64(link + LINK.unsent) == 0 else push_unsent(state, link)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def send(engine, link, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Send a message (:mod:`transports.messages`); 1, or 0 if there is no way to the peer now, or no room in its socket."""
    state = load64(link + LINK.state)
    if has(link, FAILED) != 0:
        return has(link, GONE)
    if kind == GOODBYE and has(link, UP | WELCOMED | HEARD) == 0:
        return 1
    if may_send(state, link) == 0:
        return has(link, GONE)
    header = _header()
    write_header(link, header, kind, nbytes)
    store64(header + HEADER.context, context)
    store64(header + HEADER.tag, tag)
    if kind == EAGER:
        return write(state, link, header, first, nbytes)
    store64(header + HEADER.first, first)
    store64(header + HEADER.second, second)
    store64(header + HEADER.third, third)
    return write(state, link, header, 0, 0)


@kernel("int64(int64, int64)")
def send_note(state, link):  # type: ignore[no-untyped-def]
    """Tell a peer how many of its bytes were released; 1, or 0 if that cannot be said now."""
    if may_send(state, link) == 0:
        return 0
    header = _header()
    write_header(link, header, NOTE, 0)
    return write(state, link, header, 0, 0)


@kernel("int64(int64, int64)", is_entry=True)
def greet(state, link):  # type: ignore[no-untyped-def]
    """Make the link to a peer, after which it is noticed when that one ends; 1 when it is there, or cannot be made."""
    if has(link, UP | FAILED) != 0:
        return 1
    connect(state, link)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def credit(engine, link, released):  # type: ignore[no-untyped-def]
    """Let the peer know that `released` eager bytes of its have found their receive: with the next message, or when that takes too long."""
    state = load64(link + LINK.state)
    store64(link + LINK.released, released)
    if released - load64(link + LINK.announced) < CREDIT_BYTES or send_note(state, link) == 0:
        enlist(state, link)
    return 1


@kernel("int64(int64, int64, int64)")
def _hand_up(state, link, header):  # type: ignore[no-untyped-def]
    """Hand a message up, and what it says of released bytes; whether it was taken."""
    function, engine, released = load64(state + STATE.arrive), load64(state + STATE.engine), load64(header + HEADER.released)
    if released > load64(link + LINK.heard):
        if call_message(function, engine, link, CREDIT, 0, 0, 0, released, 0, 0) == 0:
            return 0
        store64(link + LINK.heard, released)
    kind, nbytes = load64(header + HEADER.kind), load64(header + HEADER.nbytes)
    if kind == NOTE:
        return 1
    first, second, third = header + HEADER.total, nbytes, 0
    if kind != EAGER:
        first, second, third = load64(header + HEADER.first), load64(header + HEADER.second), load64(header + HEADER.third)
    context, tag = load64(header + HEADER.context), load64(header + HEADER.tag)
    if call_message(function, engine, link, kind, context, tag, nbytes, first, second, third) == 0:
        return 0
    if kind == GOODBYE:
        set_flags(link, GONE)
    return 1


@kernel("int64(int64)")
def _length_at(header):  # type: ignore[no-untyped-def]
    """Bytes of a message, with its header."""
    return HEADER.total + (load64(header + HEADER.nbytes) if load64(header + HEADER.kind) == EAGER else 0)


@kernel("void(int64, int64, int64, int64)")
def _digest(state, link, at, end):  # type: ignore[no-untyped-def]
    """Hand up what has come, and keep the beginning of a message, or what there is no room for."""
    is_stalled = 0
    while is_stalled == 0:
        if load64(link + LINK.landing) != 0:
            at += put(state, link, at, end - at)
            is_stalled = 1 if load64(link + LINK.landing) != 0 else 0
            continue
        if end - at < HEADER.total:
            break
        if load64(at + HEADER.kind) == DATA:
            store64(link + LINK.landing, load64(at + HEADER.first))
            store64(link + LINK.landing_left, load64(at + HEADER.nbytes))
            at += HEADER.total
            continue
        length = _length_at(at)
        if end - at < length:
            break
        is_stalled = 1 - _hand_up(state, link, at)
        if is_stalled == 0:
            at += length
    if end > at:
        _keep(state, link, at, end - at, is_stalled)


@kernel("void(int64, int64, int64, int64, int64)")
def _keep(state, link, address, nbytes, is_stalled):  # type: ignore[no-untyped-def]
    """Keep bytes until there is room for them; or the beginning of a message, in memory for all of it if it is known how long that is."""
    is_known = 1 if is_stalled == 0 and nbytes >= HEADER.total else 0
    memory = allocate_or_end(_length_at(address) if is_known != 0 else nbytes)
    copy(memory, address, nbytes)
    store64(link + LINK.rest, memory)
    store64(link + LINK.rest_bytes, nbytes)
    if is_stalled != 0:
        set_flags(link, STALLED)
        enlist(state, link)


@kernel("int64(int64, int64)")
def _take_rest(state, link):  # type: ignore[no-untyped-def]
    """Move what was kept to the beginning of BUFFER; its bytes."""
    nbytes = load64(link + LINK.rest_bytes)
    if nbytes > 0:
        copy(load64(state + STATE.buffer), load64(link + LINK.rest), nbytes)
        release(load64(link + LINK.rest))
        store64(link + LINK.rest, 0)
        store64(link + LINK.rest_bytes, 0)
    return nbytes


@kernel("int64(int64, int64)")
def take_in(state, link):  # type: ignore[no-untyped-def]
    """Take what has come by a link; whether anything has."""
    buffer, have, rest = load64(state + STATE.buffer), load64(link + LINK.rest_bytes), load64(link + LINK.rest)
    if has(link, STALLED) != 0:
        clear_flags(link, STALLED)
        _digest(state, link, buffer, buffer + _take_rest(state, link))
        return 0
    fd = load64(link + LINK.into) - 1
    if load64(link + LINK.landing) != 0:
        came = land(state, link)
    elif have >= HEADER.total:
        came = receive_two(fd, rest + have, _length_at(rest) - have, buffer, BUFFER)
    else:
        came = receive(fd, buffer + have, BUFFER - have)
    if came == NOTHING:
        return 0
    if came == ENDED:
        if has(link, WELCOMED) != 0:
            start_over(state, link)
        else:
            lose(state, link)
        return 1
    store64(state + STATE.used, ticks())
    store64(state + STATE.hot, link)
    if has(link, UP) == 0 or has(link, HEARD) == 0:
        clear_flags(link, WELCOMED)
        set_flags(link, UP | HEARD)
        enlist(state, link)
    if came == LANDED:
        return 1
    if have >= HEADER.total:
        _complete(state, link, rest, have + came)
    else:
        _digest(state, link, buffer, buffer + _take_rest(state, link) + came)
    return 1


@kernel("void(int64, int64, int64, int64)")
def _complete(state, link, message, have):  # type: ignore[no-untyped-def]
    """More of a message has come to where its beginning was kept; what is behind it is in BUFFER."""
    length, buffer = _length_at(message), load64(state + STATE.buffer)
    store64(link + LINK.rest_bytes, have)
    if have < length:
        return
    store64(link + LINK.rest, 0)
    store64(link + LINK.rest_bytes, 0)
    _digest(state, link, message, message + length)
    release(message)
    behind = have - length
    if behind > 0 and has(link, STALLED) != 0:
        memory = allocate_or_end(length + behind)
        copy(memory, load64(link + LINK.rest), length)
        copy(memory + length, buffer, behind)
        release(load64(link + LINK.rest))
        store64(link + LINK.rest, memory)
        store64(link + LINK.rest_bytes, length + behind)
    elif behind > 0:
        _digest(state, link, buffer, buffer + behind)


@kernel("void(int64, int64)")
def _look_after_failed(state, link):  # type: ignore[no-untyped-def]
    """Note what became of a peer, as soon as that is known."""
    notice, rank, rate = state + STATE.note_death, load64(link + LINK.rank), load64(state + STATE.ticks_per_us)
    if has(link, NOTED | GONE) != 0 or load64(notice) == 0:
        return
    found = UNKNOWN
    if has(link, UNREACHED | HEARD) != 0 or is_end_known(notice, rank, link + LINK.waited, rate) != 0:
        found = note_end(notice, rank, load64(state + STATE.arrive), load64(state + STATE.engine), link)
    if found == UNKNOWN:
        enlist(state, link)
    else:
        set_flags(link, NOTED | (GONE if found == LEFT else 0))


@kernel("int64(int64)")
def _is_note_due(link):  # type: ignore[no-untyped-def]
    """Whether a peer has to be told now that the link is there, or how many bytes were released."""
    owed = load64(link + LINK.released) - load64(link + LINK.announced)
    if owed > 0:
        store64(link + LINK.waited, load64(link + LINK.waited) + 1)
    is_late = 1 if owed > 0 and load64(link + LINK.waited) > CREDIT_PATIENCE else 0
    return 1 if owed >= CREDIT_BYTES or is_late != 0 or has(link, OWES_WORD) != 0 else 0


@kernel("void(int64, int64)")
def _look_after_up(state, link):  # type: ignore[no-untyped-def]
    """Send what is left of a message, take what had no room, and tell of released bytes for which there was no message to ride on."""
    if has(link, STALLED | CUT) != 0:
        take_in(state, link)
        if has(link, FAILED) != 0:
            return
    is_unsent = 1 - push_unsent(state, link)
    if _is_note_due(link) != 0 and send_note(state, link) != 0:
        clear_flags(link, OWES_WORD)
    if is_unsent != 0 or has(link, STALLED | CUT | OWES_WORD) != 0 or load64(link + LINK.released) > load64(link + LINK.announced):
        enlist(state, link)


@kernel("void(int64)")
def settle(state):  # type: ignore[no-untyped-def]
    """Do what there is to do for peers, besides what their sockets tell."""
    link = load64(state + STATE.listed_first)
    store64(state + STATE.listed_first, 0)
    while link != 0:
        after = load64(link + LINK.listed)
        store64(link + LINK.listed, 0)
        if has(link, FAILED) != 0:
            _look_after_failed(state, link)
        elif has(link, UP) != 0:
            _look_after_up(state, link)
        else:
            look_after(state, link)
            if has(link, UP | WELCOMED | FAILED) == 0 and is_wanted(link) != 0:
                enlist(state, link)
        link = 0 if after == link else after

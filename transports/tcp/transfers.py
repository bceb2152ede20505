"""Large messages: granted by the receiver, then sent in frames, from buffer to buffer.

::

    sender                                   receiver
      DATA {receive, bytes}, bytes ============> from the socket to the buffer

What goes before, and after: :mod:`transports.granted`. Each look sends one frame of each message, as far as the socket takes it: so a rank
sends as much as it takes in, and what it has to say to its peer is never behind much.

T = 3 alpha + m * beta.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import make_stack
from transports.base import ARMED, COME, UNARMED
from transports.granted import TRANSFER, fetch, in_one_piece, next_place, offer, revoke, serve
from transports.messages import REQUEST
from transports.tcp.channel import cut, keep_unsent, may_send, push_unsent, settle, take_in, write_header
from transports.tcp.layout import (
    CONNECTING,
    CUT,
    DATA,
    FAILED,
    FRAME,
    GUESTS,
    HEADER,
    LINK,
    STATE,
    UP,
    WATCHED,
)
from transports.tcp.links import go_on_connecting, has, hear_guest, set_flags, take_guests
from transports.tcp.sockets import EVENT_BYTES, EVENTS, data_of, look, send, send_two, watch

__all__ = ["arm", "fetch", "offer", "poll", "revoke", "serve", "step"]

_BUSY_US, _QUIET_SHARE, _MOST_QUIET_US = 1000, 50, 100
"""A network that nothing has come from or gone to for the first is looked at once in a share of that time only, and in the last at most:
a look is a system call, and ranks of one node wait by the same loop."""
_AWAY_US = 20
"""Who has not looked for so long computes or dozes between two looks, and looks at all sockets; another one first at that by which it heard
last."""
_header = make_stack(HEADER.total // WORD)
_found = make_stack(EVENTS * EVENT_BYTES // WORD)


@kernel("void(int64, int64, int64)")
def _begin_frame(state, request, link):  # type: ignore[no-untyped-def]
    """Send the header of a frame, and as much of it as the socket takes."""
    left = load64(request + TRANSFER.wanted) - load64(request + REQUEST.passed)
    length = in_one_piece(request, min(FRAME, left), load64(request + REQUEST.moved))
    if length <= 0:
        return
    header = _header()
    write_header(link, header, DATA, length)
    store64(header + HEADER.first, load64(request + TRANSFER.remote))
    sent = send_two(load64(link + LINK.out) - 1, header, HEADER.total, next_place(request), length)
    cut(state, link, sent)
    if sent <= 0:
        return
    store64(state + STATE.used, ticks())
    if sent < HEADER.total:
        keep_unsent(state, link, header + sent, HEADER.total - sent)
    _note_sent(link, request, max(0, sent - HEADER.total), length)


@kernel("void(int64, int64, int64, int64)")
def _note_sent(link, request, sent, left):  # type: ignore[no-untyped-def]
    """Of what was left of a frame, so much has been sent."""
    store64(request + REQUEST.passed, load64(request + REQUEST.passed) + sent)
    store64(link + LINK.frame_left, left - sent)
    store64(link + LINK.frame, request if left > sent else 0)


@kernel("void(int64, int64, int64)")
def _go_on_with_frame(state, request, link):  # type: ignore[no-untyped-def]
    """Send what is left of a frame, as far as the socket takes it."""
    if push_unsent(state, link) == 0:
        return
    left = load64(link + LINK.frame_left)
    sent = send(load64(link + LINK.out) - 1, next_place(request), left)
    cut(state, link, sent)
    if sent > 0:
        store64(state + STATE.used, ticks())
        _note_sent(link, request, sent, left)
        if sent == left:
            push_unsent(state, link)


@kernel("int64(int64, int64)")
def _feed(state, request):  # type: ignore[no-untyped-def]
    """Send a frame of a message, or what is left of one; 1 when all is sent, or the peer has ended."""
    link = load64(request + TRANSFER.link)
    if has(link, FAILED) != 0:
        return 1
    if load64(link + LINK.frame) == request:
        if has(link, CUT) == 0:
            _go_on_with_frame(state, request, link)
    elif has(link, UP) != 0 and may_send(state, link) != 0:
        _begin_frame(state, request, link)
    return 1 if load64(request + REQUEST.passed) == load64(request + TRANSFER.wanted) else 0


@kernel("void(int64)", is_entry=True)
def step(state):  # type: ignore[no-untyped-def]
    """Send frames of all messages that are under way."""
    request, last = load64(state + STATE.active_first), 0
    store64(state + STATE.active_first, 0)
    done = 0
    while request != 0:
        after = load64(request + TRANSFER.next)
        store64(request + TRANSFER.next, 0)
        if _feed(state, request) == 0:
            store64(last + TRANSFER.next if last != 0 else state + STATE.active_first, request)
            last = request
        else:
            store64(state + STATE.active_count, load64(state + STATE.active_count) - 1)
            if load64(request + REQUEST.passed) == load64(request + TRANSFER.wanted):
                store64(request + TRANSFER.next, done)
                done = request
        request = after
    store64(state + STATE.active_last, last)
    while done != 0:
        after = load64(done + TRANSFER.next)
        call_three(load64(state + STATE.finish), load64(state + STATE.engine), done, 0)
        done = after


@kernel("int64(int64, int64, int64)")
def _is_too_soon(state, now, unseen):  # type: ignore[no-untyped-def]
    """Whether the network has been quiet for long, and was looked at not long ago."""
    quiet, rate = now - load64(state + STATE.used), load64(state + STATE.ticks_per_us)
    return 1 if quiet > _BUSY_US * rate and unseen < min(quiet // _QUIET_SHARE, _MOST_QUIET_US * rate) else 0


@kernel("void(int64)", is_entry=True)
def poll(state):  # type: ignore[no-untyped-def]
    """Hand up what has come, and move transfers on."""
    now = ticks()
    unseen = now - load64(state + STATE.polled)
    if _is_too_soon(state, now, unseen) != 0:
        return
    store64(state + STATE.polled, now)
    if load64(state + STATE.listed_first) != 0:
        settle(state)
    hot = load64(state + STATE.hot)
    if hot == 0 or load64(state + STATE.is_alone) == 0 or unseen > _AWAY_US * load64(state + STATE.ticks_per_us):
        store64(state + STATE.is_alone, 1)
        _look_at_all(state)
    else:
        store64(state + STATE.is_alone, take_in(state, hot))
    if load64(state + STATE.active_first) != 0:
        step(state)


@kernel("void(int64)")
def _look_at_all(state):  # type: ignore[no-untyped-def]
    """Take what has come by any socket."""
    found = _found()
    for index in range(look(load64(state + STATE.events), found)):
        data = data_of(found, index)
        if data == 0:
            take_guests(state)
        elif data <= GUESTS:
            hear_guest(state, data - 1)
        elif has(data, CONNECTING) != 0:
            go_on_connecting(state, data)
        elif load64(data + LINK.into) != 0:
            take_in(state, data)


@kernel("int64(int64, int64)")
def _await_room(state, link):  # type: ignore[no-untyped-def]
    """Have the set tell when a socket has room, if that is what a link waits for."""
    if load64(link + LINK.unsent) | load64(link + LINK.frame) == 0 or has(link, CUT | FAILED) != 0:
        return UNARMED
    if has(link, WATCHED) == 0:
        set_flags(link, WATCHED)
        watch(load64(state + STATE.events), load64(link + LINK.out) - 1, link, 1, 0)
    return ARMED


@kernel("int64(int64)", is_entry=True)
def arm(state):  # type: ignore[no-untyped-def]
    """The set of all sockets tells of what has come, whenever that was, and of room to send where that is waited for."""
    store64(state + STATE.polled, 0)
    store64(state + STATE.is_alone, 0)
    found, link = ARMED, load64(state + STATE.listed_first)
    while link != 0:
        found = min(found, _await_room(state, link))
        after = load64(link + LINK.listed)
        link = 0 if after == link else after
    request = load64(state + STATE.active_first)
    while request != 0:
        link = load64(request + TRANSFER.link)
        if load64(link + LINK.unsent) | load64(link + LINK.frame) != 0:
            found = min(found, _await_room(state, link))
        else:
            found = COME if load64(request + REQUEST.window) == 0 else min(found, UNARMED)
        request = load64(request + TRANSFER.next)
    return found

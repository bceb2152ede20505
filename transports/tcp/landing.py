"""Frames of large messages that come: from the socket to the buffer of their receive, without a copy of ours between.

What has come behind a header by the same call is copied. A receive that was given up has no bytes any more: what still comes for it is
dropped. A window that is full stops its link until its owner has made room.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from transports.granted import TRANSFER, in_one_piece, next_place
from transports.messages import REQUEST
from transports.tcp.layout import BUFFER, LINK, STATE
from transports.tcp.sockets import NOTHING, receive, receive_two

LANDED = -2
"""Bytes have come, all of them where they belong."""


@kernel("int64(int64)")
def _is_dropped(request):  # type: ignore[no-untyped-def]
    """Whether nobody wants the next bytes of a message."""
    room = load64(request + REQUEST.nbytes)
    is_over = 1 if load64(request + REQUEST.window) == 0 and load64(request + REQUEST.passed) >= room else 0
    return 1 if room == 0 else is_over


@kernel("int64(int64, int64)")
def _room(request, most):  # type: ignore[no-untyped-def]
    """How many of the next so many bytes of a message have room in one piece."""
    if load64(request + REQUEST.window) == 0:
        return min(most, load64(request + REQUEST.nbytes) - load64(request + REQUEST.passed))
    return in_one_piece(request, most, load64(request + REQUEST.moved) + load64(request + REQUEST.window))


@kernel("void(int64, int64, int64)")
def _pass(state, link, nbytes):  # type: ignore[no-untyped-def]
    """So many bytes of a frame have come."""
    request, left = load64(link + LINK.landing), load64(link + LINK.landing_left) - nbytes
    passed = load64(request + REQUEST.passed) + nbytes
    store64(request + REQUEST.passed, passed)
    store64(link + LINK.landing_left, left)
    if left == 0:
        store64(link + LINK.landing, 0)
    if passed == load64(request + TRANSFER.wanted):
        call_three(load64(state + STATE.finish), load64(state + STATE.engine), request, 0)


@kernel("int64(int64, int64, int64, int64)")
def put(state, link, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy bytes of a frame, of which so many are at `source`; how many there was room for."""
    done = 0
    while done < nbytes and load64(link + LINK.landing) != 0:
        request, length = load64(link + LINK.landing), min(nbytes - done, load64(link + LINK.landing_left))
        if _is_dropped(request) == 0:
            length = _room(request, length)
            if length == 0:
                return done
            copy(next_place(request), source + done, length)
        _pass(state, link, length)
        done += length
    return done


@kernel("int64(int64, int64)")
def land(state, link):  # type: ignore[no-untyped-def]
    """Receive bytes of a frame, and what is behind it to BUFFER: how many of the latter, LANDED if none, NOTHING or ENDED."""
    fd, request, left = load64(link + LINK.into) - 1, load64(link + LINK.landing), load64(link + LINK.landing_left)
    buffer = load64(state + STATE.buffer)
    if _is_dropped(request) != 0:
        length = min(left, BUFFER)
        came = receive(fd, buffer, length)
    else:
        length = _room(request, left)
        if length == 0:
            return NOTHING
        target = next_place(request)
        came = receive_two(fd, target, length, buffer, BUFFER) if length == left else receive(fd, target, length)
    if came <= 0:
        return came
    _pass(state, link, min(came, length))
    return came - length if came > length else LANDED

"""Links: one socket between two ranks, made when either has something to say, by which both send.

::

    rank that has something to say               its peer
      HELLO {token, who, to whom}  ------------>   the token is the one that it has given out with its endpoint: the link is up
      the link is up  <------------------------    WELCOME

Where both connect at once, and both have said HELLO, the one of lower rank wins, and the other's connection is closed before it is welcomed.
Who has not said HELLO yet gives way. What connects without the token is closed, and so is what says nothing, when another one needs its
place.

The addresses of a peer are tried in turn. It is dead if none of them can be connected with for long enough; one that can, and whose WELCOME
does not come, may be another process, or a rank that computes: the next address is tried, but nobody is given up for that.

Cost: a round trip and a half, when the first message goes to a peer.
"""

from __future__ import annotations

import errno

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import copy, make_stack, release
from transports.tcp.layout import (
    CONNECTING,
    FAILED,
    GREETED,
    GUEST,
    GUESTS,
    HELLO,
    LINK,
    MAGIC,
    OWES_WORD,
    STALLED,
    STATE,
    TARGET_BYTES,
    UNREACHED,
    UP,
    WATCHED,
    WAYS,
    WELCOME,
    WELCOMED,
)
from transports.tcp.sockets import ENDED, accept, begin_connecting, close, failure_of, receive, send, watch

_AGAIN_US, _ANSWERS_WITHIN_US, _SAYS_WITHIN_US = 1000, 3_000_000, 5_000_000
"""After what a peer is tried again; until what an address has to answer, and who has connected has to say who it is."""
_TOKEN_BYTES = 32
_ENDED = (0, errno.ECONNREFUSED, errno.ECONNRESET)
"""Why a peer is not there whose host can be reached."""

_hello = make_stack(HELLO.total // WORD)
_answer = make_stack(1)


@kernel("void(int64, int64)")
def enlist(state, link):  # type: ignore[no-untyped-def]
    """Have the next look do what there is to do for a peer."""
    if load64(link + LINK.listed) == 0:
        first = load64(state + STATE.listed_first)
        store64(link + LINK.listed, first if first != 0 else link)
        store64(state + STATE.listed_first, link)


@kernel("int64(int64, int64)")
def has(link, flags):  # type: ignore[no-untyped-def]
    """Whether a link has any of these flags."""
    return 1 if load64(link + LINK.flags) & flags != 0 else 0


@kernel("void(int64, int64)")
def set_flags(link, flags):  # type: ignore[no-untyped-def]
    store64(link + LINK.flags, load64(link + LINK.flags) | flags)


@kernel("void(int64, int64)")
def clear_flags(link, flags):  # type: ignore[no-untyped-def]
    store64(link + LINK.flags, load64(link + LINK.flags) & ~flags)


@kernel("void(int64)")
def _close_sockets(link):  # type: ignore[no-untyped-def]
    out, into = load64(link + LINK.out), load64(link + LINK.into)
    if out != 0:
        close(out - 1)
    if into not in (0, out):
        close(into - 1)
    store64(link + LINK.out, 0)
    store64(link + LINK.into, 0)


@kernel("void(int64, int64)")
def lose(state, link):  # type: ignore[no-untyped-def]
    """Nothing goes to a peer any more, nor comes from it."""
    _close_sockets(link)
    for memory in (LINK.rest, LINK.unsent):
        if load64(link + memory) != 0:
            release(load64(link + memory))
            store64(link + memory, 0)
    for word in (LINK.rest_bytes, LINK.frame, LINK.frame_left, LINK.landing, LINK.landing_left):
        store64(link + word, 0)
    store64(link + LINK.waited, 0)
    clear_flags(link, UP | CONNECTING | GREETED | WELCOMED | STALLED | WATCHED)
    set_flags(link, FAILED)
    if load64(state + STATE.hot) == link:
        store64(state + STATE.hot, 0)
    enlist(state, link)


@kernel("void(int64)")
def _pass_over(link):  # type: ignore[no-untyped-def]
    """Give up the connection that is being made: the next address is tried next."""
    ways = load64(link + LINK.ways)
    _close_sockets(link)
    clear_flags(link, CONNECTING | GREETED)
    store64(link + LINK.rest_bytes, 0)
    store64(ways + WAYS.tried, load64(ways + WAYS.tried) + 1)


@kernel("void(int64, int64, int64)")
def _fail_to_connect(state, link, error):  # type: ignore[no-untyped-def]
    """An address of a peer cannot be connected with: if none could since one last could, for long enough, there is no way to it."""
    ways = load64(link + LINK.ways)
    _pass_over(link)
    failures = load64(ways + WAYS.failures) + 1
    store64(ways + WAYS.failures, failures)
    if failures < load64(ways + WAYS.count) or ticks() - load64(ways + WAYS.since) < load64(state + STATE.patience):
        return
    lose(state, link)
    if error not in _ENDED:
        set_flags(link, UNREACHED)
        store64(ways + WAYS.since, error)


@kernel("void(int64, int64)")
def connect(state, link):  # type: ignore[no-untyped-def]
    """Begin to connect with a peer, unless that was begun, or was tried in vain a moment ago."""
    now, rate, ways = ticks(), load64(state + STATE.ticks_per_us), load64(link + LINK.ways)
    if has(link, CONNECTING | WELCOMED | UP | FAILED) != 0 or now - load64(ways + WAYS.last) < _AGAIN_US * rate:
        return
    if load64(ways + WAYS.since) == 0:
        store64(ways + WAYS.since, now)
    store64(ways + WAYS.last, now)
    store64(state + STATE.used, now)
    enlist(state, link)
    target = ways + WAYS.total + load64(ways + WAYS.tried) % load64(ways + WAYS.count) * TARGET_BYTES
    fd = begin_connecting(target, load64(state + STATE.silence))
    if fd < 0:
        _fail_to_connect(state, link, -fd)
        return
    store64(link + LINK.out, fd + 1)
    store64(link + LINK.into, fd + 1)
    set_flags(link, CONNECTING)
    watch(load64(state + STATE.events), fd, link, 1, 1)


@kernel("void(int64, int64)")
def go_on_connecting(state, link):  # type: ignore[no-untyped-def]
    """The system has something to say of a connection that this rank makes."""
    ways = load64(link + LINK.ways)
    fd = load64(link + LINK.out) - 1
    if has(link, GREETED) == 0:
        error = failure_of(fd)
        if error != 0:
            _fail_to_connect(state, link, error)
            return
        _say_hello(state, link, fd)
        set_flags(link, GREETED)
        store64(ways + WAYS.failures, 0)
        store64(ways + WAYS.since, ticks())
        watch(load64(state + STATE.events), fd, link, 0, 0)
        return
    have = load64(link + LINK.rest_bytes)
    came = receive(fd, link + LINK.waited + have, WORD - have)
    if came == ENDED or (came + have == WORD and load64(link + LINK.waited) != WELCOME):
        _pass_over(link)  # the peer makes one itself, or this was somebody else
        store64(ways + WAYS.last, ticks())
        return
    store64(link + LINK.rest_bytes, have + came)
    if came + have == WORD:
        store64(link + LINK.rest_bytes, 0)
        store64(link + LINK.waited, 0)
        clear_flags(link, CONNECTING | GREETED)
        set_flags(link, UP | OWES_WORD)


@kernel("void(int64, int64, int64)")
def _say_hello(state, link, fd):  # type: ignore[no-untyped-def]
    """Say who this rank is: so few bytes always have room in a new socket."""
    hello = _hello()
    store64(hello + HELLO.magic, MAGIC)
    copy(hello + HELLO.token, load64(link + LINK.ways) + WAYS.token, _TOKEN_BYTES)
    store64(hello + HELLO.sender, load64(state + STATE.rank))
    store64(hello + HELLO.receiver, load64(link + LINK.rank))
    send(fd, hello, HELLO.total)


@kernel("void(int64)", is_entry=True)
def await_guests(state):  # type: ignore[no-untyped-def]
    """Have the set tell when somebody connects."""
    watch(load64(state + STATE.events), load64(state + STATE.listener), 0, 0, 1)


@kernel("void(int64)")
def take_guests(state):  # type: ignore[no-untyped-def]
    """Accept what others have connected, and wait for them to say who they are; where there is no place for more, the system keeps them."""
    for _ in range(GUESTS):
        index = _place_for_guest(state)
        fd = accept(load64(state + STATE.listener), load64(state + STATE.silence)) if index >= 0 else -1
        if fd < 0:
            return
        guest = guest_at(state, index)
        store64(guest + GUEST.fd, fd + 1)
        store64(guest + GUEST.since, ticks())
        store64(guest + GUEST.have, 0)
        watch(load64(state + STATE.events), fd, index + 1, 0, 1)


@kernel("int64(int64, int64)")
def guest_at(state, index):  # type: ignore[no-untyped-def]
    return load64(state + STATE.guests) + index * GUEST.total


@kernel("int64(int64)")
def _place_for_guest(state):  # type: ignore[no-untyped-def]
    """A place that is free, or whose guest has said nothing for long; -1 if there is none."""
    limit = ticks() - _SAYS_WITHIN_US * load64(state + STATE.ticks_per_us)
    for index in range(GUESTS):
        guest = guest_at(state, index)
        if load64(guest + GUEST.fd) == 0:
            return index
        if load64(guest + GUEST.since) < limit:
            _dismiss(guest)
            return index
    return -1


@kernel("void(int64)")
def _dismiss(guest):  # type: ignore[no-untyped-def]
    close(load64(guest + GUEST.fd) - 1)
    store64(guest + GUEST.fd, 0)


@kernel("void(int64, int64)")
def hear_guest(state, index):  # type: ignore[no-untyped-def]
    """Somebody who has connected says who it is."""
    guest = guest_at(state, index)
    if load64(guest + GUEST.fd) == 0:
        return
    have = load64(guest + GUEST.have)
    came = receive(load64(guest + GUEST.fd) - 1, guest + GUEST.said + have, HELLO.total - have)
    if came == ENDED:
        _dismiss(guest)
        return
    store64(guest + GUEST.have, have + came)
    if have + came == HELLO.total:
        link = _link_of(state, guest + GUEST.said)
        if link == 0 or _welcome(state, link, load64(guest + GUEST.fd) - 1) == 0:
            _dismiss(guest)
        store64(guest + GUEST.fd, 0)


@kernel("int64(int64, int64)")
def _link_of(state, hello):  # type: ignore[no-untyped-def]
    """The link to the rank that says HELLO; 0 if it is not one that was given the token."""
    sender, differs = load64(hello + HELLO.sender), load64(hello + HELLO.magic) ^ MAGIC
    for word in range(_TOKEN_BYTES // WORD):  # as long for any token
        differs |= load64(hello + HELLO.token + word * WORD) ^ load64(state + STATE.token + word * WORD)
    if (
        differs != 0
        or load64(hello + HELLO.receiver) != load64(state + STATE.rank)
        or not 0 <= sender < load64(state + STATE.count)
    ):
        return 0
    link = load64(load64(state + STATE.peers) + WORD * sender)
    return link if load64(link + LINK.state) == state else 0


@kernel("int64(int64, int64, int64)")
def _welcome(state, link, fd):  # type: ignore[no-untyped-def]
    """Have a connection that a peer has made be the link; whether it is."""
    own, its = load64(state + STATE.rank), load64(link + LINK.rank)
    if has(link, UP | FAILED) != 0 or (has(link, GREETED) != 0 and own < its):
        return 0
    if own != its:
        _close_sockets(link)
        clear_flags(link, CONNECTING | GREETED)
        set_flags(link, WELCOMED)
        store64(link + LINK.rest_bytes, 0)
        store64(link + LINK.out, fd + 1)
    store64(link + LINK.into, fd + 1)
    answer = _answer()
    store64(answer, WELCOME)
    send(fd, answer, WORD)
    watch(load64(state + STATE.events), fd, link, 0, 0)
    return 1


@kernel("void(int64, int64)")
def look_after(state, link):  # type: ignore[no-untyped-def]
    """What a link that is not up needs as time goes by."""
    ways = load64(link + LINK.ways)
    if has(link, CONNECTING) != 0:
        waits = ticks() - load64(ways + WAYS.last)
        is_silent = 1 if waits > _ANSWERS_WITHIN_US * load64(state + STATE.ticks_per_us) else 0
        if is_silent != 0 and has(link, GREETED) == 0:
            _fail_to_connect(state, link, errno.ETIMEDOUT)
        elif is_silent != 0 and load64(ways + WAYS.count) > 1:
            _pass_over(link)
    elif load64(ways + WAYS.since) != 0:
        connect(state, link)


@kernel("void(int64, int64)")
def start_over(state, link):  # type: ignore[no-untyped-def]
    """A peer has given up the connection that it had made, before it sent anything by it."""
    ways = load64(link + LINK.ways)
    _close_sockets(link)
    clear_flags(link, WELCOMED)
    store64(ways + WAYS.last, 0)
    if load64(ways + WAYS.since) | load64(link + LINK.unsent) != 0:
        connect(state, link)


@kernel("int64(int64)")
def is_wanted(link):  # type: ignore[no-untyped-def]
    """Whether this rank has begun to make a link."""
    return 1 if load64(load64(link + LINK.ways) + WAYS.since) != 0 else 0

"""Messages: each is an active message of UCX, numbered, as UCX promises no order; those of a peer are handed up in the order of numbers.

::

    sender                                             receiver
      message s, sent = s + 1  ----------------------->  s = next: handed up, next + 1
                                                         later than next, or refused: kept in place s % WINDOW
      acknowledged = taken  <--------------------------  ``taken`` = next: in each message the other way, or in a NOTE

No more than :data:`WINDOW` messages are under way to a peer that takes nothing, so it keeps that many, and a flood waits with its sender.
What a receiver has to say (messages taken, eager bytes that found their receive) rides on messages the other way; where there are none, a
NOTE says it.

A message is handed up where UCX delivers it, out of UCX's memory. But UCX may also deliver while something is sent, to this rank itself;
what comes then is kept until :func:`transports.ucx.transfers.poll` looks again, as the engine is in the middle of something else.

Endpoints are made when the first message is sent, which a farewell is not: one to each rank of a large job would take connections that nobody
uses. While a link is down none can be made: what there is to say waits for as long as a link may take to come back
(:mod:`transports.ucx.routes`). One that fails is never used again; whoever waits for the peer is told of its death. Only where nothing was
ever heard of the peer, it may have left without a word to this rank: that is believed when the hosts have had time to tell each other of it.

Where there are several lanes to a peer (:mod:`transports.ucx.lanes`), messages go by the first one that lives, and each is kept until the
peer has taken it: when that lane breaks, those that are not known to have arrived are sent by the next one. What comes twice is dropped by
its number.

Cost: alpha a message, one copy into a frame and one out of UCX's memory.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_message, call_one, call_seven, call_three, call_two
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import allocate, allocate_or_end, copy, fill, make_stack, release
from transports.ends import LEFT, UNKNOWN, is_end_known, note_end
from transports.messages import CREDIT, EAGER, GOODBYE
from transports.ucx.lanes import hear_said, lane_of, place_of_frame
from transports.ucx.layout import (
    BROKEN,
    BY_SHIFT,
    DATA_MAY_BE_HELD,
    EAGERLY,
    ENDPOINT,
    FAILED,
    FRAME,
    GONE,
    HEADER,
    IN_PROGRESS,
    IS_ANSWER,
    IS_QUESTION,
    KEPT,
    LANE,
    LANES,
    LINK,
    MESSAGES,
    MOST_LANES,
    NO_WAY,
    NOTE,
    NOTED,
    OK,
    PARAMS,
    PEER_ERRORS,
    SAID,
    SAYING,
    STATE,
    UNREACHED,
    WINDOW,
    WITH_ADDRESS_AND_ERRORS,
    WITH_CALL_USER_DATA_AND_FLAGS,
    is_error,
    status_of,
)
from transports.ucx.routes import ROUTED, WAIT, look_for_route

CREDIT_BYTES = 1 << 20
"""Eager bytes of a peer that found their receive, from which it is told at once; fewer wait for a message to ride on."""
MOST_MISSED = 2
"""Answers by another lane that said what the peer must have said by that of messages before: nothing comes by that one any more."""
CREDIT_PATIENCE = 64
"""Looks at the network that fewer wait."""
_THREE_WORDS = 3 * WORD
MOST_PROGRESS = 64
"""Of UCX in a row, each of which takes some of what has come: a rank that was away must empty the sockets."""
_LOWER_HALF = 0xFFFFFFFF
"""Of a register, where a function returns 32 bits."""

_params = make_stack(PARAMS.total // WORD)
_endpoint_params = make_stack(ENDPOINT.total // WORD)


@kernel("void(int64, int64)")
def enlist(state, link):  # type: ignore[no-untyped-def]
    """Have the next poll look after a peer."""
    _put_first(state + STATE.listed_first, link + LINK.listed, link)


@kernel("void(int64, int64, int64)")
def _put_first(first, following, block):  # type: ignore[no-untyped-def]
    """Put a block on a list, unless it is there: in its word ``following`` it has the next one, itself if it is the last."""
    if load64(following) == 0:
        store64(following, load64(first) if load64(first) != 0 else block)
        store64(first, block)


@kernel("void(int64)")
def fail(link):  # type: ignore[no-untyped-def]
    """The way to a peer is broken for good."""
    store64(link + LINK.flags, load64(link + LINK.flags) | FAILED)
    enlist(load64(link + LINK.state), link)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_failed(link, endpoint, status):  # type: ignore[no-untyped-def]
    """UCX has given an endpoint up: ``ucp_err_handler_cb_t``."""
    fail(link)
    return 0


@kernel("int64(int64, int64)")
def lanes_of(state, link):  # type: ignore[no-untyped-def]
    """The LANES to a peer; 0 if there is one way to it, as by the block through which a rank reaches its own memory."""
    table = load64(state + STATE.lanes)
    lanes = load64(table + WORD * load64(link + LINK.rank)) if table != 0 else 0
    return lanes if lanes != 0 and load64(lanes + LANES.link) == link else 0


@kernel("void(int64, int64)")
def enlist_lanes(state, lanes):  # type: ignore[no-untyped-def]
    """Have the next poll look after the lanes to a peer."""
    _put_first(state + STATE.lanes_first, lanes + LANES.following, lanes)


@kernel("void(int64, int64, int64)")
def break_lane(state, lanes, number):  # type: ignore[no-untyped-def]
    """A lane is broken for good: the next poll has others take over."""
    lane = lane_of(lanes, number)
    store64(lane + LANE.flags, load64(lane + LANE.flags) | BROKEN)
    enlist_lanes(state, lanes)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_lane_failed(lane, endpoint, status):  # type: ignore[no-untyped-def]
    """UCX has given the endpoint of a lane up: ``ucp_err_handler_cb_t``."""
    lanes = load64(lane + LANE.lanes)
    break_lane(load64(load64(lanes + LANES.link) + LINK.state), lanes, load64(lane + LANE.number))
    return 0


@kernel("void(int64, int64)")
def lose_way(state, link):  # type: ignore[no-untyped-def]
    """Messages cannot go the way that they went."""
    lanes = lanes_of(state, link)
    if lanes != 0:
        break_lane(state, lanes, load64(lanes + LANES.main))
    else:
        fail(link)


@kernel("int64(int64, int64)")
def endpoint_of(state, link):  # type: ignore[no-untyped-def]
    """The endpoint of a peer, made on first use; 0 if there is none any more (``FAILED``), or none yet."""
    found = load64(link + LINK.endpoint)
    if found != 0 or load64(link + LINK.flags) & FAILED != 0:
        return found
    lanes = lanes_of(state, link)
    if lanes != 0:
        _choose_main(state, lanes)
        return load64(link + LINK.endpoint)
    way, status = look_for_route(state, load64(link + LINK.rank), 0), NO_WAY
    if way == WAIT:
        return 0
    if way == ROUTED:
        status = _make_endpoint(state, 0, load64(link + LINK.address), load64(state + STATE.on_failed), link, link + LINK.endpoint)
    if status != OK:
        if load64(link + LINK.next) == 0:
            store64(link + LINK.address, status)
            store64(link + LINK.flags, load64(link + LINK.flags) | UNREACHED)
        fail(link)
    return load64(link + LINK.endpoint)


@kernel("void(int64, int64)")
def _choose_main(state, lanes):  # type: ignore[no-untyped-def]
    """Messages go by the first lane that has an endpoint, from now on; as long as there is none, they wait."""
    link = load64(lanes + LANES.link)
    for number in range(load64(lanes + LANES.count)):
        endpoint = endpoint_of_lane(state, lane_of(lanes, number))
        if endpoint != 0 and load64(lane_of(lanes, number) + LANE.flags) == 0:
            store64(lanes + LANES.main, number)
            store64(link + LINK.endpoint, endpoint)
            return


@kernel("int64(int64, int64)")
def endpoint_of_lane(state, lane):  # type: ignore[no-untyped-def]
    """The endpoint of a lane, made on first use; 0 if there is none any more, or none yet."""
    if load64(lane + LANE.endpoint) != 0 or load64(lane + LANE.flags) != 0:
        return load64(lane + LANE.endpoint)
    lanes, number, status = load64(lane + LANE.lanes), load64(lane + LANE.number), NO_WAY
    way = look_for_route(state, load64(load64(lanes + LANES.link) + LINK.rank), number)
    if way == WAIT:
        return 0
    if way == ROUTED:
        call, address = load64(state + STATE.on_lane_failed), load64(lane + LANE.address)
        status = _make_endpoint(state, number, address, call, lane, lane + LANE.endpoint)
    if status != OK:
        break_lane(state, lanes, number)
    return load64(lane + LANE.endpoint)


@kernel("int64(int64, int64)")
def worker_of(state, number):  # type: ignore[no-untyped-def]
    """The worker of a lane."""
    return load64(load64(state + STATE.workers) + WORD * number) if number != 0 else load64(state + STATE.worker)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _make_endpoint(state, number, address, on_failure, argument, made):  # type: ignore[no-untyped-def]
    """Have the worker of a lane connect with a peer's; its status. The endpoint is written to `made`."""
    params = _endpoint_params()
    fill(params, 0, ENDPOINT.total)
    store64(params + ENDPOINT.mask, WITH_ADDRESS_AND_ERRORS)
    store64(params + ENDPOINT.address, address)
    store64(params + ENDPOINT.error_mode, PEER_ERRORS)
    store64(params + ENDPOINT.call, on_failure)
    store64(params + ENDPOINT.argument, argument)
    status = status_of(call_three(load64(state + STATE.create_endpoint), worker_of(state, number), params, made))
    if status != OK:
        store64(made, 0)
    return status


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_sent(request, status, frame):  # type: ignore[no-untyped-def]
    """UCX needs the memory of a message no longer: ``ucp_send_nbx_callback_t``."""
    state = load64(frame + FRAME.state)
    store64(state + STATE.sending, load64(state + STATE.sending) - 1)
    call_one(load64(state + STATE.free_request), request)
    _let_go(frame)
    return 0


@kernel("void(int64)")
def _let_go(frame):  # type: ignore[no-untyped-def]
    """UCX is done with a message, once: nobody needs it any more if it is not under way otherwise, nor kept until it has come."""
    holds = load64(frame + FRAME.holds) - 1
    store64(frame + FRAME.holds, holds)
    if holds == 0 and load64(frame + FRAME.is_kept) == 0:
        release(frame)


@kernel("void(int64, int64, int64)")
def _keep_until_taken(lanes, sequence, frame):  # type: ignore[no-untyped-def]
    """A message may have to be sent by another lane."""
    link = load64(lanes + LANES.link)
    if load64(link + LINK.acknowledged) == sequence:
        store64(lanes + LANES.said, ticks())
    store64(frame + FRAME.is_kept, 1)
    store64(place_of_frame(lanes, sequence), frame)


@kernel("void(int64, int64, int64)")
def forget_taken(lanes, first, end):  # type: ignore[no-untyped-def]
    """The peer has taken these messages."""
    for sequence in range(first, end):
        frame = load64(place_of_frame(lanes, sequence))
        store64(frame + FRAME.is_kept, 0)
        if load64(frame + FRAME.holds) == 0:
            release(frame)
    store64(lanes + LANES.said, ticks())


@kernel("void(int64, int64, int64)")
def post_again(lanes, first, end):  # type: ignore[no-untyped-def]
    """Send messages that may have been lost with a lane. Where this rank reaches itself, the first may be taken before the next is sent."""
    for sequence in range(first, end):
        if sequence >= load64(load64(lanes + LANES.link) + LINK.acknowledged):
            frame = load64(place_of_frame(lanes, sequence))
            post(frame, _length_of(frame + FRAME.message))
    store64(lanes + LANES.said, ticks())


@kernel("int64(int64, int64, int64, int64)")
def make_frame(state, link, kind, nbytes):  # type: ignore[no-untyped-def]
    """Memory for a message of a kind, with so many bytes behind the header; 0 if there is none."""
    frame = allocate(FRAME.total + nbytes)
    if frame != 0:
        message = frame + FRAME.message
        store64(frame + FRAME.state, state)
        store64(frame + FRAME.link, link)
        store64(frame + FRAME.holds, 0)
        store64(frame + FRAME.is_kept, 0)
        store64(message + HEADER.kind, kind)
        store64(message + HEADER.sender, load64(state + STATE.rank))
    return frame


@kernel("void(int64, int64)")
def post(frame, nbytes):  # type: ignore[no-untyped-def]
    """Give a message, with so many bytes behind the header, to UCX; there is an endpoint."""
    link = load64(frame + FRAME.link)
    if post_by(frame, nbytes, load64(link + LINK.endpoint)) == 0:
        lose_way(load64(link + LINK.state), link)


@kernel("int64(int64, int64, int64)")
def post_by(frame, nbytes, endpoint):  # type: ignore[no-untyped-def]
    """The same by one of the endpoints to a peer: 0 if that is broken."""
    state, link, message = load64(frame + FRAME.state), load64(frame + FRAME.link), frame + FRAME.message
    taken, released = load64(link + LINK.next), load64(link + LINK.released)
    store64(message + HEADER.taken, taken)
    store64(message + HEADER.released, released)
    store64(link + LINK.told, taken)
    store64(link + LINK.announced, released)
    store64(link + LINK.patience, 0)
    store64(state + STATE.used, ticks())
    params = _params()
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS | EAGERLY)
    store64(params + PARAMS.call, load64(state + STATE.on_sent))
    store64(params + PARAMS.user_data, frame)
    store64(frame + FRAME.holds, load64(frame + FRAME.holds) + 1)
    function, length = load64(state + STATE.send), HEADER.total + nbytes
    request = call_seven(function, endpoint, MESSAGES, 0, 0, message, length, params)
    if request == 0 or is_error(request) != 0:
        _let_go(frame)
    else:
        store64(state + STATE.sending, load64(state + STATE.sending) + 1)
    return 1 - is_error(request)


@kernel("void(int64, int64)")
def make_progress(state, most):  # type: ignore[no-untyped-def]
    """Have UCX deliver what has come and send what waits: `most` times at most, as it is a system call to find out that there is no more."""
    make_progress_of(state, load64(state + STATE.worker), most)


@kernel("int64(int64, int64, int64)")
def make_progress_of(state, worker, most):  # type: ignore[no-untyped-def]
    """The same of the worker of a lane; whether there was any."""
    for turn in range(most):
        if call_one(load64(state + STATE.progress), worker) & _LOWER_HALF == 0:
            return 1 if turn > 0 else 0
    return 1


@kernel("int64(int64, int64)")
def make_progress_by_lanes(state, most):  # type: ignore[no-untyped-def]
    """The same of all workers but the first."""
    found = 0
    for number in range(1, load64(state + STATE.worker_count)):
        found |= make_progress_of(state, worker_of(state, number), most)
    return found


@kernel("int64(int64)")
def _is_unheard(link):  # type: ignore[no-untyped-def]
    """Whether nothing ever came from a peer."""
    return 1 if load64(link + LINK.next) == 0 and load64(link + LINK.kept) == 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def send(engine, link, kind, context, tag, nbytes, first, second, rest):  # type: ignore[no-untyped-def]
    """Send a message (:mod:`transports.messages`); 1, or 0 if there is no way to the peer now, or it has not taken enough of those before.

    Farewells are read before one is sent: who has left closes its end, and the failure to send to it would be taken for its death.
    """
    if kind == GOODBYE:
        make_progress(load64(link + LINK.state), MOST_PROGRESS)
        make_progress_by_lanes(load64(link + LINK.state), MOST_PROGRESS)
        if load64(link + LINK.endpoint) == 0 and _is_unheard(link) != 0:
            return 1
    flags, sent = load64(link + LINK.flags), load64(link + LINK.sent)
    if flags & FAILED != 0:
        return 1 if flags & GONE != 0 else 0
    state = load64(link + LINK.state)
    if endpoint_of(state, link) == 0 or sent - load64(link + LINK.acknowledged) >= WINDOW:
        return 0
    length = nbytes if kind == EAGER else _THREE_WORDS
    frame = make_frame(state, link, kind, length)
    if frame == 0:
        return 0
    message, payload = frame + FRAME.message, frame + FRAME.total
    store64(message + HEADER.sequence, sent)
    store64(message + HEADER.context, context)
    store64(message + HEADER.tag, tag)
    store64(message + HEADER.nbytes, nbytes)
    if kind != EAGER:
        store64(payload, first)
        store64(payload + WORD, second)
        store64(payload + 2 * WORD, rest)
    elif nbytes > 0:
        copy(payload, first, nbytes)
    store64(link + LINK.sent, sent + 1)
    lanes = lanes_of(state, link)
    if lanes != 0:
        _keep_until_taken(lanes, sent, frame)
    post(frame, length)
    return 1


@kernel("int64(int64, int64)", is_entry=True)
def send_note(state, link):  # type: ignore[no-untyped-def]
    """Tell a peer what was taken of it; 1, or 0 if there is no memory for that now, or no way to the peer."""
    if load64(link + LINK.flags) & FAILED != 0:
        return 1
    if endpoint_of(state, link) == 0:
        return 0
    frame = make_frame(state, link, NOTE, 0)
    if frame == 0:
        return 0
    post(frame, 0)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def credit(engine, link, released):  # type: ignore[no-untyped-def]
    """Let the peer know that `released` eager bytes of its have found their receive: with the next message, or when that takes too long."""
    state = load64(link + LINK.state)
    store64(link + LINK.released, released)
    if released - load64(link + LINK.announced) < CREDIT_BYTES or send_note(state, link) == 0:
        enlist(state, link)
    return 1


@kernel("int64(int64, int64, int64)")
def hand_up(state, link, message):  # type: ignore[no-untyped-def]
    """Hand a message up; whether it was taken."""
    kind, nbytes, payload = load64(message + HEADER.kind), load64(message + HEADER.nbytes), message + HEADER.total
    first, second, rest = payload, nbytes, 0
    if kind != EAGER:
        first, second, rest = load64(payload), load64(payload + WORD), load64(payload + 2 * WORD)
    function, engine = load64(state + STATE.arrive), load64(state + STATE.engine)
    context, tag = load64(message + HEADER.context), load64(message + HEADER.tag)
    if call_message(function, engine, link, kind, context, tag, nbytes, first, second, rest) == 0:
        return 0
    if kind == GOODBYE:
        store64(link + LINK.flags, load64(link + LINK.flags) | GONE)
    return 1


@kernel("int64(int64, int64)")
def place_of(link, sequence):  # type: ignore[no-untyped-def]
    """Where a message is kept that cannot be handed up yet."""
    return load64(link + LINK.kept) + sequence % WINDOW * KEPT.total


@kernel("void(int64, int64)")
def go_on(state, link):  # type: ignore[no-untyped-def]
    """A message was taken: the next one is expected."""
    following = load64(link + LINK.next) + 1
    store64(link + LINK.next, following)
    is_owed = 1 if following - load64(link + LINK.told) >= WINDOW // 2 and send_note(state, link) == 0 else 0
    is_kept = 1 if load64(link + LINK.kept) != 0 and load64(place_of(link, following) + KEPT.address) != 0 else 0
    if is_owed != 0 or is_kept != 0 or lanes_of(state, link) != 0:
        enlist(state, link)


@kernel("int64(int64, int64, int64, int64, int64)")
def keep(link, sequence, message, nbytes, is_held):  # type: ignore[no-untyped-def]
    """Keep a message that cannot be handed up now: in UCX's memory if that may be held, else a copy. Returns what UCX has to be told."""
    if load64(link + LINK.kept) == 0:
        places = allocate_or_end(WINDOW * KEPT.total)
        fill(places, 0, WINDOW * KEPT.total)
        store64(link + LINK.kept, places)
    place, address = place_of(link, sequence), message
    if load64(place + KEPT.address) != 0:
        return OK  # it came before, by a lane that broke
    if is_held == 0:
        address = allocate_or_end(nbytes)
        copy(address, message, nbytes)
    store64(place + KEPT.address, address)
    store64(place + KEPT.is_held, is_held)
    return IN_PROGRESS if is_held != 0 else OK


@kernel("void(int64, int64)")
def take_kept(state, link):  # type: ignore[no-untyped-def]
    """Hand up what was kept of a peer, as far as it is that one's turn."""
    while load64(link + LINK.kept) != 0:
        place = place_of(link, load64(link + LINK.next))
        message = load64(place + KEPT.address)
        if message == 0 or hand_up(state, link, message) == 0:
            return
        store64(place + KEPT.address, 0)
        if load64(place + KEPT.is_held) != 0:
            call_two(load64(state + STATE.release_data), load64(state + STATE.worker), message)
        else:
            release(message)
        go_on(state, link)


@kernel("void(int64, int64, int64)")
def hear(state, link, message):  # type: ignore[no-untyped-def]
    """Take what a message says of the other way."""
    taken, released, known = load64(message + HEADER.taken), load64(message + HEADER.released), load64(link + LINK.acknowledged)
    if known < taken <= load64(link + LINK.sent):
        store64(link + LINK.acknowledged, taken)
        lanes = lanes_of(state, link)
        if lanes != 0:
            forget_taken(lanes, known, taken)
    if released > load64(link + LINK.heard):
        store64(link + LINK.heard, released)
        enlist(state, link)


@kernel("void(int64, int64, int64)")
def _hear_of_segments(state, link, words):  # type: ignore[no-untyped-def]
    """Take what a SAID says of segments and lanes."""
    lanes, expected, rest = lanes_of(state, link), load64(words + SAYING.expected), load64(words + SAYING.rest)
    if lanes == 0 or expected > load64(lanes + LANES.next):
        return
    by, missed, main = (rest >> BY_SHIFT & (MOST_LANES - 1)) % load64(lanes + LANES.count), 0, load64(lanes + LANES.main)
    if rest & IS_QUESTION != 0:
        store64(lanes + LANES.answer_by, 1 + by)
    if rest & IS_ANSWER != 0:
        store64(lanes + LANES.answered, ticks())
    if by != main:
        is_news = 1 if rest & IS_ANSWER != 0 and expected > load64(lanes + LANES.heard_expected) else 0
        missed = load64(lanes + LANES.missed) + is_news
    store64(lanes + LANES.missed, missed)
    hear_said(lanes, expected, load64(words + SAYING.early), load64(words + SAYING.held))
    for number in range(load64(lanes + LANES.count)):
        is_broken = 1 if rest >> number & 1 != 0 or (number == main and missed >= MOST_MISSED) else 0
        if is_broken != 0 and load64(lane_of(lanes, number) + LANE.flags) == 0:
            break_lane(state, lanes, number)
    enlist_lanes(state, lanes)


@kernel("int64(int64)")
def _length_of(message):  # type: ignore[no-untyped-def]
    """The bytes behind the header of a message."""
    kind = load64(message + HEADER.kind)
    if kind == EAGER:
        return load64(message + HEADER.nbytes)
    if kind == SAID:
        return SAYING.total
    return _THREE_WORDS if kind != NOTE else 0


@kernel("int64(int64, int64)")
def _is_whole(message, nbytes):  # type: ignore[no-untyped-def]
    """Whether a message has the bytes that it says it has."""
    return 1 if nbytes >= HEADER.total and nbytes - HEADER.total == _length_of(message) else 0


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def on_message(state, header, header_bytes, message, nbytes, how):  # type: ignore[no-untyped-def]
    """A message has come: ``ucp_am_recv_callback_t``. Something that no peer has sent is dropped."""
    if _is_whole(message, nbytes) == 0 or not 0 <= load64(message + HEADER.sender) < load64(state + STATE.count):
        return OK
    link = load64(load64(state + STATE.peers) + WORD * load64(message + HEADER.sender))
    if load64(link + LINK.state) != state:
        return OK
    store64(state + STATE.used, ticks())
    hear(state, link, message)
    if load64(message + HEADER.kind) == SAID:
        _hear_of_segments(state, link, message + HEADER.total)
    if load64(message + HEADER.kind) >= NOTE:
        return OK
    sequence, expected = load64(message + HEADER.sequence), load64(link + LINK.next)
    if not expected <= sequence < expected + WINDOW:
        return OK
    if sequence == expected and load64(state + STATE.is_open) != 0:
        store64(state + STATE.is_open, 0)
        is_taken = hand_up(state, link, message)
        store64(state + STATE.is_open, 1)
        if is_taken != 0:
            go_on(state, link)
            return OK
    enlist(state, link)
    may_be_held = (
        1 if load64(how) & DATA_MAY_BE_HELD != 0 and lanes_of(state, link) == 0 else 0
    )  # it would be given back to its worker
    return keep(link, sequence, message, nbytes, may_be_held)


@kernel("int64(int64, int64)")
def _is_end_known(state, link):  # type: ignore[no-untyped-def]
    """Whether a peer that has failed is to be taken for dead, unless the hosts know better."""
    if load64(link + LINK.flags) & UNREACHED != 0 or _is_unheard(link) == 0:
        return 1
    rate = load64(state + STATE.ticks_per_us)
    return is_end_known(state + STATE.note_death, load64(link + LINK.rank), link + LINK.patience, rate)


@kernel("void(int64, int64)")
def _note_end(state, link):  # type: ignore[no-untyped-def]
    arrive, engine, rank = load64(state + STATE.arrive), load64(state + STATE.engine), load64(link + LINK.rank)
    found = note_end(state + STATE.note_death, rank, arrive, engine, link)
    if found != UNKNOWN:
        store64(link + LINK.flags, load64(link + LINK.flags) | NOTED | (GONE if found == LEFT else 0))


@kernel("void(int64, int64)")
def _report(state, link):  # type: ignore[no-untyped-def]
    """Tell the engine of credit that a peer has given, and who waits for a peer that has failed of its death."""
    heard, engine, flags = load64(link + LINK.heard), load64(state + STATE.engine), load64(link + LINK.flags)
    is_news = 1 if heard > load64(link + LINK.reported) else 0
    if is_news != 0 and call_message(load64(state + STATE.arrive), engine, link, CREDIT, 0, 0, 0, heard, 0, 0) != 0:
        store64(link + LINK.reported, heard)
    if flags & (FAILED | NOTED | GONE) == FAILED and load64(state + STATE.note_death) != 0 and _is_end_known(state, link) != 0:
        _note_end(state, link)


@kernel("int64(int64)")
def _is_kept_there(link):  # type: ignore[no-untyped-def]
    """Whether a peer keeps messages until it is told that they were taken."""
    is_untold = 1 if load64(link + LINK.next) > load64(link + LINK.told) else 0
    return is_untold if lanes_of(load64(link + LINK.state), link) != 0 else 0


@kernel("int64(int64)")
def _is_overdue(link):  # type: ignore[no-untyped-def]
    """Whether a peer has to be told now what was taken of it."""
    owed_bytes = load64(link + LINK.released) - load64(link + LINK.announced)
    if owed_bytes > 0 or _is_kept_there(link) != 0:
        store64(link + LINK.patience, load64(link + LINK.patience) + 1)
    is_late = 1 if load64(link + LINK.patience) > CREDIT_PATIENCE or owed_bytes >= CREDIT_BYTES else 0
    return 1 if is_late != 0 or load64(link + LINK.next) - load64(link + LINK.told) >= WINDOW // 2 else 0


@kernel("int64(int64)")
def _is_left(link):  # type: ignore[no-untyped-def]
    """Whether a peer has to be looked after again."""
    is_failed = load64(link + LINK.flags) & FAILED
    if load64(link + LINK.flags) & (FAILED | NOTED | GONE) == FAILED and load64(load64(link + LINK.state) + STATE.note_death) != 0:
        return 1
    is_untold = 1 if load64(link + LINK.released) > load64(link + LINK.announced) or _is_kept_there(link) != 0 else 0
    if is_failed == 0 and is_untold != 0:
        return 1
    if is_failed == 0 and load64(link + LINK.next) - load64(link + LINK.told) >= WINDOW // 2:
        return 1
    if load64(link + LINK.heard) > load64(link + LINK.reported):
        return 1
    return 1 if load64(link + LINK.kept) != 0 and load64(place_of(link, load64(link + LINK.next)) + KEPT.address) != 0 else 0


@kernel("void(int64)")
def settle(state):  # type: ignore[no-untyped-def]
    """Look after all peers that something is owed to, or was kept of."""
    link = load64(state + STATE.listed_first)
    store64(state + STATE.listed_first, 0)
    while link != 0:
        after = load64(link + LINK.listed)
        store64(link + LINK.listed, 0)
        take_kept(state, link)
        _report(state, link)
        if _is_overdue(link) != 0:
            send_note(state, link)
        if _is_left(link) != 0:
            enlist(state, link)
        link = 0 if after == link else after

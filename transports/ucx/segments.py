"""Segments: the pieces of large messages where there are several lanes to a peer, and what is done when one of them breaks.

::

    sender                                                     receiver
      segment {receive, offset, s, way} --- lane s % n ------>   is_here?  yes: dropped; no: copied, or UCX gets it; take_in(s)
      next_arrived: let_pass  <----- main --- SAID {expected, early, lanes given up}    after each look in which something came
      all have passed, and UCX holds none: finish                all are here, and UCX writes none: finish

    a lane stands still for a second, or segments that have come are not taken for so long
      SAID {question} --------- another lane ----------------->  has taken in what came by all of them
                 <-------------- the same lane --- SAID {answer}
      not answered: asked again, by the next one, in the end by the lane that stands still itself
      answered, and it stood still for two: given up, its endpoint closed by force; its segments go again, by others

What has come for a window (of an array on a GPU) without room waits. It takes no lane's place, but a number, of which there are 63: so few of
a message do that, and others wait behind them in the end, until whoever owns the window looks after it, as any wait of that rank does.

A segment of a message that has but one goes by the lane of messages, if that has room, and leaves the turn as it is. The buffer of a send is
the sender's again when all of it has arrived, as any of it may have to be sent again. A lane that UCX finds broken is given up at once, by
both: SAID names those that its sender has given up. When it was that of messages, the next one takes these over
(:mod:`transports.ucx.channel`). With the last one, the peer is lost. One that was given up is not tried again in this job.

Which lane is whose turn, and what has arrived: :mod:`transports.ucx.lanes`, with its cost.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_five, call_one, call_seven, call_two
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import allocate_or_end, copy, make_stack, release
from transports.messages import REQUEST
from transports.ucx.channel import (
    break_lane,
    endpoint_of,
    endpoint_of_lane,
    enlist_lanes,
    fail,
    forget_taken,
    lanes_of,
    make_frame,
    make_progress_by_lanes,
    post_again,
    post_by,
    worker_of,
)
from transports.ucx.lanes import (
    begin_writing,
    book,
    choose,
    give_up,
    given_up,
    has_room,
    hold,
    is_any_broken,
    is_coming,
    is_free,
    is_here,
    lane_of,
    let_go,
    living,
    next_arrived,
    next_dropped,
    pass_turn,
    rebook_lost,
    settle_held,
    take_in,
)
from transports.ucx.layout import (
    BROKEN,
    BY_FORCE,
    BY_RENDEZVOUS,
    BY_SHIFT,
    FAILED,
    FRAME,
    GONE,
    IN_PROGRESS,
    IS_ANSWER,
    IS_DESCRIPTION,
    IS_QUESTION,
    LANE,
    LANES,
    LINK,
    MOST_FLYING,
    OK,
    PARAMS,
    PIECE,
    PIECES,
    SAID,
    SAYING,
    SEGMENT_HEADER_BYTES,
    STATE,
    TRANSFER,
    WAY_SHIFT,
    WITH_CALL_USER_DATA_AND_FLAGS,
    is_error,
    status_of,
)
from transports.ucx.pieces import is_next_there, let_pass, let_wait, make_described, make_piece, note_done, source_of, target_of

_WATCH_US = 100_000
"""How often it is looked whether a lane stands still."""
STILL_US, ANSWER_US = 2_000_000, 1_000_000
"""A lane that stands still for the first is given up, if the peer has answered by another one since it had stood still for the second."""
_USED_US, _UNUSED_LOOK_US = 1000, 50
"""Workers of lanes, but for the first, that nothing came by for so long are looked at no more often than this: each look is a system call."""
_RANK = (1 << WAY_SHIFT) - 1

_params = make_stack(PARAMS.total // WORD)


@kernel("int64(int64, int64)")
def _lane_for(request, lanes):  # type: ignore[no-untyped-def]
    """The lane for the next segment of a message; -1 if there is none now."""
    main = load64(lanes + LANES.main)
    if has_room(lanes) == 0:
        return -1
    if load64(request + TRANSFER.wanted) <= load64(request + TRANSFER.piece) and is_free(lanes, main) != 0:
        return main
    return choose(lanes)


@kernel("int64(int64, int64)")
def can_give_segment(request, lanes):  # type: ignore[no-untyped-def]
    """Whether a segment of a message can be sent now; few may wait for room in a window, as they take places of others."""
    if load64(request + TRANSFER.flags) == BY_RENDEZVOUS and load64(request + TRANSFER.booked) >= MOST_FLYING:
        return 0
    return 1 if is_next_there(request) != 0 and _lane_for(request, lanes) >= 0 else 0


@kernel("void(int64, int64, int64)")
def send_segments(state, request, lanes):  # type: ignore[no-untyped-def]
    """Send segments of a message, one by each lane at most."""
    for _ in range(load64(lanes + LANES.count)):
        if can_give_segment(request, lanes) == 0:
            return
        number, offset = _lane_for(request, lanes), load64(request + TRANSFER.begun)
        endpoint = endpoint_of_lane(state, lane_of(lanes, number))
        if endpoint == 0:  # another one may have a way to the peer
            pass_turn(lanes, number)
            continue
        length = min(load64(request + TRANSFER.piece), load64(request + TRANSFER.wanted) - offset)
        part = make_piece(state, request, offset, length)
        if part == 0:
            return
        store64(part + PIECE.lanes, lanes)
        store64(request + TRANSFER.begun, offset + length)
        store64(request + TRANSFER.booked, load64(request + TRANSFER.booked) + 1)
        book(lanes, number, part, ticks())
        if load64(request + TRANSFER.wanted) > load64(request + TRANSFER.piece):
            pass_turn(lanes, number)
        _give(state, lanes, part, endpoint)
        enlist_lanes(state, lanes)


@kernel("void(int64, int64, int64, int64)")
def _give(state, lanes, part, endpoint):  # type: ignore[no-untyped-def]
    """Give a segment to UCX, by the lane that it was booked for."""
    params, header, request = _params(), part + PIECE.receive, load64(part + PIECE.request)
    offset, number = load64(part + PIECE.offset), load64(part + PIECE.lane)
    store64(header, load64(request + TRANSFER.remote))
    store64(part + PIECE.receive_offset, offset)
    store64(part + PIECE.way, load64(state + STATE.rank) | number << WAY_SHIFT)
    store64(part + PIECE.holds, load64(part + PIECE.holds) + 1)
    store64(request + TRANSFER.flying, load64(request + TRANSFER.flying) + 1)
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS | load64(request + TRANSFER.flags))
    store64(params + PARAMS.call, load64(state + STATE.on_segment_sent))
    store64(params + PARAMS.user_data, part)
    store64(state + STATE.lanes_used, ticks())
    source, length, function = source_of(request, offset), load64(part + PIECE.length), load64(state + STATE.send)
    sent = call_seven(function, endpoint, PIECES, header, SEGMENT_HEADER_BYTES, source, length, params)
    if is_error(sent) != 0:
        break_lane(state, lanes, number)
    if sent == 0 or is_error(sent) != 0:
        _let_go(state, part)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_segment_sent(request, status, part):  # type: ignore[no-untyped-def]
    """UCX does not need the buffer of a segment any more: ``ucp_send_nbx_callback_t``. Whether it has arrived, the peer says."""
    state = load64(part + PIECE.state)
    call_one(load64(state + STATE.free_request), request)
    _let_go(state, part)
    return 0


@kernel("void(int64, int64)")
def _let_go(state, part):  # type: ignore[no-untyped-def]
    """UCX is done with a segment, once."""
    request, holds = load64(part + PIECE.request), load64(part + PIECE.holds) - 1
    store64(part + PIECE.holds, holds)
    store64(request + TRANSFER.flying, load64(request + TRANSFER.flying) - 1)
    _end_of_segment(state, part)


@kernel("void(int64, int64)")
def _end_of_segment(state, part):  # type: ignore[no-untyped-def]
    """UCX, or the lanes, have let go of a segment: with the last one of a message, the send ends."""
    request = load64(part + PIECE.request)
    if load64(part + PIECE.holds) == 0 and load64(part + PIECE.is_booked) == 0:
        release(part)
    if is_over(request) == 0:
        return
    if load64(request + REQUEST.passed) == load64(request + TRANSFER.wanted):
        note_done(state, request)
    else:  # the peer has failed
        store64(state + STATE.active_count, load64(state + STATE.active_count) - 1)


@kernel("int64(int64)")
def is_over(request):  # type: ignore[no-untyped-def]
    """Whether all segments of a message were sent, and neither UCX nor a lane has one of them."""
    left = load64(request + TRANSFER.flying) | load64(request + TRANSFER.booked)
    return 1 if left == 0 and load64(request + TRANSFER.begun) == load64(request + TRANSFER.wanted) else 0


@kernel("int64(int64, int64)")
def _lanes_from(state, way):  # type: ignore[no-untyped-def]
    """The LANES to the sender of a segment; 0 if nobody sends such."""
    rank, number = way & _RANK, way >> WAY_SHIFT
    if load64(state + STATE.lanes) == 0 or not 0 <= rank < load64(state + STATE.count):
        return 0
    link = load64(load64(state + STATE.peers) + WORD * rank)
    lanes = lanes_of(state, link) if load64(link + LINK.state) == state else 0
    return lanes if lanes != 0 and 0 <= number < load64(lanes + LANES.count) else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def take_segment(state, header, data, nbytes, how):  # type: ignore[no-untyped-def]
    """A segment has come, or its description; what UCX has to be told."""
    lanes, sequence = _lanes_from(state, load64(header + 3 * WORD)), load64(header + 2 * WORD)
    if lanes == 0:
        return OK
    store64(state + STATE.lanes_used, ticks())
    enlist_lanes(state, lanes)
    if is_here(lanes, sequence) != 0:
        store64(lanes + LANES.is_owed, 1)
        return OK
    receive, offset, is_whole = load64(header), load64(header + WORD), 1 if how & IS_DESCRIPTION == 0 else 0
    target, is_twice = target_of(receive, offset, nbytes), is_coming(lanes, sequence)
    if is_twice == 0 and (target == -1 or (target > 0 and is_whole != 0)):
        if target > 0:
            copy(target, data, nbytes)
        _take(state, lanes, receive, offset, nbytes, sequence)
        return OK
    part = make_described(state, receive, offset, nbytes, _copy_of(data, nbytes) if is_whole != 0 else data)
    store64(part + PIECE.is_whole, is_whole)
    store64(part + PIECE.lanes, lanes)
    store64(part + PIECE.lane, load64(header + 3 * WORD) >> WAY_SHIFT)
    store64(part + PIECE.sequence, sequence)
    hold(lanes, sequence)
    if receive_segment(part, target) == 0:
        let_wait(state, part)
    return OK if is_whole != 0 else IN_PROGRESS


@kernel("int64(int64, int64)")
def _copy_of(data, nbytes):  # type: ignore[no-untyped-def]
    """What has to wait in memory that is not UCX's."""
    found = allocate_or_end(nbytes)
    copy(found, data, nbytes)
    return found


@kernel("void(int64)")
def _let_go_of_waiting(part):  # type: ignore[no-untyped-def]
    """A segment waits no longer."""
    if load64(part + PIECE.is_whole) != 0:
        release(load64(part + PIECE.description))
    release(part)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _take(state, lanes, receive, offset, nbytes, sequence):  # type: ignore[no-untyped-def]
    """A segment is where it belongs, or was dropped as its receive was given up."""
    take_in(lanes, sequence)
    if let_pass(receive, offset, nbytes) != 0:
        note_done(state, receive)


@kernel("int64(int64, int64)")
def receive_segment(part, target):  # type: ignore[no-untyped-def]
    """Have UCX get a segment to its target, unless there is none now, or it is being written, as it came by another lane: 0."""
    state, receive, lanes = load64(part + PIECE.state), load64(part + PIECE.request), load64(part + PIECE.lanes)
    sequence, number = load64(part + PIECE.sequence), load64(part + PIECE.lane)
    if is_here(lanes, sequence) == 0 and (target == 0 or is_coming(lanes, sequence) != 0):
        return 0
    worker, description, length = worker_of(state, number), load64(part + PIECE.description), load64(part + PIECE.length)
    is_wanted, is_whole = 1 if is_here(lanes, sequence) == 0 else 0, load64(part + PIECE.is_whole)
    if is_wanted == 0 or target == -1 or is_whole != 0:
        if is_whole == 0:
            call_two(load64(state + STATE.release_data), worker, description)
        elif is_wanted != 0 and target > 0:
            copy(target, description, length)
        if is_wanted != 0:
            _take(state, lanes, receive, load64(part + PIECE.offset), length, sequence)
        _let_go_of_waiting(part)
        return 1
    params = _params()
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS)
    store64(params + PARAMS.call, load64(state + STATE.on_piece_received))
    store64(params + PARAMS.user_data, part)
    store64(receive + TRANSFER.flying, load64(receive + TRANSFER.flying) + 1)
    hold(lanes, sequence)
    begin_writing(lanes, sequence)
    received = call_five(load64(state + STATE.receive), worker, description, target, length, params)
    if received == 0 or is_error(received) != 0:
        end_of_received_segment(part, status_of(received))
    return 1


@kernel("void(int64, int64)")
def end_of_received_segment(part, status):  # type: ignore[no-untyped-def]
    """UCX has got a segment, or never will: then its sender, who will find the lane broken, too, sends it again."""
    state, receive, lanes = load64(part + PIECE.state), load64(part + PIECE.request), load64(part + PIECE.lanes)
    sequence = load64(part + PIECE.sequence)
    store64(receive + TRANSFER.flying, load64(receive + TRANSFER.flying) - 1)
    let_go(lanes, sequence)
    if status == OK:
        _take(state, lanes, receive, load64(part + PIECE.offset), load64(part + PIECE.length), sequence)
    else:
        break_lane(state, lanes, load64(part + PIECE.lane))
    enlist_lanes(state, lanes)
    _let_go_of_waiting(part)


@kernel("void(int64, int64, int64)")
def progress_lanes(state, now, most):  # type: ignore[no-untyped-def]
    """Have UCX deliver what has come by lanes but the first, whose worker is looked at anyway."""
    rate = load64(state + STATE.ticks_per_us)
    is_used = 1 if load64(state + STATE.lanes_first) != 0 or now - load64(state + STATE.lanes_used) < _USED_US * rate else 0
    if is_used == 0 and now - load64(state + STATE.lanes_polled) < _UNUSED_LOOK_US * rate:
        return
    store64(state + STATE.lanes_polled, now)
    if make_progress_by_lanes(state, most) != 0:
        store64(state + STATE.lanes_used, now)


@kernel("void(int64, int64)")
def settle_lanes(state, now):  # type: ignore[no-untyped-def]
    """Look after all peers that segments are under way to, or that something is to be said to."""
    lanes = load64(state + STATE.lanes_first)
    store64(state + STATE.lanes_first, 0)
    while lanes != 0:
        after = load64(lanes + LANES.following)
        store64(lanes + LANES.following, 0)
        if _look_after(state, lanes, now) != 0:
            enlist_lanes(state, lanes)
        lanes = 0 if after == lanes else after
    if now - load64(state + STATE.watched) > _WATCH_US * load64(state + STATE.ticks_per_us):
        store64(state + STATE.watched, now)
        _watch_all(state, now)


@kernel("int64(int64, int64, int64)")
def _look_after(state, lanes, now):  # type: ignore[no-untyped-def]
    """Settle what has arrived, send what is lost again, and say what is owed; whether something is left."""
    part = next_arrived(lanes, now)
    while part != 0:
        request = load64(part + PIECE.request)
        store64(request + TRANSFER.booked, load64(request + TRANSFER.booked) - 1)
        let_pass(request, load64(part + PIECE.offset), load64(part + PIECE.length))
        _end_of_segment(state, part)
        part = next_arrived(lanes, now)
    settle_held(lanes, now)
    for number in range(load64(lanes + LANES.count)):
        if load64(lane_of(lanes, number) + LANE.flags) == BROKEN:
            _give_up(state, lanes, number)
    if load64(load64(lanes + LANES.link) + LINK.flags) & FAILED != 0:
        _drop_all(state, lanes)
        return 0
    _post_again(state, lanes)
    _send_lost(state, lanes, now)
    _answer(state, lanes)
    if load64(lanes + LANES.is_owed) != 0:
        _say(state, lanes, load64(lanes + LANES.main), 0)
    is_left = load64(lanes + LANES.is_owed) | load64(lanes + LANES.answer_by) | load64(lanes + LANES.is_unposted)
    return is_left | load64(lanes + LANES.next) - load64(lanes + LANES.settled)


@kernel("void(int64, int64)")
def _answer(state, lanes):  # type: ignore[no-untyped-def]
    """Answer a question by the lane that it came by, unless that has been given up."""
    number = load64(lanes + LANES.answer_by) - 1
    if number < 0:
        return
    if load64(lane_of(lanes, number) + LANE.flags) != 0:
        store64(lanes + LANES.is_owed, 1)
        store64(lanes + LANES.answer_by, 0)
    elif _say(state, lanes, number, IS_ANSWER) != 0:
        store64(lanes + LANES.answer_by, 0)


@kernel("void(int64, int64)")
def _drop_all(state, lanes):  # type: ignore[no-untyped-def]
    """Nothing more arrives at the peer."""
    part = next_dropped(lanes)
    while part != 0:
        request = load64(part + PIECE.request)
        store64(request + TRANSFER.booked, load64(request + TRANSFER.booked) - 1)
        _end_of_segment(state, part)
        part = next_dropped(lanes)
    link = load64(lanes + LANES.link)
    forget_taken(lanes, load64(link + LINK.acknowledged), load64(link + LINK.sent))
    store64(link + LINK.acknowledged, load64(link + LINK.sent))
    store64(lanes + LANES.is_unposted, 0)


@kernel("void(int64, int64, int64)")
def _send_lost(state, lanes, now):  # type: ignore[no-untyped-def]
    """Send segments again that a broken lane had."""
    tried = 0
    while load64(lanes + LANES.lost) != 0 and tried < load64(lanes + LANES.count):
        number = choose(lanes)
        if number < 0:
            return
        endpoint = endpoint_of_lane(state, lane_of(lanes, number))
        pass_turn(lanes, number)
        tried = tried + 1 if endpoint == 0 else 0
        if endpoint != 0:
            _give(state, lanes, rebook_lost(lanes, number, now), endpoint)


@kernel("int64(int64, int64, int64, int64)")
def _say(state, lanes, number, what):  # type: ignore[no-untyped-def]
    """Say by a lane what has arrived, and which lanes were given up; 1, or 0 if that lane has no endpoint, or there is no memory."""
    link = load64(lanes + LANES.link)
    endpoint = endpoint_of_lane(state, lane_of(lanes, number))
    frame = make_frame(state, link, SAID, SAYING.total) if endpoint != 0 else 0
    if frame == 0:
        return 0
    words = frame + FRAME.total
    store64(words + SAYING.expected, load64(lanes + LANES.expected))
    store64(words + SAYING.early, load64(lanes + LANES.early))
    store64(words + SAYING.held, load64(lanes + LANES.held))
    store64(words + SAYING.rest, given_up(lanes) | what | number << BY_SHIFT)
    if post_by(frame, SAYING.total, endpoint) == 0:
        break_lane(state, lanes, number)
        return 0
    store64(lanes + LANES.is_owed, 0)
    return 1


@kernel("void(int64, int64, int64)")
def _give_up(state, lanes, number):  # type: ignore[no-untyped-def]
    """Others take over from a broken lane, and the peer is told; UCX lets go of what it has of it."""
    lane, link = lane_of(lanes, number), load64(lanes + LANES.link)
    endpoint = load64(lane + LANE.endpoint)
    give_up(lanes, number)
    store64(lanes + LANES.is_owed, 1)
    store64(lane + LANE.endpoint, 0)
    if endpoint != 0:
        _close(state, endpoint)
    if number == load64(lanes + LANES.main):
        _go_by_another(lanes, link)


@kernel("void(int64, int64)")
def _close(state, endpoint):  # type: ignore[no-untyped-def]
    """Have UCX close an endpoint at once: it gives up all that goes by it."""
    params = _params()
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS | BY_FORCE)
    store64(params + PARAMS.call, load64(state + STATE.on_closed))
    store64(params + PARAMS.user_data, state)
    request = call_two(load64(state + STATE.close_endpoint), endpoint, params)
    if request != 0 and is_error(request) == 0:
        store64(state + STATE.closing, load64(state + STATE.closing) + 1)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_closed(request, status, state):  # type: ignore[no-untyped-def]
    """UCX has closed an endpoint: ``ucp_send_nbx_callback_t``."""
    call_one(load64(state + STATE.free_request), request)
    store64(state + STATE.closing, load64(state + STATE.closing) - 1)
    return 0


@kernel("void(int64, int64)")
def _go_by_another(lanes, link):  # type: ignore[no-untyped-def]
    """Messages go by the next lane from now on, also those that may not have arrived; without one, or from a peer that has left, none do."""
    store64(link + LINK.endpoint, 0)
    number = living(lanes, -1)
    if number < 0 or load64(link + LINK.flags) & GONE != 0:
        fail(link)
    else:
        store64(lanes + LANES.main, number)
        store64(lanes + LANES.is_unposted, 1)


@kernel("void(int64, int64)")
def _post_again(state, lanes):  # type: ignore[no-untyped-def]
    """Messages that may not have arrived go again, once there is a new way."""
    link = load64(lanes + LANES.link)
    if load64(lanes + LANES.is_unposted) != 0 and endpoint_of(state, link) != 0:
        store64(lanes + LANES.is_unposted, 0)
        post_again(lanes, load64(link + LINK.acknowledged), load64(link + LINK.sent))


@kernel("void(int64, int64)")
def _watch_all(state, now):  # type: ignore[no-untyped-def]
    """Look whether a lane to any peer stands still."""
    for place in range(load64(state + STATE.count)):
        link = load64(load64(state + STATE.peers) + WORD * place)
        lanes = lanes_of(state, link) if load64(link + LINK.state) == state else 0
        if lanes != 0 and load64(link + LINK.flags) & (FAILED | GONE) == 0:
            _watch(state, lanes, now)


@kernel("int64(int64, int64, int64)")
def _still(lanes, number, now):  # type: ignore[no-untyped-def]
    """For how long what goes by a lane has not been heard of, in ticks: of that of messages, neither these nor segments."""
    lane, link, since = lane_of(lanes, number), load64(lanes + LANES.link), load64(lane_of(lanes, number) + LANE.since)
    if load64(lane + LANE.flying) != 0:
        return now - since
    if number == load64(lanes + LANES.main) and load64(link + LINK.sent) != load64(link + LINK.acknowledged):
        return now - max(since, load64(lanes + LANES.said))
    return 0


@kernel("void(int64, int64, int64)")
def _watch(state, lanes, now):  # type: ignore[no-untyped-def]
    """Ask about a lane that stands still, and give it up if the answer has not changed that.

    Ask, too, if nothing is heard of segments that have come: the lane by which the peer says more of them may be silent.
    """
    rate, asked, answered = load64(state + STATE.ticks_per_us), load64(lanes + LANES.asked), load64(lanes + LANES.answered)
    heard = 0
    for number in range(load64(lanes + LANES.count)):
        heard = max(heard, load64(lane_of(lanes, number) + LANE.since))
        if load64(lane_of(lanes, number) + LANE.flags) != 0:
            continue
        still = _still(lanes, number, now)
        is_answered = 1 if now - still + ANSWER_US * rate < answered < now - _WATCH_US * rate else 0
        if living(lanes, number) < 0:
            return
        if still > STILL_US * rate and is_answered != 0:
            store64(lanes + LANES.answered, 0)  # what the others have lost by it, they have a time to hear of
            break_lane(state, lanes, number)
            return
        if still > ANSWER_US * rate and now - asked > ANSWER_US * rate:
            _ask(state, lanes, number, now)
            return
    if load64(lanes + LANES.next) != load64(lanes + LANES.settled) and now - max(heard, asked) > ANSWER_US * rate:
        _ask(state, lanes, -1, now)


@kernel("void(int64, int64, int64, int64)")
def _ask(state, lanes, number, now):  # type: ignore[no-untyped-def]
    """Ask what has come, as a lane stands still, by the lane by which the last question was answered: another one; else by the next one."""
    is_heard = 1 if load64(lanes + LANES.answered) >= load64(lanes + LANES.asked) else 0
    count, first = load64(lanes + LANES.count), load64(lanes + LANES.asked_by) + 1 - is_heard
    for step in range(count):
        by = (first + step) % count
        if load64(lane_of(lanes, by) + LANE.flags) == 0 and (by != number or is_heard == 0):
            store64(lanes + LANES.asked, now)
            store64(lanes + LANES.asked_by, by)
            _say(state, lanes, by, IS_QUESTION)
            return


@kernel("int64(int64)")
def is_left_unseen(state):  # type: ignore[no-untyped-def]
    """Whether there is something to do of which UCX tells nothing: to be said, or to be sent again."""
    lanes = load64(state + STATE.lanes_first)
    while lanes != 0:
        is_left = load64(lanes + LANES.is_owed) | load64(lanes + LANES.answer_by) | load64(lanes + LANES.lost)
        if is_left | load64(lanes + LANES.is_unposted) | is_any_broken(lanes) != 0:
            return 1
        after = load64(lanes + LANES.following)
        lanes = 0 if after == lanes else after
    return 0

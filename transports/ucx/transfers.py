"""Large messages: granted by the receiver, then sent in pieces, which UCX moves from buffer to buffer as it does best.

::

    sender                                   receiver
      RTS -------------------------------------> fetch, once a receive has met it (perhaps much later)
      serve <------------- CTS {receive, bytes wanted, bytes of a piece}
      piece {receive, offset} ----------------->  comes whole: copied to the buffer
      piece {receive, offset} ~~~~~~~~~~~~~~~~~>  comes as a description: UCX gets it into the buffer (RDMA, where there is any)
      all sent: finish                            all there: finish

A piece is an active message whose payload is the sender's buffer itself. Each look gives UCX one of each message: so a rank sends as much as
it takes in, and what it has to say to its peer is never behind much. Through sockets a piece comes whole; elsewhere UCX chooses, by its size
and by what the network can. The receiver of a window (of an array on a GPU) wants descriptions only, and leaves those where they are that
there is no room for yet; so no more than :data:`MOST_FLYING` pieces are ahead of the window. Where there are several lanes to a peer, pieces
are segments, which are numbered and sent again if a lane breaks (:mod:`transports.ucx.segments`).

:data:`TRANSFER` is the beginning of a request (:data:`transports.messages.REQUEST`). A receive that is given up waits for pieces that UCX
is writing to its buffer, as it cannot be told to stop; those that come later are dropped. Where their sender makes no progress, the buffer is
kept until they have come.

T = 3 alpha + m * beta.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_five, call_one, call_seven, call_three, call_two
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, make_stack, release
from transports.base import ARMED, COME, UNARMED
from transports.messages import REQUEST
from transports.ucx.channel import MOST_PROGRESS, endpoint_of, fail, lanes_of, make_progress, settle, worker_of
from transports.ucx.lanes import is_here
from transports.ucx.layout import (
    BUSY,
    BY_RENDEZVOUS,
    EAGERLY,
    FAILED,
    IN_PROGRESS,
    IS_DESCRIPTION,
    LANES,
    LARGEST_PIECE,
    LINK,
    MOST_FLYING,
    MOST_FLYING_BY_SOCKETS,
    OK,
    PARAMS,
    PIECE,
    PIECE_HEADER_BYTES,
    PIECES,
    SEGMENT_HEADER_BYTES,
    STATE,
    TRANSFER,
    WITH_CALL_USER_DATA_AND_FLAGS,
    is_error,
    status_of,
)
from transports.ucx.pieces import is_next_there, let_pass, let_wait, make_described, make_piece, note_done, source_of, target_of
from transports.ucx.segments import (
    can_give_segment,
    end_of_received_segment,
    is_left_unseen,
    is_over,
    progress_lanes,
    receive_segment,
    send_segments,
    settle_lanes,
    take_segment,
)

_PIECE_SHIFT = 56
"""In the third word of a CTS, above the bytes wanted: 1 + the binary logarithm of the bytes of a piece of a window; 0: no window."""
_WANTED = (1 << _PIECE_SHIFT) - 1
_BUSY_US, _QUIET_SHARE, _MOST_QUIET_US = 1000, 50, 100
"""A network that nothing has come from or gone to for the first is looked at once in a share of that time only, and in the last at most:
a look is a system call, and ranks of one node wait by the same loop."""
_PATIENCE_US = 1_000_000
"""For how long a receive that is given up waits for what is being written to its buffer."""
_AWAY_US = 20
"""Who has not looked for so long computes or dozes between two looks, and takes all that has come at once. Another one sees what comes in
the first look, and does not look again to find nothing before it goes on."""
_MOST_WHILE_SENDING = 4
"""Of UCX's progress in a row for a rank that was away and has large messages to send itself: each may be a piece taken in, and whoever takes
in 64 of them before it sends one leaves the other way idle, and then fills its sockets with more than a cache holds."""
_MOST_UNARMED = 64
"""How often in a row something may have come before a thread that is to sleep does so all the same, for a while."""

_params = make_stack(PARAMS.total // 8)


@kernel("int64(int64, int64, int64)", is_entry=True)
def offer(engine, link, request):  # type: ignore[no-untyped-def]
    """There is nothing to say in the RTS of a send: its receiver asks for its bytes."""
    return 1


@kernel("int64(int64)")
def piece_of_a_window(window):  # type: ignore[no-untyped-def]
    """Bytes of a piece, a power of two, such that none goes across the end of a window."""
    return min(window & -window, LARGEST_PIECE)


@kernel("int64(int64)")
def bits_of(power):  # type: ignore[no-untyped-def]
    """1 + the binary logarithm of a power of two; of 0, 0."""
    bits = 0
    while power != 0:
        power >>= 1
        bits += 1
    return bits


@kernel("int64(int64, int64, int64)", is_entry=True)
def fetch(engine, link, receive):  # type: ignore[no-untyped-def]
    """A receive has met an RTS of some bytes: 1 if it wants none of them; 0: the sender is asked for them."""
    wanted, window, piece = load64(receive + REQUEST.message_bytes), load64(receive + REQUEST.window), 0
    if window != 0:
        piece = piece_of_a_window(window)
    else:
        wanted = min(wanted, load64(receive + REQUEST.nbytes))
    if wanted == 0:
        return 1
    _begin(link, receive, 0, wanted, piece)
    store64(receive + REQUEST.second, receive)
    store64(receive + REQUEST.third, wanted | bits_of(piece) << _PIECE_SHIFT)
    call_three(load64(load64(link + LINK.state) + STATE.clear_to_send), engine, link, receive)
    return 0


@kernel("void(int64, int64, int64, int64, int64)")
def _begin(link, request, remote, wanted, piece):  # type: ignore[no-untyped-def]
    store64(request + TRANSFER.link, link)
    store64(request + TRANSFER.remote, remote)
    store64(request + TRANSFER.wanted, wanted)
    store64(request + TRANSFER.begun, 0)
    store64(request + TRANSFER.flying, 0)
    store64(request + TRANSFER.piece, piece)
    store64(request + TRANSFER.early, 0)
    store64(request + TRANSFER.next, 0)
    store64(request + TRANSFER.flags, 0)
    store64(request + TRANSFER.booked, 0)
    store64(request + REQUEST.passed, 0)


@kernel("int64(int64, int64, int64)", is_entry=True)
def serve(engine, link, request):  # type: ignore[no-untyped-def]
    """The receiver has sent a CTS: from now on its bytes are sent."""
    state, third, window = load64(link + LINK.state), load64(request + REQUEST.third), load64(request + REQUEST.window)
    wanted, bits = third & _WANTED, third >> _PIECE_SHIFT
    piece, lanes = 1 << (bits - 1) if bits != 0 else load64(state + STATE.piece), lanes_of(state, link)
    if lanes != 0 and bits == 0:
        piece = load64(lanes + LANES.segment)
    if 0 < window < wanted:
        piece = min(piece, piece_of_a_window(window))
    _begin(link, request, load64(request + REQUEST.second), wanted, piece)
    flags = load64(state + STATE.piece_flags) if window == 0 else 0
    store64(request + TRANSFER.flags, BY_RENDEZVOUS if bits != 0 else flags)
    last = load64(state + STATE.active_last)
    store64(last + TRANSFER.next if last != 0 else state + STATE.active_first, request)
    store64(state + STATE.active_last, request)
    store64(state + STATE.active_count, load64(state + STATE.active_count) + 1)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def revoke(engine, link, receive):  # type: ignore[no-untyped-def]
    """Wait for the pieces that UCX is writing to the buffer of a receive: those that come later are dropped, as the receive has no bytes.

    Returns 1 if there are none any more; 0 if their sender has sent nothing for a second, or another one did so less than a second ago.
    """
    state, begun = load64(link + LINK.state), ticks()
    patience = _PATIENCE_US * load64(state + STATE.ticks_per_us)
    if begun - load64(state + STATE.in_vain) < patience:
        patience = 0
    while load64(receive + TRANSFER.flying) != 0:
        if ticks() - begun > patience:
            store64(state + STATE.in_vain, ticks())
            return 0
        make_progress(state, 1)
        if load64(state + STATE.lanes) != 0:
            progress_lanes(state, ticks(), 1)
    return 1


@kernel("void(int64, int64, int64, int64)")
def _pass(state, request, offset, length):  # type: ignore[no-untyped-def]
    """A piece has been sent, or has come."""
    if let_pass(request, offset, length) != 0:
        note_done(state, request)


@kernel("void(int64, int64, int64, int64, int64)")
def _end_of_sent_piece(state, request, offset, length, status):  # type: ignore[no-untyped-def]
    """A piece is sent, or never will be. Of a send to a peer that has failed, the last one ends it as far as UCX is concerned."""
    link, flying = load64(request + TRANSFER.link), load64(request + TRANSFER.flying) - 1
    store64(request + TRANSFER.flying, flying)
    if status == OK:
        _pass(state, request, offset, length)
    else:
        fail(link)
        is_lost = 1 if flying == 0 and load64(request + TRANSFER.begun) == load64(request + TRANSFER.wanted) else 0
        store64(state + STATE.active_count, load64(state + STATE.active_count) - is_lost)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_piece_sent(request, status, part):  # type: ignore[no-untyped-def]
    """UCX has sent a piece: ``ucp_send_nbx_callback_t``."""
    state = load64(part + PIECE.state)
    call_one(load64(state + STATE.free_request), request)
    offset, length = load64(part + PIECE.offset), load64(part + PIECE.length)
    _end_of_sent_piece(state, load64(part + PIECE.request), offset, length, status_of(status))
    release(part)
    return 0


@kernel("void(int64, int64, int64)")
def _send_piece(endpoint, part, address):  # type: ignore[no-untyped-def]
    """Give a piece to UCX."""
    state, request, length = load64(part + PIECE.state), load64(part + PIECE.request), load64(part + PIECE.length)
    params, header, offset = _params(), part + PIECE.receive, load64(part + PIECE.offset)
    store64(header, load64(request + TRANSFER.remote))
    store64(part + PIECE.receive_offset, offset)
    store64(request + TRANSFER.flying, load64(request + TRANSFER.flying) + 1)
    store64(request + TRANSFER.begun, offset + length)
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS | load64(request + TRANSFER.flags))
    store64(params + PARAMS.call, load64(state + STATE.on_piece_sent))
    store64(params + PARAMS.user_data, part)
    sent = call_seven(load64(state + STATE.send), endpoint, PIECES, header, PIECE_HEADER_BYTES, address, length, params)
    if sent == 0 or is_error(sent) != 0:
        release(part)
        _end_of_sent_piece(state, request, offset, length, sent)


@kernel("int64(int64, int64)")
def _can_give(state, request):  # type: ignore[no-untyped-def]
    """Whether UCX takes the next piece of a message now: there is one, and few enough are under way."""
    lanes = lanes_of(state, load64(request + TRANSFER.link))
    if lanes != 0:
        return can_give_segment(request, lanes)
    most = MOST_FLYING_BY_SOCKETS if load64(request + TRANSFER.flags) == EAGERLY else MOST_FLYING
    return is_next_there(request) if load64(request + TRANSFER.flying) < most else 0


@kernel("int64(int64, int64)")
def _feed(state, request):  # type: ignore[no-untyped-def]
    """Send a piece of a message, if one can be sent; 1 when all are under way, or the peer has failed."""
    link, offset, wanted = load64(request + TRANSFER.link), load64(request + TRANSFER.begun), load64(request + TRANSFER.wanted)
    endpoint, lanes = endpoint_of(state, link), lanes_of(state, link)
    if load64(link + LINK.flags) & FAILED != 0:
        store64(request + TRANSFER.begun, wanted)
        store64(state + STATE.active_count, load64(state + STATE.active_count) - is_over(request))
        return 1
    if endpoint != 0 and lanes != 0:
        send_segments(state, request, lanes)
    elif endpoint != 0 and _can_give(state, request) != 0:
        part = make_piece(state, request, offset, min(load64(request + TRANSFER.piece), wanted - offset))
        if part != 0:
            _send_piece(endpoint, part, source_of(request, offset))
    return 1 if load64(request + TRANSFER.begun) == wanted else 0


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def on_piece(state, header, header_bytes, data, nbytes, how):  # type: ignore[no-untyped-def]
    """A piece has come, or its description: ``ucp_am_recv_callback_t``."""
    store64(state + STATE.used, ticks())
    if header_bytes == SEGMENT_HEADER_BYTES:
        return take_segment(state, header, data, nbytes, load64(how))
    receive, offset = load64(header), load64(header + 8)
    target = target_of(receive, offset, nbytes)
    if load64(how) & IS_DESCRIPTION == 0 and target == 0:
        fail(load64(receive + TRANSFER.link))  # the sender was asked for descriptions
        return OK
    if load64(how) & IS_DESCRIPTION == 0 or target == -1:
        if target > 0:
            copy(target, data, nbytes)
        _pass(state, receive, offset, nbytes)
        return OK
    part = make_described(state, receive, offset, nbytes, data)
    if target == 0:
        let_wait(state, part)
    else:
        _receive_piece(part, target)
    return IN_PROGRESS


@kernel("void(int64, int64)")
def _receive_piece(part, target):  # type: ignore[no-untyped-def]
    """Have UCX get a piece into the buffer."""
    state, receive, params = load64(part + PIECE.state), load64(part + PIECE.request), _params()
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_AND_FLAGS)
    store64(params + PARAMS.call, load64(state + STATE.on_piece_received))
    store64(params + PARAMS.user_data, part)
    store64(receive + TRANSFER.flying, load64(receive + TRANSFER.flying) + 1)
    function, worker, length = load64(state + STATE.receive), load64(state + STATE.worker), load64(part + PIECE.length)
    received = call_five(function, worker, load64(part + PIECE.description), target, length, params)
    if received == 0 or is_error(received) != 0:
        _end_of_received_piece(part, received)


@kernel("void(int64, int64)")
def _end_of_received_piece(part, status):  # type: ignore[no-untyped-def]
    state, receive = load64(part + PIECE.state), load64(part + PIECE.request)
    store64(receive + TRANSFER.flying, load64(receive + TRANSFER.flying) - 1)
    if status == OK:
        _pass(state, receive, load64(part + PIECE.offset), load64(part + PIECE.length))
    else:
        fail(load64(receive + TRANSFER.link))
    release(part)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def on_piece_received(request, status, nbytes, part):  # type: ignore[no-untyped-def]
    """UCX has got a piece: ``ucp_am_recv_data_nbx_callback_t``."""
    call_one(load64(load64(part + PIECE.state) + STATE.free_request), request)
    if load64(part + PIECE.lanes) != 0:
        end_of_received_segment(part, status_of(status))
    else:
        _end_of_received_piece(part, status_of(status))
    return 0


@kernel("void(int64)")
def _retry_waiting(state):  # type: ignore[no-untyped-def]
    """Take pieces for which there is room by now."""
    part = load64(state + STATE.waiting_first)
    store64(state + STATE.waiting_first, 0)
    while part != 0:
        after = load64(part + PIECE.next)
        if _retry(state, part) == 0:
            let_wait(state, part)
        part = after


@kernel("int64(int64, int64)")
def _retry(state, part):  # type: ignore[no-untyped-def]
    """Take a piece if there is room for it by now; whether it need not wait any more. Of a segment that is here the receive may be gone."""
    receive, lanes = load64(part + PIECE.request), load64(part + PIECE.lanes)
    offset, length = load64(part + PIECE.offset), load64(part + PIECE.length)
    if lanes != 0:
        is_double = is_here(lanes, load64(part + PIECE.sequence))
        return receive_segment(part, 0 if is_double != 0 else target_of(receive, offset, length))
    target = target_of(receive, offset, length)
    if target == -1:
        call_two(load64(state + STATE.release_data), load64(state + STATE.worker), load64(part + PIECE.description))
        release(part)
        _pass(state, receive, offset, length)
    elif target != 0:
        _receive_piece(part, target)
    return 1 if target != 0 else 0


@kernel("void(int64)")
def _finish_done(state):  # type: ignore[no-untyped-def]
    """Tell the engine of transfers that are complete."""
    while load64(state + STATE.done_first) != 0:
        request = load64(state + STATE.done_first)
        store64(state + STATE.done_first, load64(request + TRANSFER.next))
        if load64(request + TRANSFER.remote) != 0:
            store64(state + STATE.active_count, load64(state + STATE.active_count) - 1)
        call_three(load64(state + STATE.finish), load64(state + STATE.engine), request, load64(request + REQUEST.error))


@kernel("void(int64)", is_entry=True)
def step(state):  # type: ignore[no-untyped-def]
    """Send pieces of all messages that are under way, take those that wait, and finish what is complete."""
    request, last = load64(state + STATE.active_first), 0
    store64(state + STATE.active_first, 0)
    while request != 0:
        after = load64(request + TRANSFER.next)
        store64(request + TRANSFER.next, 0)
        if _feed(state, request) == 0:
            store64(last + TRANSFER.next if last != 0 else state + STATE.active_first, request)
            last = request
        request = after
    store64(state + STATE.active_last, last)
    if load64(state + STATE.waiting_first) != 0:
        _retry_waiting(state)
    _finish_done(state)


@kernel("int64(int64, int64, int64)")
def _is_too_soon(state, now, unseen):  # type: ignore[no-untyped-def]
    """Whether the network has been quiet for long, and was looked at not long ago."""
    quiet, rate = now - load64(state + STATE.used), load64(state + STATE.ticks_per_us)
    return 1 if quiet > _BUSY_US * rate and unseen < min(quiet // _QUIET_SHARE, _MOST_QUIET_US * rate) else 0


@kernel("int64(int64, int64)")
def _most_at_once(state, unseen):  # type: ignore[no-untyped-def]
    """How often in a row UCX is to make progress in a look, when there was none for so long."""
    if unseen <= _AWAY_US * load64(state + STATE.ticks_per_us):
        return 1
    return MOST_PROGRESS if load64(state + STATE.active_count) == 0 else _MOST_WHILE_SENDING


@kernel("void(int64)", is_entry=True)
def poll(state):  # type: ignore[no-untyped-def]
    """Have UCX deliver what has come and send what waits, and move transfers on."""
    now = ticks()
    unseen = now - load64(state + STATE.polled)
    if _is_too_soon(state, now, unseen) != 0:
        return
    store64(state + STATE.polled, now)
    store64(state + STATE.is_open, 1)
    most, lanes = _most_at_once(state, unseen), load64(state + STATE.lanes)
    make_progress(state, most)
    if lanes != 0:
        progress_lanes(state, now, most)
    store64(state + STATE.is_open, 0)
    if lanes != 0:
        settle_lanes(state, now)
    if load64(state + STATE.listed_first) != 0:
        settle(state)
    if load64(state + STATE.active_first) | load64(state + STATE.waiting_first) | load64(state + STATE.done_first) != 0:
        step(state)


@kernel("int64(int64)")
def _left_unseen(state):  # type: ignore[no-untyped-def]
    """What there is to do of which UCX tells nothing; of messages under way, the end of a piece is an event.

    COME: another piece to give; UNARMED: something that time or a window brings; ARMED: nothing.
    """
    is_kept = load64(state + STATE.listed_first) | load64(state + STATE.waiting_first) | load64(state + STATE.done_first)
    found, request = UNARMED if is_kept | is_left_unseen(state) != 0 else ARMED, load64(state + STATE.active_first)
    while request != 0:
        if load64(load64(request + TRANSFER.link) + LINK.endpoint) != 0 and _can_give(state, request) != 0:
            return COME
        if load64(request + TRANSFER.flying) | load64(request + TRANSFER.booked) == 0:
            found = UNARMED
        request = load64(request + TRANSFER.next)
    return found


@kernel("int64(int64)", is_entry=True)
def arm(state):  # type: ignore[no-untyped-def]
    """Have the event descriptor of UCX tell of what comes next; the next look is not too soon after the one before, whatever came."""
    store64(state + STATE.polled, 0)
    left = _left_unseen(state)
    if left != ARMED:
        return left
    status = OK
    for number in range(max(1, load64(state + STATE.worker_count))):
        if status == OK:
            status = status_of(call_one(load64(state + STATE.arm), worker_of(state, number)))
    unarmed = load64(state + STATE.unarmed) + 1 if status == BUSY else 0
    store64(state + STATE.unarmed, unarmed)
    if status == OK:
        return ARMED
    return COME if 0 < unarmed <= _MOST_UNARMED else UNARMED

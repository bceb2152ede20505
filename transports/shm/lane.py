"""Messages of the matching engine over rings: what is sent goes into the peer's ring at once or not at all, what has come is handed up.

A *lane* is both directions between this rank and a peer of its node. Its words are private to the rank::

    rank 0                                             rank 1
      tail, seen_consumed -> outbox === ring 0 to 1 ===> inbox <- head, published
      head, published     -> inbox <=== ring 1 to 0 === outbox <- tail, seen_consumed

:data:`SHM` is the beginning of the engine's block, :data:`LANE` that of a peer's. The matching engine has the functions without an
underscore compiled into itself (:mod:`ncclx_mpi.p2p.inlined`), but for ``poll``, in place of which
:mod:`ncclx_mpi.p2p.inlined_arrivals` has a loop of its own that calls nothing by address.

Cost: see :mod:`transports.shm.ring`, and :mod:`transports.shm.side` for payloads over 1 KiB.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, load_relaxed, store64, store_relaxed, store_release
from numba_kernels.calls import call_message
from numba_kernels.jit import kernel
from numba_kernels.layout import LINE, WORD, words
from numba_kernels.memory import take_pages, whole_lines, write_shared
from transports.messages import EAGER, ENGINE_WORDS, PEER_WORDS
from transports.shm.layout import RING
from transports.shm.ring import (
    ASIDE,
    KIND_BITS,
    MESSAGE,
    begin_aside,
    consume,
    is_aside,
    kind_of,
    lines_for,
    peek,
    push,
    push_control,
    room,
    tag_of,
)
from transports.shm.side import SIDE_FROM, STREAMED_SHIFT, place_at, side_of, side_room
from transports.shm.store_kind import SAMPLED_EVERY, SAMPLED_FROM, SAMPLES, judge_writes, time_write

SHM = words(
    "Shm",
    # what the engine does for a transport, by C address
    "arrive clear_to_send finish "
    # where things are
    "first_lane lanes lane_stride arena heap_first heap_last "
    # `aside_after`: how many messages over `SIDE_FROM` bytes go to a peer before they go aside, for which both take all pages of a side ring;
    # `streamed`: bytes for peers are written past the caches; `stores_fixed`: the user has chosen that, else it is tried anew now and then
    "key ring_lines side_bytes aside_after streamed stores_fixed ticks_per_us "
    # transfers under way, when one of them has moved, and receives that wait for a pipe (bulk.py)
    "active_count moved_at active_first starved_first starved_last bulk_free*4 first_pipe pipe_bytes "
    # a word by which peers make sure that a process is this rank; AUTO, PIPED or DIRECT; trials of the ways by size (shared.py, trial.py)
    "token copies trials*80",
)
LANE = words(
    "Lane",
    "outbox tail seen_consumed control token reach mapped | inbox head published "
    "| side_tail side_seen side_head side_published wides stores plain_ticks streamed_ticks",
)
"""``control``: the peer's ``CONTROL`` block; ``token``: what stands where the peer says in it; ``reach``: whether the kernel copies between
the two processes, once that is known; ``mapped``: a bit for each pipe of the peer whose pages this process has; ``wides``: messages over
`SIDE_FROM` bytes that were sent before they went aside, and then those that are large enough to be timed. Of the side rings:
``side_tail``, ``side_seen`` of the sender; ``side_head``, ``side_published`` of the receiver; ``stores``, with which this rank writes into
its own: 1 plain, 2 streamed ones, 0 as it writes all else; ``plain_ticks``, ``streamed_ticks``: what the last timed writes took."""
assert SHM.total <= ENGINE_WORDS * WORD and LANE.total <= PEER_WORDS * WORD

MESSAGES_A_TURN = 64
"""Of one peer, before the next one has its turn."""


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def send_eager(engine, lane, context, tag, nbytes, address):  # type: ignore[no-untyped-def]
    """Write a message with its `nbytes` of payload into the peer's ring; 1, or 0 if there is no room."""
    if nbytes > SIDE_FROM and _goes_aside(engine, lane) != 0:
        return _send_aside(engine, lane, context, tag, nbytes, address)
    ring, ring_lines = load64(lane + LANE.outbox), load64(engine + SHM.ring_lines)
    tail, lines = load64(lane + LANE.tail), lines_for(nbytes)
    consumed = room(ring, ring_lines, tail, load64(lane + LANE.seen_consumed), lines)
    if consumed < 0:
        return 0
    push(
        ring, ring_lines, load64(engine + SHM.key), tail, context,
        (tag << KIND_BITS) | EAGER, nbytes, address, nbytes, load64(engine + SHM.streamed),
    )  # fmt: skip
    store64(lane + LANE.seen_consumed, consumed)
    store64(lane + LANE.tail, tail + lines)
    return 1


@kernel("int64(int64, int64)")
def _goes_aside(engine, lane):  # type: ignore[no-untyped-def]
    """Whether a message to a peer that gets many over `SIDE_FROM` bytes goes aside; counts those before."""
    wides = load64(lane + LANE.wides)
    if (
        load64(lane + LANE.side_tail) > 0
        or wides >= load64(engine + SHM.aside_after) << load64(engine + SHM.streamed) * STREAMED_SHIFT
    ):
        return 1
    store64(lane + LANE.wides, wides + 1)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _send_aside(engine, lane, context, tag, nbytes, address):  # type: ignore[no-untyped-def]
    """As :func:`send_eager`, with the payload in the side ring."""
    ring, ring_lines, side_bytes = load64(lane + LANE.outbox), load64(engine + SHM.ring_lines), load64(engine + SHM.side_bytes)
    side, tail = side_of(ring, ring_lines), load64(lane + LANE.tail)
    if load64(lane + LANE.side_tail) == 0:
        take_pages(side, side_bytes)
    position = place_at(load64(lane + LANE.side_tail), nbytes, side_bytes)
    consumed = room(ring, ring_lines, tail, load64(lane + LANE.seen_consumed), 1)
    side_consumed = side_room(ring, position + whole_lines(nbytes), load64(lane + LANE.side_seen), side_bytes)
    if consumed < 0 or side_consumed < 0:
        return 0
    line = begin_aside(ring, ring_lines, tail, context, (tag << KIND_BITS) | ASIDE, nbytes, position)
    _write_aside(engine, lane, side + (position & (side_bytes - 1)), address, nbytes)
    store_release(line + MESSAGE.stamp, load64(engine + SHM.key) + tail)
    store64(lane + LANE.seen_consumed, consumed)
    store64(lane + LANE.tail, tail + 1)
    store64(lane + LANE.side_seen, side_consumed)
    store64(lane + LANE.side_tail, position + whole_lines(nbytes))
    return 1


@kernel("void(int64, int64, int64, int64, int64)")
def _write_aside(engine, lane, place, address, nbytes):  # type: ignore[no-untyped-def]
    """Write a payload with the kind of stores that is the faster one for this peer; now and then both are timed."""
    stores, turn = load64(lane + LANE.stores), 2 * SAMPLES
    if nbytes >= SAMPLED_FROM and load64(engine + SHM.stores_fixed) == 0:
        wides = load64(lane + LANE.wides)
        turn = (wides + SAMPLED_EVERY // 2) % SAMPLED_EVERY
        store64(lane + LANE.wides, wides + 1)
    if turn >= 2 * SAMPLES:
        write_shared(place, address, nbytes, load64(engine + SHM.streamed) if stores == 0 else stores - 1)
        return
    kind = turn // SAMPLES
    taken, least = time_write(place, address, nbytes, kind), lane + (LANE.plain_ticks if kind == 0 else LANE.streamed_ticks)
    store64(least, taken if turn % SAMPLES == 0 else min(taken, load64(least)))
    if turn == 2 * SAMPLES - 1:
        store64(lane + LANE.stores, judge_writes(load64(lane + LANE.plain_ticks), load64(lane + LANE.streamed_ticks), stores))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def send(engine, lane, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Write a message into the peer's ring (:mod:`transports.messages`); 1, or 0 if there is no room."""
    if kind == EAGER:
        return send_eager(engine, lane, context, tag, nbytes, first)
    ring, ring_lines = load64(lane + LANE.outbox), load64(engine + SHM.ring_lines)
    tail = load64(lane + LANE.tail)
    consumed = room(ring, ring_lines, tail, load64(lane + LANE.seen_consumed), 1)
    if consumed < 0:
        return 0
    push_control(ring, ring_lines, load64(engine + SHM.key), tail, context, (tag << KIND_BITS) | kind, nbytes, first, second, third)
    store64(lane + LANE.seen_consumed, consumed)
    store64(lane + LANE.tail, tail + 1)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def credit(engine, lane, released):  # type: ignore[no-untyped-def]
    """Let the peer see that `released` eager bytes of its have found their receive."""
    store_relaxed(load64(lane + LANE.inbox) + RING.released, released)
    return 1


@kernel("int64(int64)")
def credited(lane):  # type: ignore[no-untyped-def]
    """Eager bytes of this rank that have found their receive at the peer."""
    return load_relaxed(load64(lane + LANE.outbox) + RING.released)


@kernel("int64(int64, int64)")
def next_line(engine, lane):  # type: ignore[no-untyped-def]
    """The message that the peer has sent and that was not consumed yet: address of its line; 0 if there is none."""
    return peek(load64(lane + LANE.inbox), load64(engine + SHM.ring_lines), load64(engine + SHM.key), load64(lane + LANE.head))


@kernel("int64(int64, int64, int64)")
def payload_of(engine, lane, line):  # type: ignore[no-untyped-def]
    """Address of the payload of the message at `line`."""
    return line + MESSAGE.payload if is_aside(line) == 0 else _side_payload(engine, lane, line)


@kernel("int64(int64, int64, int64)")
def _side_payload(engine, lane, line):  # type: ignore[no-untyped-def]
    side, side_bytes = side_of(load64(lane + LANE.inbox), load64(engine + SHM.ring_lines)), load64(engine + SHM.side_bytes)
    if load64(lane + LANE.side_head) == 0:
        take_pages(side, side_bytes)
    return side + (load64(line + MESSAGE.payload) & (side_bytes - 1))


@kernel("int64(int64, int64, int64)")
def bytes_before_the_wrap(engine, lane, line):  # type: ignore[no-untyped-def]
    """Bytes of the payload of the message at `line` that lie at :func:`payload_of`; the rest is at :func:`beginning_of`."""
    if is_aside(line) != 0:
        return load64(line + MESSAGE.nbytes)
    end = beginning_of(lane) + load64(engine + SHM.ring_lines) * LINE
    return min(load64(line + MESSAGE.nbytes), end - line - MESSAGE.payload)


@kernel("int64(int64)")
def beginning_of(lane):  # type: ignore[no-untyped-def]
    """Address of the first line of the ring in which the peer's messages come."""
    return load64(lane + LANE.inbox) + RING.data


@kernel("void(int64, int64, int64)")
def consume_line(engine, lane, line):  # type: ignore[no-untyped-def]
    """Go on behind the message at `line`, which was taken."""
    ring, lines = load64(lane + LANE.inbox), 1
    if is_aside(line) != 0:
        _consume_side(engine, lane, line)
    elif kind_of(line) == EAGER:
        lines = lines_for(load64(line + MESSAGE.nbytes))
    head = load64(lane + LANE.head) + lines
    store64(lane + LANE.head, head)
    store64(
        lane + LANE.published, consume(ring + RING.consumed, load64(engine + SHM.ring_lines), head, load64(lane + LANE.published))
    )


@kernel("void(int64, int64, int64)")
def _consume_side(engine, lane, line):  # type: ignore[no-untyped-def]
    head = load64(line + MESSAGE.payload) + whole_lines(load64(line + MESSAGE.nbytes))
    word, whole = load64(lane + LANE.inbox) + RING.side_consumed, load64(engine + SHM.side_bytes)
    store64(lane + LANE.side_head, head)
    store64(lane + LANE.side_published, consume(word, whole, head, load64(lane + LANE.side_published)))


@kernel("int64(int64, int64, int64)")
def _hand_up(engine, lane, line):  # type: ignore[no-untyped-def]
    """Hand the message at `line` up; whether it was taken."""
    kind, payload = kind_of(line), line + MESSAGE.payload
    first, second, third = load64(payload), load64(payload + 8), load64(payload + 16)
    if kind == EAGER:
        first, second, third = payload_of(engine, lane, line), bytes_before_the_wrap(engine, lane, line), beginning_of(lane)
    context, tag, nbytes = load64(line + MESSAGE.context), tag_of(line), load64(line + MESSAGE.nbytes)
    return call_message(load64(engine + SHM.arrive), engine, lane, kind, context, tag, nbytes, first, second, third)


@kernel("void(int64)", is_entry=True)
def poll(engine):  # type: ignore[no-untyped-def]
    """Hand up what all peers have sent."""
    lane, stride = load64(engine + SHM.first_lane), load64(engine + SHM.lane_stride)
    for _ in range(load64(engine + SHM.lanes)):
        for _ in range(MESSAGES_A_TURN):
            line = next_line(engine, lane)
            if line == 0 or _hand_up(engine, lane, line) == 0:
                break
            consume_line(engine, lane, line)
        lane += stride

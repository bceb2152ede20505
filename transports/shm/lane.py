"""Messages of the matching engine over rings: what is sent goes into the peer's ring at once or not at all, what has come is handed up.

A *lane* is both directions between this rank and a peer of its node. Its words are private to the rank::

    rank 0                                             rank 1
      tail, seen_consumed -> outbox === ring 0 to 1 ===> inbox <- head, published
      head, published     -> inbox <=== ring 1 to 0 === outbox <- tail, seen_consumed

:data:`SHM` is the beginning of the engine's block, :data:`LANE` that of a peer's. The matching engine has the functions without an
underscore compiled into itself (:mod:`ncclx_mpi.p2p.inlined`), but for ``poll``, in place of which
:mod:`ncclx_mpi.p2p.inlined_arrivals` has a loop of its own that calls nothing by address.

Cost: see :mod:`transports.shm.ring`.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, load_relaxed, store64, store_relaxed
from numba_kernels.calls import call_message
from numba_kernels.jit import kernel
from numba_kernels.layout import LINE, WORD, words
from transports.messages import EAGER, ENGINE_WORDS, PEER_WORDS
from transports.shm.layout import RING
from transports.shm.ring import KIND_BITS, MESSAGE, consume, kind_of, lines_for, peek, push, push_control, room, tag_of

SHM = words(
    "Shm",
    # what the engine does for a transport, by C address
    "arrive clear_to_send finish "
    # where things are
    "first_lane lanes lane_stride arena heap_first heap_last "
    # `streamed`: bytes for peers are written past the caches; `stores_fixed`: the user has chosen that, else it is tried anew now and then
    "key ring_lines streamed stores_fixed ticks_per_us "
    # transfers under way, when one of them has moved, and receives that wait for a pipe (bulk.py)
    "active_count moved_at active_first starved_first starved_last bulk_free*4 first_pipe pipe_bytes "
    # a word by which peers make sure that a process is this rank; AUTO, PIPED or DIRECT; trials of the ways by size (shared.py, trial.py)
    "token copies trials*80",
)
LANE = words("Lane", "outbox tail seen_consumed control token reach mapped | inbox head published")
"""``control``: the peer's ``CONTROL`` block; ``token``: what stands where the peer says in it; ``reach``: whether the kernel copies between
the two processes, once that is known; ``mapped``: a bit for each pipe of the peer whose pages this process has."""
assert SHM.total <= ENGINE_WORDS * WORD and LANE.total <= PEER_WORDS * WORD

MESSAGES_A_TURN = 64
"""Of one peer, before the next one has its turn."""


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def send_eager(engine, lane, context, tag, nbytes, address):  # type: ignore[no-untyped-def]
    """Write a message with its `nbytes` of payload into the peer's ring; 1, or 0 if there is no room."""
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
def bytes_before_the_wrap(engine, lane, line):  # type: ignore[no-untyped-def]
    """Bytes of the payload of the message at `line` that lie there; the rest is at the ring's beginning, :func:`beginning_of`."""
    end = beginning_of(lane) + load64(engine + SHM.ring_lines) * LINE
    return min(load64(line + MESSAGE.nbytes), end - line - MESSAGE.payload)


@kernel("int64(int64)")
def beginning_of(lane):  # type: ignore[no-untyped-def]
    """Address of the first line of the ring in which the peer's messages come."""
    return load64(lane + LANE.inbox) + RING.data


@kernel("void(int64, int64, int64)")
def consume_line(engine, lane, line):  # type: ignore[no-untyped-def]
    """Go on behind the message at `line`, which was taken."""
    lines = lines_for(load64(line + MESSAGE.nbytes) if kind_of(line) == EAGER else 0)
    ring, head = load64(lane + LANE.inbox), load64(lane + LANE.head) + lines
    store64(lane + LANE.head, head)
    store64(lane + LANE.published, consume(ring, load64(engine + SHM.ring_lines), head, load64(lane + LANE.published)))


@kernel("int64(int64, int64, int64)")
def _hand_up(engine, lane, line):  # type: ignore[no-untyped-def]
    """Hand the message at `line` up; whether it was taken."""
    kind, payload = kind_of(line), line + MESSAGE.payload
    first, second, third = payload, bytes_before_the_wrap(engine, lane, line), beginning_of(lane)
    if kind != EAGER:
        first, second, third = load64(payload), load64(payload + 8), load64(payload + 16)
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

"""Messages of the matching engine over rings: what is sent goes into the peer's ring at once or not at all, what has come is handed up.

A *lane* is both directions between this rank and a peer of its node. Its words are private to the rank::

    rank 0                                             rank 1
      tail, seen_consumed -> outbox === ring 0 to 1 ===> inbox <- head, published
      head, published     -> inbox <=== ring 1 to 0 === outbox <- tail, seen_consumed

:data:`SHM` is the beginning of the engine's block, :data:`LANE` that of a peer's. The matching engine has the functions without an underscore
compiled into itself (:mod:`ncclx_mpi.p2p.inlined`), all but ``take_in``, which it calls by address.

Cost: see :mod:`transports.shm.ring`; a call by address for each message that arrives.
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
    # transfers under way, and receives that wait for a pipe (bulk.py)
    "active_count active_first starved_first starved_last bulk_free*4 "
    # a word by which peers make sure that a process is this rank; AUTO, PIPED or DIRECT; trials of the two by size (shared.py, trial.py)
    "token copies trials*64",
)
LANE = words("Lane", "outbox tail seen_consumed control token reach | inbox head published")
"""``control``: the peer's ``CONTROL`` block; ``token``: what stands where the peer says in it; ``reach``: whether the kernel copies between
the two processes, once that is known."""
assert SHM.total <= ENGINE_WORDS * WORD and LANE.total <= PEER_WORDS * WORD

_MESSAGES_A_TURN = 64


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
def is_next_here(engine, lane):  # type: ignore[no-untyped-def]
    """Whether the peer has sent something that was not handed up yet."""
    line = peek(load64(lane + LANE.inbox), load64(engine + SHM.ring_lines), load64(engine + SHM.key), load64(lane + LANE.head))
    return 1 if line != 0 else 0


@kernel("int64(int64, int64, int64, int64)")
def _hand_up(engine, lane, ring, line):  # type: ignore[no-untyped-def]
    """Hand the message at `line` up; returns the lines that it takes, 0 if it has to stay."""
    arrive, kind, nbytes = load64(engine + SHM.arrive), kind_of(line), load64(line + MESSAGE.nbytes)
    payload, beginning = line + MESSAGE.payload, ring + RING.data
    length, first, second, third = 0, payload, 0, beginning
    if kind == EAGER:
        length, second = nbytes, min(nbytes, beginning + load64(engine + SHM.ring_lines) * LINE - payload)
    else:
        first, second, third = load64(payload), load64(payload + 8), load64(payload + 16)
    taken = call_message(arrive, engine, lane, kind, load64(line + MESSAGE.context), tag_of(line), nbytes, first, second, third)
    return lines_for(length) if taken != 0 else 0


@kernel("void(int64, int64)")
def _poll(engine, lane):  # type: ignore[no-untyped-def]
    """Hand up what the peer has sent."""
    ring, ring_lines, key = load64(lane + LANE.inbox), load64(engine + SHM.ring_lines), load64(engine + SHM.key)
    for _ in range(_MESSAGES_A_TURN):
        head = load64(lane + LANE.head)
        line = peek(ring, ring_lines, key, head)
        if line == 0:
            return
        taken = _hand_up(engine, lane, ring, line)
        if taken == 0:
            return
        head += taken
        store64(lane + LANE.head, head)
        store64(lane + LANE.published, consume(ring, ring_lines, head, load64(lane + LANE.published)))


@kernel("void(int64)", is_entry=True)
def take_in(engine):  # type: ignore[no-untyped-def]
    """Hand up what all peers have sent."""
    lane, stride = load64(engine + SHM.first_lane), load64(engine + SHM.lane_stride)
    for _ in range(load64(engine + SHM.lanes)):
        _poll(engine, lane)
        lane += stride

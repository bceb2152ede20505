"""Single-producer, single-consumer message rings of 64-byte lines, one for each ordered pair of ranks.

::

    line t:   | stamp | context | tag, kind | nbytes | 32 bytes of payload |      header of a message
    line t+1: | payload goes on ...                                         |
    line t+k: | stamp of the next message

A message of up to 32 bytes is one line: one transfer between the cores. A line is a message's header once its first word holds
``key + position`` of that line; positions count lines since start and never repeat, and ``key`` is 64-bit
random, so neither an old header nor payload of an earlier lap is taken for a new one (but with probability 2^-64).

====================  ===========  ===========  ===========================================================
word                  written by   polled by    order
====================  ===========  ===========  ===========================================================
stamp of a line       sender       receiver     release after the whole message (sfence where it was streamed), acquire
``RING.consumed``     receiver     sender       release after the payload was copied out, acquire; every quarter ring
``RING.released``     receiver     sender       relaxed: eager bytes that found their receive, a credit only
====================  ===========  ===========  ===========================================================

Everything else about a ring (tail, head, cached counters) is private to its two ends, in the words of a lane (:mod:`transports.shm.lane`).
Cost: one line transfer a message up to 32 bytes; copies at memory speed beyond.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, load_acquire, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.layout import LINE, words
from numba_kernels.memory import write_shared
from transports.messages import EAGER, REVOKE
from transports.shm.layout import RING

MESSAGE = words("Message", "stamp context tag nbytes payload*4")
INLINE = 32
KIND_BITS = 4
_KIND_MASK = (1 << KIND_BITS) - 1
ASIDE = 15
"""Kind, in a ring, of an EAGER message whose payload stands in the side ring (:mod:`transports.shm.side`)."""
assert REVOKE < ASIDE <= _KIND_MASK


@kernel("int64(int64)")
def lines_for(nbytes):  # type: ignore[no-untyped-def]
    """Lines that a message with `nbytes` of payload takes."""
    return (INLINE + nbytes + LINE - 1) // LINE


@kernel("int64(int64, int64, int64, int64, int64)")
def room(ring, ring_lines, tail, seen_consumed, need):  # type: ignore[no-untyped-def]
    """The receiver's ``consumed`` if `need` lines fit behind `tail`, else -1; rereads it only when the cached one is too old."""
    if tail + need - seen_consumed <= ring_lines:
        return seen_consumed
    consumed = load_acquire(ring + RING.consumed)
    if tail + need - consumed <= ring_lines:
        return consumed
    return -1


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def push(ring, ring_lines, key, tail, context, tag_kind, nbytes, source, length, streamed):  # type: ignore[no-untyped-def]
    """Write a message at `tail`, where there is room: `length` bytes of payload from `source`; `nbytes` is the header's word."""
    data = ring + RING.data
    line = data + (tail & (ring_lines - 1)) * LINE
    store64(line + MESSAGE.context, context)
    store64(line + MESSAGE.tag, tag_kind)
    store64(line + MESSAGE.nbytes, nbytes)
    if length > 0:
        until_end = data + ring_lines * LINE - (line + MESSAGE.payload)
        first = min(length, until_end)
        write_shared(line + MESSAGE.payload, source, first, streamed)
        if first < length:
            write_shared(data, source + first, length - first, streamed)
    store_release(line + MESSAGE.stamp, key + tail)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def begin_aside(ring, ring_lines, tail, context, tag_kind, nbytes, position):  # type: ignore[no-untyped-def]
    """Begin a message at `tail` whose payload stands elsewhere: the address of its line, which gets its stamp when the payload is there.

    The line's words go first: its writer takes it back from the receiver, who polls it, while the payload is on its way.
    """
    line = ring + RING.data + (tail & (ring_lines - 1)) * LINE
    store64(line + MESSAGE.context, context)
    store64(line + MESSAGE.tag, tag_kind)
    store64(line + MESSAGE.nbytes, nbytes)
    store64(line + MESSAGE.payload, position)
    return line


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def push_control(ring, ring_lines, key, tail, context, tag_kind, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Write a message without user data: three words where the payload would be."""
    line = ring + RING.data + (tail & (ring_lines - 1)) * LINE
    store64(line + MESSAGE.context, context)
    store64(line + MESSAGE.tag, tag_kind)
    store64(line + MESSAGE.nbytes, nbytes)
    store64(line + MESSAGE.payload, first)
    store64(line + MESSAGE.payload + 8, second)
    store64(line + MESSAGE.payload + 16, third)
    store_release(line + MESSAGE.stamp, key + tail)


@kernel("int64(int64, int64, int64, int64)")
def peek(ring, ring_lines, key, head):  # type: ignore[no-untyped-def]
    """Address of the message at `head`, 0 if it has not come."""
    line = ring + RING.data + (head & (ring_lines - 1)) * LINE
    if load_acquire(line + MESSAGE.stamp) == key + head:
        return line
    return 0


@kernel("int64(int64, int64, int64, int64)")
def consume(word, whole, head, published):  # type: ignore[no-untyped-def]
    """Tell the sender, in its `word`, what was read of a ring, once that is a quarter of the `whole`. Returns what it knows."""
    if head - published >= whole // 4:
        store_release(word, head)
        return head
    return published


@kernel("int64(int64)")
def tag_of(line):  # type: ignore[no-untyped-def]
    return load64(line + MESSAGE.tag) >> KIND_BITS


@kernel("int64(int64)")
def kind_of(line):  # type: ignore[no-untyped-def]
    kind = load64(line + MESSAGE.tag) & _KIND_MASK
    return EAGER if kind == ASIDE else kind


@kernel("int64(int64)")
def is_aside(line):  # type: ignore[no-untyped-def]
    return 1 if load64(line + MESSAGE.tag) & _KIND_MASK == ASIDE else 0

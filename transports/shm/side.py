"""Side rings: where the payloads of eager messages over 1 KiB stand once a rank sends them often. One for each ring of messages, behind it.

::

    ring:       | stamp | context | tag, kind | nbytes | position |      a message: one line
    side ring:  ... | payload | payload | payload |  <- behind the one before, or at the beginning if it does not fit

A line that its reader has read is in that reader's second-level cache; from there its writer gets it back slowly. A side ring is larger than
such a cache, so that a line was evicted when it is written again: 8 KiB from one near core to another and back take 0.6 us instead of 2.1
(design/046). Small messages stay in their ring, which is small on purpose: it takes no room from the program in the caches.

========================  ===========  ===========  ===========================================================
word                      written by   polled by    order
========================  ===========  ===========  ===========================================================
stamp of the line         sender       receiver     release after payload and line (sfence where it was streamed), acquire
``RING.side_consumed``    receiver     sender       release after the payload was copied out, acquire; every quarter of the side ring
========================  ===========  ===========  ===========================================================

Positions count bytes since start. T = one line transfer + nbytes / bandwidth.
"""

from __future__ import annotations

from numba_kernels.atomics import load_acquire
from numba_kernels.jit import kernel
from numba_kernels.layout import LINE
from transports.shm.layout import PAGE, RING

SIDE_FROM = 1 << 10
"""Bytes of the largest message that never goes aside."""
FEW_WIDES, NEVER, STREAMED_SHIFT = 1024, 1 << 58, 4
"""Larger messages to a peer before they go aside, which saves some 0.7 us of each and costs a millisecond for the pages; 16 times as many
where stores are streamed, which saves little, but lets their kind be judged. Never where ranks share cores: there the small ring is in the
caches of both."""


@kernel("int64(int64, int64)")
def side_of(ring, ring_lines):  # type: ignore[no-untyped-def]
    """Address of the side ring of a ring."""
    return ring + PAGE + ring_lines * LINE


@kernel("int64(int64, int64, int64)")
def place_at(position, nbytes, side_bytes):  # type: ignore[no-untyped-def]
    """The first position from `position` on at which `nbytes` stand in a row."""
    left = side_bytes - (position & (side_bytes - 1))
    return position if nbytes <= left else position + left


@kernel("int64(int64, int64, int64, int64)")
def side_room(ring, end, seen, side_bytes):  # type: ignore[no-untyped-def]
    """The receiver's ``side_consumed`` if there is room up to `end`, else -1; rereads it only when the one last `seen` is too old."""
    if end - seen <= side_bytes:
        return seen
    consumed = load_acquire(ring + RING.side_consumed)
    return consumed if end - consumed <= side_bytes else -1

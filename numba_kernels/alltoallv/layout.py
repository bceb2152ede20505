"""What the all-to-all with counts read at execution keeps in memory, in 64-bit words: one definition for Python, CPU and GPU."""

from __future__ import annotations

from numba_kernels.layout import LINE, WORD, words

CALL = words(
    "Call",
    # who takes part: own rank, ranks, split lengths in one row of the table of splits
    "rank size segments "
    # metadata of the caller, read when the operation executes: address and kind (see integer_at)
    "splits splits_kind indices indices_kind most_indices blocklengths blocklengths_kind "
    # row of the splits that belongs to peer p: p * row_step; without indices, its segments: `taken` from first + p * first_step on
    "row_step first first_step taken "
    # DENSE_SOURCE, DENSE_TARGET
    "form "
    # int64[2 * size] each: capacity in elements for each peer, then the address of each peer's area
    "send_places recv_places itemsize "
    # where the splits of all ranks go, int64[size * segments]; 0 if they are not wanted
    "all_splits "
    # what is told to each peer, and what each told
    "offers answers "
    # PAIR for each peer, and RUN[size * most_runs], of what is sent and of what is received
    "outgoing incoming outgoing_runs incoming_runs most_runs "
    # pairs with this rank that move nothing because something is wrong
    "faults "
    # the host's way: packed memory and its bytes, rows of the exchange, first step of the plan that moves data
    "packed packed_bytes rows steps",
)

OFFER = words("Offer", "capacity itemsize form fault segment needed limit")
"""What a rank tells a peer; the split lengths (a word each) and the set of segments that it sends there (a bit each) follow.

``capacity``: elements that the peer may send here. ``fault``, ``segment``, ``needed``, ``limit``: what is wrong about it.
"""

PAIR = words("Pair", "fault segment needed limit source target nbytes runs")
"""What moves between two ranks: the addresses that offsets of runs count from, as far as this rank knows them, bytes and runs."""

RUN = words("Run", "source target packed nbytes")
"""One piece without gaps: byte offsets at the sender, at the receiver, and in the stream of all runs of the pair."""

PAIRING = words("Pairing", "capacity itemsize call peer target outgoing incoming all_splits")
"""One pair as an executor sees it, from what stands in the memory of both of its ranks.

``capacity``, ``itemsize``: what the target grants, as in ``OFFER``. ``call``: of the source, a ``CALL``; ``peer``: the target in it.
``target``: address of the area. ``outgoing``, ``incoming``: a ``FAULT`` that the host of the source reads, and one for that of the
target. ``all_splits``: where the source's split lengths go, 0 if they are not wanted.
"""

WALKERS = 32
"""Threads that walk over the split lengths of a pair together, a stretch each."""
LEAST_STRETCH = 8
"""Split lengths of a stretch, if there are so many; joining stretches costs as much as walking over some."""

STRETCH = words("Stretch", "sum elements last runs wrong offset before first")
"""What a walker has found in its stretch, and what precedes it.

``sum``: of the split lengths, -1 if one is none. ``elements``, ``last``, ``runs``: as :func:`numba_kernels.alltoallv.plan.walk` counts
them. ``wrong``: position of an index that is no segment, -1 if there is none. ``offset``, ``before``, ``first``: sums, elements and
runs of all stretches before it.
"""

WORKSPACE = words("Workspace", f"pair*{PAIR.total // WORD} begin listed block stretches*{WALKERS * STRETCH.total // WORD}")
"""What the threads that move a part of a pair find about it; an ``OFFER`` with its lengths, then the runs, follow.

``begin``, ``listed``, ``block``: as :func:`numba_kernels.alltoallv.plan.find_block` returns them.
"""

FAULT = words("Fault", "fault segment needed limit")
"""Why a pair moved nothing; ``fault`` is 0 as long as it moved.

Written when something goes wrong, ``fault`` last; that word is set back by the host that has read it.
"""

DENSE_SOURCE, DENSE_TARGET = 1, 2
"""The segments for a peer stand one after another from the begin of its area, without holes for those that are not for it."""

FINE, SPLIT, INDEX, BLOCK, SEND, RECEIVE, ITEM = range(7)
"""Faults: a split length that is no length; an index that is no segment; a block length that the indices do not have; segments
that reach beyond the send buffer; ... beyond the room that the receiver gives; elements of different sizes."""

MOST_ELEMENTS = 1 << 48
"""Sum of the split lengths of a rank above which they are taken for garbage."""


def offer_bytes(segments: int) -> int:
    """Bytes of one offer."""
    return int(OFFER.total + WORD * (segments + (segments + 63) // 64))


def most_runs(segments: int, stretches: int = 1) -> int:
    """Runs that a pair can have: neighbours in a stretch join, so there is a segment between any two."""
    return (segments + stretches) // 2


def workspace_bytes(segments: int) -> int:
    """Bytes of a workspace; no two share a cache line."""
    nbytes = WORKSPACE.total + offer_bytes(segments) + most_runs(segments, WALKERS) * RUN.total
    return int(-(-nbytes // LINE) * LINE)


def tables(size: int, segments: int) -> dict[str, int]:
    """Bytes of the tables that a call refers to, by the word of ``CALL`` that has their address."""
    runs = size * most_runs(segments) * RUN.total
    return {
        "offers": size * offer_bytes(segments),
        "answers": size * offer_bytes(segments),
        "outgoing": size * PAIR.total,
        "incoming": size * PAIR.total,
        "outgoing_runs": runs,
        "incoming_runs": runs,
        "send_places": 2 * size * WORD,
        "recv_places": 2 * size * WORD,
    }

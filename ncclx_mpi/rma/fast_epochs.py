"""Epochs among some ranks of a window in one compiled call each: Start and Complete at the origin, Post, Wait and Test at the target.

::

    target t                                                 origin o
    Post      posted[o] of t += 1       ------------------>  Start     until posted[o] of t > completed[t] of o
                 memory of t            <------------------  Put, Accumulate, ...
    Wait      until completed[t] of o   <------------------  Complete  completed[t] of o += 1
                    >= posted[o] of t

Each rank has two counters for each rank of the window, in its part of the arena: how often it has posted to that one, and how often it
has completed an access to it. They never go back, and an epoch is over before the next one of the same pair begins, so a count is the
number of the epoch: posts that come early wait for their Start, and those of other groups are other counters. A Start or Wait that was
given up has counted nothing, and leaves the pair as it was.

| words | where | written, with release | polled, with acquire |
|---|---|---|---|
| ``posted`` | table of the target, in the arena | by the target, in Post | by the origin, in Start |
| ``completed`` | table of the origin, in the arena | by the origin, in Complete | by the target, in Wait and Test |
| ``CONTROL.counters`` | control words of a rank | by that rank, once its table is there | by who waits for it first, until it is not 0 |
| ``WINDOW.started``, ``exposed``, lists | private | by threads of one process, under the GIL | by none |

The table is made when a rank begins its first epoch. T = 2 alpha, a line of counters there and one back, and what the accesses take; both
ends of a pair may be origin and target at once, and then these overlap.

Ranks that are far tell each other by messages (:mod:`ncclx_mpi.rma.epochs`): a group with one returns SLOW until Python is done with those.
A program that asserts MODE_NOCHECK, and is right, finds that nothing has to be waited for.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import GIVEN_UP
from ncclx_mpi.p2p.layout import BROKEN, COMM, OPERATIONS, PEER, PEER_LEFT
from ncclx_mpi.p2p.progress import progress, trace_begin, trace_end, trouble
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.waiting import wait_word
from ncclx_mpi.rma.fast import ASSERTIONS, SLOW, integer_at
from ncclx_mpi.rma.layout import CHANGING, CLOSED, CONTROL, OPEN, TARGET, WINDOW
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.layout import LINE, WORD
from numba_kernels.memory import make_stack
from numba_kernels.pyobject import OB_SIZE, index_argument, index_of, object_argument, object_of
from numba_kernels.pysequence import items_of

PENDING = 1
"""Of :func:`test`: some origin has not completed its accesses."""
_RECEIVE = OPERATIONS.index("recv")
_ANY_TAG = -1

_word = make_stack(1)


def counters_bytes(size: int) -> int:
    """Bytes of the counters of a rank in a window of `size` ranks."""
    return 2 * int(_row_bytes.py_func(size))


@kernel("int64(int64)")
def _row_bytes(size):  # type: ignore[no-untyped-def]
    """Bytes from ``posted`` to ``completed``: they share no line, as they are written and polled at different times."""
    return (size * WORD + LINE - 1) // LINE * LINE


@kernel("int64(int64)")
def _size(window):  # type: ignore[no-untyped-def]
    return load64(load64(window + WINDOW.comm) + COMM.size)


@kernel("int64(int64)")
def _own_rank(window):  # type: ignore[no-untyped-def]
    return load64(load64(window + WINDOW.comm) + COMM.rank)


@kernel("int64(int64, int64)")
def _target(window, rank):  # type: ignore[no-untyped-def]
    return window + WINDOW.total + rank * TARGET.total


@kernel("int64(int64, int64)")
def _posted(counters, rank):  # type: ignore[no-untyped-def]
    """Where a rank counts its posts to `rank`."""
    return counters + rank * WORD


@kernel("int64(int64, int64, int64)")
def _completed(window, counters, rank):  # type: ignore[no-untyped-def]
    """Where a rank counts the accesses to `rank` that it has completed."""
    return counters + _row_bytes(_size(window)) + rank * WORD


# Who takes part --------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def _rank_of(window, world):  # type: ignore[no-untyped-def]
    """The rank that a world rank has in a window; -1 for none. In most windows it is the same number."""
    size, ranks = load64(window + WINDOW.size), load64(load64(window + WINDOW.comm) + COMM.world)
    if 0 <= world < size and load64(ranks + world * WORD) == world:
        return world
    for rank in range(size):
        if load64(ranks + rank * WORD) == world:
            return rank
    return -1


@kernel("int64(int64, int64, int64)")
def _list_near(window, group, members):  # type: ignore[no-untyped-def]
    """Write the ranks that a tuple of world ranks has in a window to `members`: how many; SLOW unless all are near."""
    items, scratch = items_of(group), _word()
    count = load64(group + OB_SIZE) if items != 0 else 0
    if items == 0 or count > load64(window + WINDOW.size):
        return SLOW
    for index in range(count):
        rank = _rank_of(window, integer_at(load64(items + index * WORD), scratch))
        if rank < 0 or load64(_target(window, rank) + TARGET.lock) == 0:
            return SLOW
        store64(members + index * WORD, rank)
    return count


@kernel("int64(int64, int64)")
def _can_begin(window, epoch):  # type: ignore[no-untyped-def]
    """Whether an epoch, named by the word that says whether it is open, can be begun here."""
    can = load64(window + WINDOW.size) != 0 and load64(window + WINDOW.counters) != 0
    return 1 if can and load64(window + epoch) == CLOSED else 0


@kernel("int64(int64, int64, int64)")
def _can_end(window, epoch, far):  # type: ignore[no-untyped-def]
    """Whether an epoch can be ended here."""
    can = load64(window + WINDOW.size) != 0 and load64(window + far) == 0
    return 1 if can and load64(window + epoch) == OPEN else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _list_epoch(window, group, assertion, epoch, members):  # type: ignore[no-untyped-def]
    """List a tuple of world ranks for an epoch, behind whose list stand how many they are and how many are far: 0, or SLOW."""
    if assertion & ~ASSERTIONS != 0 or _can_begin(window, epoch) == 0:
        return SLOW
    count = _list_near(window, group, load64(window + members))
    if count < 0:
        return SLOW
    store64(window + members + WORD, count)
    store64(window + members + 2 * WORD, 0)
    return 0


# Waiting ---------------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64, int64)")
def _await(window, rank, word, least):  # type: ignore[no-untyped-def]
    """Wait until a word of a rank is at least so much: 0, or why that was given up."""
    if load_acquire(word) >= least:
        return 0
    comm = load64(window + WINDOW.comm)
    engine = load64(comm + COMM.engine)
    gone = peer_of(engine, load64(load64(comm + COMM.world) + rank * WORD)) + PEER.gone
    record = trace_begin(engine, _RECEIVE, load64(comm + COMM.context), rank, _ANY_TAG, 0)
    code = wait_word(comm, word, least, gone)
    if code == 0:
        trace_end(record)
    return PEER_LEFT if code == BROKEN and load64(gone) != 0 else code


@kernel("int64(int64, int64)")
def _counters_of(window, target):  # type: ignore[no-untyped-def]
    """Address of the counters of a near rank; 0 as long as it has none."""
    known = load64(target + TARGET.counters)
    if known != 0:
        return known
    where = load_acquire(load64(target + TARGET.lock) - CONTROL.lock + CONTROL.counters)
    if where == 0:
        return 0
    store64(target + TARGET.counters, load64(window + WINDOW.arena) + where)
    return load64(target + TARGET.counters)


@kernel("int64(int64, int64)")
def _await_counters(window, rank):  # type: ignore[no-untyped-def]
    """Wait until a near rank has counters: 0, or why that was given up."""
    target = _target(window, rank)
    if _counters_of(window, target) != 0:
        return 0
    return _await(window, rank, load64(target + TARGET.lock) - CONTROL.lock + CONTROL.counters, 1)


@kernel("int64(int64, int64)")
def _await_post(window, rank):  # type: ignore[no-untyped-def]
    """Wait until a target has posted to this rank: 0, or why that was given up."""
    code = _await_counters(window, rank)
    if code != 0:
        return code
    there, done = _counters_of(window, _target(window, rank)), _completed(window, load64(window + WINDOW.counters), rank)
    return _await(window, rank, _posted(there, _own_rank(window)), load64(done) + 1)


@kernel("int64(int64, int64)")
def _await_completion(window, rank):  # type: ignore[no-untyped-def]
    """Wait until an origin has completed its accesses to this rank: 0, or why that was given up."""
    code = _await_counters(window, rank)
    if code != 0:
        return code
    there = _counters_of(window, _target(window, rank))
    asked = load64(_posted(load64(window + WINDOW.counters), rank))
    return _await(window, rank, _completed(window, there, _own_rank(window)), asked)


@kernel("int64(int64, int64)")
def _is_completed(window, rank):  # type: ignore[no-untyped-def]
    """Whether an origin has completed its accesses to this rank, or tells by messages that it has."""
    target = _target(window, rank)
    if load64(target + TARGET.lock) == 0:
        return 1
    there = _counters_of(window, target)
    if there == 0:
        return 0
    asked = load64(_posted(load64(window + WINDOW.counters), rank))
    return 1 if load_acquire(_completed(window, there, _own_rank(window))) >= asked else 0


# The origin ------------------------------------------------------------------------------------------------------------


@kernel("int64(int64)")
def _await_posts(window):  # type: ignore[no-untyped-def]
    members = load64(window + WINDOW.access)
    for index in range(load64(window + WINDOW.access_count)):
        rank = load64(members + index * WORD)
        code = _await_post(window, rank) if load64(_target(window, rank) + TARGET.lock) != 0 else 0
        if code != 0:
            return code
    return 0


@kernel("void(int64, int64)")
def _note_started(window, value):  # type: ignore[no-untyped-def]
    members = load64(window + WINDOW.access)
    for index in range(load64(window + WINDOW.access_count)):
        store64(_target(window, load64(members + index * WORD)) + TARGET.started, value)


@kernel("int64(int64)", is_entry=True, nogil=False)
def begin_access(window):  # type: ignore[no-untyped-def]
    """Begin an access epoch for the ranks that are listed, as soon as those that are near have posted: 0, SLOW, GIVEN_UP less a code."""
    if _can_begin(window, WINDOW.started) == 0:
        return SLOW
    store64(window + WINDOW.started, CHANGING)
    code = _await_posts(window)
    store64(window + WINDOW.started, CLOSED if code != 0 else OPEN)
    if code != 0:
        return GIVEN_UP - code
    _note_started(window, 1)
    return 0


@kernel(types.int64(types.int64, object_argument, index_argument), is_entry=True, nogil=False)
def start(window, group, assertion):  # type: ignore[no-untyped-def]
    """Begin an access epoch for a tuple of world ranks: as :func:`begin_access`."""
    code = _list_epoch(window, object_of(group), index_of(assertion), WINDOW.started, WINDOW.access)
    return code if code != 0 else begin_access(window)


@kernel("int64(int64)", is_entry=True, nogil=False)
def complete(window):  # type: ignore[no-untyped-def]
    """End the access epoch, and tell the targets that are near: 0, or SLOW."""
    if _can_end(window, WINDOW.started, WINDOW.access_far) == 0:
        return SLOW
    _note_started(window, 0)
    own, members = load64(window + WINDOW.counters), load64(window + WINDOW.access)
    for index in range(load64(window + WINDOW.access_count)):
        word = _completed(window, own, load64(members + index * WORD))
        store_release(word, load64(word) + 1)
    store64(window + WINDOW.started, CLOSED)
    return 0


# The target ------------------------------------------------------------------------------------------------------------


@kernel("int64(int64)", is_entry=True, nogil=False)
def begin_exposure(window):  # type: ignore[no-untyped-def]
    """Begin an exposure epoch for the ranks that are listed, and tell those that are near: 0, or SLOW."""
    if _can_begin(window, WINDOW.exposed) == 0:
        return SLOW
    own, members = load64(window + WINDOW.counters), load64(window + WINDOW.exposure)
    for index in range(load64(window + WINDOW.exposure_count)):
        word = _posted(own, load64(members + index * WORD))
        store_release(word, load64(word) + 1)
    store64(window + WINDOW.exposed, OPEN)
    return 0


@kernel(types.int64(types.int64, object_argument, index_argument), is_entry=True, nogil=False)
def post(window, group, assertion):  # type: ignore[no-untyped-def]
    """Begin an exposure epoch for a tuple of world ranks: as :func:`begin_exposure`."""
    code = _list_epoch(window, object_of(group), index_of(assertion), WINDOW.exposed, WINDOW.exposure)
    return code if code != 0 else begin_exposure(window)


@kernel("int64(int64)")
def _await_completions(window):  # type: ignore[no-untyped-def]
    members = load64(window + WINDOW.exposure)
    for index in range(load64(window + WINDOW.exposure_count)):
        rank = load64(members + index * WORD)
        code = _await_completion(window, rank) if load64(_target(window, rank) + TARGET.lock) != 0 else 0
        if code != 0:
            return code
    return 0


@kernel("int64(int64)", is_entry=True, nogil=False)
def wait(window):  # type: ignore[no-untyped-def]
    """End the exposure epoch when all origins have completed theirs: 0, SLOW, GIVEN_UP less a code, and the epoch is over, too."""
    if _can_end(window, WINDOW.exposed, WINDOW.exposure_far) == 0:
        return SLOW
    store64(window + WINDOW.exposed, CHANGING)
    code = _await_completions(window)
    store64(window + WINDOW.exposed, CLOSED)
    return 0 if code == 0 else GIVEN_UP - code


@kernel("int64(int64)")
def _first_pending(window):  # type: ignore[no-untyped-def]
    """The first origin that has not completed its accesses; -1 for none."""
    members = load64(window + WINDOW.exposure)
    for index in range(load64(window + WINDOW.exposure_count)):
        rank = load64(members + index * WORD)
        if _is_completed(window, rank) == 0:
            return rank
    return -1


@kernel("int64(int64, int64)")
def _why_pending(window, rank):  # type: ignore[no-untyped-def]
    """What the exposure epoch waits for: PENDING, or GIVEN_UP less the code for which a wait would be given up."""
    comm = load64(window + WINDOW.comm)
    engine = load64(comm + COMM.engine)
    code = trouble(engine)
    if code == 0 and load64(comm + COMM.ended) != 0:
        code = BROKEN
    gone = load64(peer_of(engine, load64(load64(comm + COMM.world) + rank * WORD)) + PEER.gone)
    if code == 0 and gone != 0 and _is_completed(window, rank) == 0:
        code = PEER_LEFT
    return PENDING if code == 0 else GIVEN_UP - code


@kernel("int64(int64)", is_entry=True, nogil=False)
def test(window):  # type: ignore[no-untyped-def]
    """End the exposure epoch if all origins have completed theirs: 0, PENDING, SLOW, GIVEN_UP less a code."""
    if _can_end(window, WINDOW.exposed, WINDOW.exposure_far) == 0:
        return SLOW
    if _first_pending(window) >= 0:
        progress(load64(load64(window + WINDOW.comm) + COMM.engine))
        pending = _first_pending(window)
        if pending >= 0:
            return _why_pending(window, pending)
    store64(window + WINDOW.exposed, CLOSED)
    return 0


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def have_counters(window, address):  # type: ignore[no-untyped-def]
    """Let other ranks see this rank's counters, zeroed memory of the arena: 0; SLOW if another thread has made them meanwhile."""
    if load64(window + WINDOW.counters) != 0:
        return SLOW
    own = _target(window, _own_rank(window))
    store64(window + WINDOW.counters, address)
    store64(own + TARGET.counters, address)
    store_release(load64(own + TARGET.lock) - CONTROL.lock + CONTROL.counters, address - load64(window + WINDOW.arena))
    return 0

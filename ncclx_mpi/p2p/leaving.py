"""Ranks that take part no longer, in a communicator or at all, and how another one that waits for them hears of it.

::

    who waits                                     who has left a communicator (freed it, or gave a collective on it up)
      ASK {context, number} --------------------> looks into its table
      <------------------ ANSWER {context, number, what the table says: 0 as long as it may take part}
                                                  who leaves the job
      <------------------ GOODBYE                 to every peer that it was in touch with, behind all else that it has sent

Questions take messages only where somebody waits, for a whole slice, where announcing each end of a communicator would take one to every rank
of it. A wait has one question under way at a time, so a peer that computes for an hour has one of it to answer.

The table is a ring of the last :data:`MOST_LEFT` communicators; who asks for an older one waits as if it never had. Numbers are those of
collectives by plans: a communicator is left *before* those of a higher number than the calls that the table says.

All functions run under the engine's lock.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE, LEFT, PEER
from ncclx_mpi.p2p.progress import lock, unlock
from ncclx_mpi.p2p.rendezvous import peer_of, tell
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_five
from numba_kernels.jit import kernel
from transports.messages import ANSWER, ASK, GOODBYE

MOST_LEFT = 4096
GONE = -1 << 62
"""What is said of a rank that has left the job."""


@kernel("void(int64, int64, int64, int64)", is_entry=True)
def note_left(engine, context, calls, is_given_up):  # type: ignore[no-untyped-def]
    """Remember that this rank takes part in no collective on a communicator after the first `calls` of them."""
    lock(engine)
    count = load64(engine + ENGINE.left_count)
    entry = load64(engine + ENGINE.left) + count % MOST_LEFT * LEFT.total
    store64(entry + LEFT.context, context)
    store64(entry + LEFT.calls, calls)
    store64(entry + LEFT.word, -1 - calls if is_given_up != 0 else 1 + calls)
    store64(engine + ENGINE.left_count, count + 1)
    unlock(engine)


@kernel("int64(int64, int64, int64)")
def _said_of(engine, context, number):  # type: ignore[no-untyped-def]
    """What the table says of collective `number` on a communicator: 0, or the word with which this rank has left before it."""
    for index in range(min(load64(engine + ENGINE.left_count), MOST_LEFT)):
        entry = load64(engine + ENGINE.left) + index * LEFT.total
        if load64(entry + LEFT.context) == context and load64(entry + LEFT.calls) < number:
            return load64(entry + LEFT.word)
    return 0


@kernel("int64(int64, int64)")
def has_left(engine, world_rank):  # type: ignore[no-untyped-def]
    """Whether a rank has left the job: it answers no more."""
    return load64(peer_of(engine, world_rank) + PEER.gone)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def ask(engine, world_rank, context, number):  # type: ignore[no-untyped-def]
    """Ask a rank whether it has left a communicator before collective `number`: 0, the answer will come, or GONE: it has left the job."""
    if has_left(engine, world_rank) != 0:
        return GONE
    tell(engine, peer_of(engine, world_rank), ASK, context, number, 0)
    return 0


@kernel("void(int64, int64, int64, int64, int64, int64)")
def arrive_of_leaving(engine, peer, kind, context, number, word):  # type: ignore[no-untyped-def]
    """Take a question, an answer, or a farewell in."""
    if kind == ASK:
        tell(engine, peer, ANSWER, context, number, _said_of(engine, context, number))
    elif kind == GOODBYE:
        store64(peer + PEER.gone, 1)
    elif kind == ANSWER and load64(engine + ENGINE.take_answer) != 0:
        call_five(load64(engine + ENGINE.take_answer), engine, load64(peer + PEER.world), context, number, word)


@kernel("void(int64)", is_entry=True)
def say_goodbye(engine):  # type: ignore[no-untyped-def]
    """Tell all peers that this rank leaves the job: nothing comes after what it has sent."""
    lock(engine)
    for rank in range(load64(engine + ENGINE.nranks)):
        if rank != load64(engine + ENGINE.rank):
            tell(engine, peer_of(engine, rank), GOODBYE, 0, 0, 0)
    unlock(engine)

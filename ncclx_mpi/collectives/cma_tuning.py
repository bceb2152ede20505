"""Which way the bulk data of a collective goes: streams through the slot, or copies by the kernel between private buffers.

Before its first bulk collective a communicator meets twice: when all are there, each rank looks whether the kernel lets it reach all
others, and tells. If all can, both ways are tried in turn, unless one is forced, for each kind of collective and size class
(:mod:`transports.shm.trial`).

Where all ranks know the size class they go the same way: rank 0 tells which one was the faster for it. Which call is a trial, and which
one brings the verdict, follows from the number of calls, which all count alike. Where only the ends of a block know its size, the rank
that publishes where the blocks are chooses alone, and tells with them.
"""

from __future__ import annotations

from ncclx_mpi import algorithms
from ncclx_mpi.collectives.shm_oneshot import AGREED, BARRIER, EXSCAN, SCRATCH, arrive_all, begin, end, kind_of, payload
from ncclx_mpi.p2p.layout import COMM, ENGINE, PEER
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from transports.shm.lane import LANE, SHM
from transports.shm.shared import AUTO, DIRECT, PIPED, is_reached
from transports.shm.trial import WORDS, has_verdict, is_trial, next_way, note_time, settle, trial_of

ALLTOALLV = EXSCAN + 1
"""What :func:`choose_alone` takes for an exchange with counts: those of an alltoall are counted alike on all ranks."""
_KINDS = ALLTOALLV + 1 - BARRIER

WAYS = words("Ways", f"agreed looked shown*2 message*3 stores | trials*{_KINDS * WORDS}", start=COMM.ways)
"""Private words of a communicator: 0 before the ranks agreed, else 2 + what they agreed on; when Python's signals were looked at; the
last addresses that the kernel copied from; what is published next; the stores of the collective that is under way, for
:func:`transports.shm.shared.is_streamed`; the trials."""
assert WAYS.total <= COMM.forced

MOST_RANKS = 1023
"""Ranks up to which direct copies come into question: each publishes two words for every rank, and one more."""
DISAGREED = -2
"""What :func:`agreed_way` returns is less if the ranks could not agree."""
_UNKNOWN, _BASE = 0, 2


@kernel("int64(int64, int64, int64)")
def meet(comm, signature, message):  # type: ignore[no-untyped-def]
    """Publish a word and wait for those of all others. Returns the number of the meeting, or minus the code of a failure."""
    store64(comm + WAYS.message, message)
    number = begin(comm, signature, comm + WAYS.message, 8)
    if number < 0:
        return number
    code = arrive_all(comm, number, signature)
    return number if code == 0 else -end(comm, number, code)


@kernel("int64(int64, int64, int64)")
def word_of(comm, other, number):  # type: ignore[no-untyped-def]
    """What rank `other` published for a meeting that this rank has not ended."""
    return load64(payload(comm, other, number, 8))


@kernel("int64(int64, int64)")
def peer_at(comm, other):  # type: ignore[no-untyped-def]
    """The ``PEER`` block of rank `other`."""
    engine = load64(comm + COMM.engine)
    return load64(engine + ENGINE.peers) + load64(load64(comm + COMM.world) + 8 * other) * PEER.total


@kernel("int64(int64, int64)")
def control_at(comm, other):  # type: ignore[no-untyped-def]
    """The ``CONTROL`` block of rank `other`."""
    return load64(peer_at(comm, other) + LANE.control)


@kernel("int64(int64)")
def _own_vote(comm):  # type: ignore[no-untyped-def]
    engine, size = load64(comm + COMM.engine), load64(comm + COMM.size)
    for other in range(size):
        if other != load64(comm + COMM.rank) and is_reached(engine, peer_at(comm, other)) == 0:
            return PIPED
    return load64(engine + SHM.copies)


@kernel("int64(int64, int64)")
def _agree(comm, signature):  # type: ignore[no-untyped-def]
    """Agree on AUTO, PIPED or DIRECT: rank 0's setting, or PIPED if anybody says so. 0 or the code of a failure."""
    number = meet(comm, signature, 0)
    if number < 0:
        return -number
    end(comm, number, 0)
    number = meet(comm, signature, _own_vote(comm))
    if number < 0:
        return -number
    agreed = word_of(comm, 0, number)
    for other in range(load64(comm + COMM.size)):
        if word_of(comm, other, number) == PIPED:
            agreed = PIPED
    store64(comm + WAYS.agreed, agreed + _BASE)
    return end(comm, number, 0)


@kernel("int64(int64, int64)")
def agreed_way(comm, signature):  # type: ignore[no-untyped-def]
    """AUTO, PIPED or DIRECT, alike on all ranks, which agree on it the first time; or `DISAGREED` less the code of a failure."""
    forced = load64(comm + COMM.forced + 8 * kind_of(signature))
    if forced == algorithms.PIPELINED or not 1 < load64(comm + COMM.size) <= MOST_RANKS:
        return PIPED
    if load64(comm + WAYS.agreed) == _UNKNOWN:
        code = _agree(comm, signature)
        if code != 0:
            return DISAGREED - code
    agreed = load64(comm + WAYS.agreed) - _BASE
    return DIRECT if agreed == AUTO and forced == algorithms.CMA else agreed


@kernel("int64(int64, int64)")
def is_piped(comm, kind):  # type: ignore[no-untyped-def]
    """Whether all ranks know that nothing of this collective goes by direct copies."""
    if load64(comm + COMM.forced + 8 * kind) == algorithms.PIPELINED:
        return 1
    return 1 if load64(comm + WAYS.agreed) in (_UNKNOWN, PIPED + _BASE) else 0


@kernel("int64(int64, int64)", is_entry=True)
def may_be_direct(comm, kind):  # type: ignore[no-untyped-def]
    """Whether nothing that all ranks know speaks against direct copies for a collective."""
    if load64(comm + COMM.forced + 8 * kind) == algorithms.PIPELINED or not 1 < load64(comm + COMM.size) <= MOST_RANKS:
        return 0
    return 1 if load64(comm + WAYS.agreed) != PIPED + _BASE else 0


@kernel("int64(int64, int64)", is_entry=True)
def is_one_sided(comm, kind):  # type: ignore[no-untyped-def]
    """Whether all ranks know that large non-blocking collectives go by direct copies (:mod:`ncclx_mpi.collectives.cma_schedule`).

    What they agreed on for blocking ones counts, once they have: all know it from the same collective on.
    """
    if may_be_direct(comm, kind) == 0:
        return 0
    return 1 if load64(comm + WAYS.agreed) != _UNKNOWN or load64(comm + SCRATCH.ahead) == AGREED else 0


@kernel("int64(int64, int64, int64)")
def _trial(comm, kind, nbytes):  # type: ignore[no-untyped-def]
    return trial_of(comm + WAYS.trials + (kind - BARRIER) * WORDS * 8, nbytes)


@kernel("int64(int64, int64, int64)")
def choose_way(comm, signature, nbytes):  # type: ignore[no-untyped-def]
    """The way of a collective in which each rank moves `nbytes`, alike on all ranks; or minus the code of a failure.

    DIRECT, or else through the slot, with the stores that ``WAYS.stores`` says until :func:`note_way`.
    """
    agreed = agreed_way(comm, signature)
    if agreed != AUTO:
        return agreed if agreed > DISAGREED else agreed - DISAGREED
    total = nbytes * load64(comm + COMM.size)
    trial = _trial(comm, kind_of(signature), total)
    is_told, way = has_verdict(trial, total), next_way(trial, total)
    if is_told != 0:
        number = meet(comm, signature, way)
        if number < 0:
            return number
        way = word_of(comm, 0, number)
        settle(trial, way)
        end(comm, number, 0)
    store64(comm + WAYS.stores, way + 1)
    return way


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def note_way(comm, signature, nbytes, way, began, code):  # type: ignore[no-untyped-def]
    """The collective that :func:`choose_way` chose `way` for has ended with `code`. Returns 0 or the code of a failure.

    A trial ends when it has ended everywhere: the root of a stream is done while the others still copy.
    """
    store64(comm + WAYS.stores, 0)
    if code != 0 or load64(comm + WAYS.agreed) != AUTO + _BASE:
        return code
    total = nbytes * load64(comm + COMM.size)
    trial = _trial(comm, kind_of(signature), total)
    if is_trial(trial, total) == 0:
        return 0
    number = meet(comm, signature, 0)
    if number < 0:
        return -number
    if load64(comm + COMM.rank) == 0:
        note_time(trial, nbytes, way, ticks() - began)
    return end(comm, number, 0)


@kernel("int64(int64, int64, int64, int64)")
def choose_alone(comm, agreed, kind, nbytes):  # type: ignore[no-untyped-def]
    """The way of blocks of altogether `nbytes` whose ranks wait for this one to tell; the ranks have `agreed` on what may be.

    As :func:`choose_way`, until :func:`note_alone`.
    """
    if agreed != AUTO:
        return agreed
    way = next_way(_trial(comm, kind, nbytes), nbytes)
    store64(comm + WAYS.stores, way + 1)
    return way


@kernel("int64(int64, int64, int64)")
def is_tried_alone(comm, kind, nbytes):  # type: ignore[no-untyped-def]
    """Whether :func:`choose_alone` last chose a way for the sake of a trial; such a call should not end before all others are done."""
    return is_trial(_trial(comm, kind, nbytes), nbytes) if load64(comm + WAYS.agreed) == AUTO + _BASE else 0


@kernel("void(int64, int64, int64, int64, int64)")
def note_alone(comm, kind, nbytes, way, taken):  # type: ignore[no-untyped-def]
    """The collective that :func:`choose_alone` chose `way` for has taken so many ticks, if it was a trial, else 0."""
    store64(comm + WAYS.stores, 0)
    if taken > 0:
        note_time(_trial(comm, kind, nbytes), nbytes, way, taken)

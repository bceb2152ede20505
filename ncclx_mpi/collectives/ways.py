"""Which way the bulk data of a collective goes: streams through the slot, or copies by the kernel between private buffers.

All ranks must go the same way. Before its first bulk collective a communicator meets twice: when all are there, each rank looks whether the
kernel lets it reach all others, and tells. If all can, both ways are tried in turn, unless one is forced, for each kind of collective and
size class (:mod:`ncclx_mpi.p2p.trial`); then rank 0 tells which one was the faster for it. Which call is a trial, and which one brings
the verdict, follows from the number of calls, which all count alike.
"""

from __future__ import annotations

from ncclx_mpi import algorithms
from ncclx_mpi.collectives.lines import arrive_all, begin, end, kind_of, payload
from ncclx_mpi.p2p.layout import AUTO, COMM, DIRECT, ENGINE, PEER, PIPED
from ncclx_mpi.p2p.shared import is_reached
from ncclx_mpi.p2p.trial import WORDS, has_verdict, is_trial, next_way, note_time, settle, trial_of
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words

WAYS = words("Ways", f"agreed shown message*3 | trials*{4 * WORDS}", start=COMM.ways)
"""Private words of a communicator: 0 before the ranks agreed, else 2 + what they agreed on; the last address
that the kernel copied from; what is published next; the trials."""
EXCHANGES, SPREADS, REDUCTIONS, SCATTERINGS = range(4)
"""Kinds of collective, as far as speed is concerned: alltoall, allgather, allreduce, reduce_scatter."""
MOST_RANKS = 1024
"""Ranks up to which direct copies come into question: each publishes a word for every other one."""
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


@kernel("int64(int64)")
def _own_vote(comm):  # type: ignore[no-untyped-def]
    engine, size = load64(comm + COMM.engine), load64(comm + COMM.size)
    for other in range(size):
        if other != load64(comm + COMM.rank) and is_reached(engine, peer_at(comm, other)) == 0:
            return PIPED
    return load64(engine + ENGINE.copies)


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


@kernel("int64(int64, int64, int64)")
def _trial(comm, kind, nbytes):  # type: ignore[no-untyped-def]
    return trial_of(comm + WAYS.trials + kind * WORDS * 8, nbytes)


@kernel("int64(int64, int64, int64, int64)")
def choose_way(comm, signature, kind, nbytes):  # type: ignore[no-untyped-def]
    """PIPED or DIRECT for a collective in which each rank moves `nbytes`, alike on all ranks; or minus the code of a failure."""
    forced = load64(comm + COMM.forced + 8 * kind_of(signature))
    if forced == algorithms.SLOT_LARGE or not 1 < load64(comm + COMM.size) <= MOST_RANKS:
        return PIPED
    if load64(comm + WAYS.agreed) == _UNKNOWN:
        code = _agree(comm, signature)
        if code != 0:
            return -code
    agreed = load64(comm + WAYS.agreed) - _BASE
    if agreed == AUTO and forced == algorithms.DIRECT:
        return DIRECT
    if agreed != AUTO:
        return agreed
    trial = _trial(comm, kind, nbytes)
    if has_verdict(trial) != 0:
        number = meet(comm, signature, next_way(trial))
        if number < 0:
            return number
        way = word_of(comm, 0, number)
        settle(trial, way)
        end(comm, number, 0)
        return way
    return next_way(trial)


@kernel("void(int64, int64, int64, int64, int64)")
def note_way(comm, kind, nbytes, way, taken):  # type: ignore[no-untyped-def]
    """The collective that :func:`choose_way` chose `way` for has taken so many ticks."""
    if load64(comm + COMM.rank) == 0 and load64(comm + WAYS.agreed) == AUTO + _BASE:
        trial = _trial(comm, kind, nbytes)
        if is_trial(trial) != 0:
            note_time(trial, way, taken)

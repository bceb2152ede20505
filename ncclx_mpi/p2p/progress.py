"""Progress, and the one way to wait.

``progress`` has transports hand up what has come, sends what waited for room, moves bulk transfers on and
steps non-blocking collectives. Every blocking call comes by here while it waits, so whatever is outstanding
moves on whoever waits for what (MPI's progress rule).

``idle`` is one turn of waiting: it progresses and pauses, or, after some of these, progresses and yields or dozes in turn, so that a wait
never gives its core away before it has looked at what progress has brought; and it says when to stop waiting. A wait with more ranks than
cores yields at once (a spinning rank would hold the core that its peer needs).
"""

from __future__ import annotations

from ncclx_mpi.errors import ERR_NO_MEM
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.inlined import has_arrivals, has_transfers, moved_at
from ncclx_mpi.p2p.layout import ABORTED, AGAIN, DEADLINE, ENGINE, FAILED, PEER, PEER_DEAD, TRACE, TRACE_RECORDS
from ncclx_mpi.p2p.rendezvous import flush_queue
from numba_kernels import types
from numba_kernels.atomics import compare_exchange, load64, load_relaxed, pause, store64, store_relaxed, store_release, ticks
from numba_kernels.calls import call_step, call_two
from numba_kernels.jit import kernel

sched_yield = types.external("sched_yield", types.int32())
usleep = types.external("usleep", types.int32(types.uint32))

_DOZE_SHIFT, _LEAST_DOZE_US, _MOST_DOZE_US = 6, 50, 1000
"""A rank dozes a 64th of the time in which nothing has come: many waiting ranks must not take the core from the one that computes."""
_SPIN_US = 20
"""With a network, a wait yields the core at each turn from then on: another job, or more ranks than were counted, may need it."""
_LOOK_AT_CLOCK = 64
_LOCK_POLLS = 100


@kernel("void(int64)")
def lock(engine):  # type: ignore[no-untyped-def]
    """Enter the engine: one thread of this process at a time, for a slice. Spins briefly, then waits without the GIL."""
    for _ in range(_LOCK_POLLS):
        if compare_exchange(engine + ENGINE.lock, 0, 1) == 0:
            return
        pause()
    state = leave_gil()
    while compare_exchange(engine + ENGINE.lock, 0, 1) != 0:
        sched_yield()
    enter_gil(state)


@kernel("void(int64)")
def unlock(engine):  # type: ignore[no-untyped-def]
    """Leave the engine."""
    store_release(engine + ENGINE.lock, 0)


@kernel("int64(int64)")
def try_lock(engine):  # type: ignore[no-untyped-def]
    """Enter the engine unless another thread is in it; 1 if entered."""
    return 1 if compare_exchange(engine + ENGINE.lock, 0, 1) == 0 else 0


@kernel("void(int64)", is_entry=True)
def move_on(engine):  # type: ignore[no-untyped-def]
    """Send what waited for room, and move transfers on."""
    peer = load64(engine + ENGINE.peers)
    for _ in range(load64(engine + ENGINE.nranks)):
        if load64(peer + PEER.queue_first) != 0:
            flush_queue(engine, peer)
        peer += PEER.total
    if has_transfers(engine) != 0:
        call_step(load64(engine + ENGINE.step), engine)


@kernel("void(int64)")
def progress_locked(engine):  # type: ignore[no-untyped-def]
    """Move on everything that is outstanding; the engine's lock is held.

    Whatever there is to do is done in functions called by address: as a part of every call that waits, they would be most of its code.
    """
    if load64(engine + ENGINE.poll_other) != 0:
        store64(engine + ENGINE.looks, load64(engine + ENGINE.looks) + 1)
        call_step(load64(engine + ENGINE.poll_other), load64(engine + ENGINE.other_state))
    if has_arrivals(engine) != 0:
        call_step(load64(engine + ENGINE.take_in), engine)
    if load64(engine + ENGINE.queued) != 0 or has_transfers(engine) != 0:
        call_step(load64(engine + ENGINE.move_on), engine)
    if load64(engine + ENGINE.plan_count) != 0:
        call_step(load64(engine + ENGINE.plan_step), engine)
    if load64(engine + ENGINE.lines_first) != 0:
        call_step(load64(engine + ENGINE.lines_step), engine)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def call_locked(engine, function, state, words):  # type: ignore[no-untyped-def]
    """Call a function of a transport, which the engine's lock has to be held for."""
    lock(engine)
    result = call_two(function, state, words)
    unlock(engine)
    return result


@kernel("void(int64)", is_entry=True)
def progress(engine):  # type: ignore[no-untyped-def]
    """Move on everything that is outstanding."""
    if try_lock(engine) != 0:
        progress_locked(engine)
        unlock(engine)


@kernel("int64(int64)", is_entry=True)
def trouble(engine):  # type: ignore[no-untyped-def]
    """What ends every wait: PEER_DEAD, ABORTED, a failure while there is no memory for what has come; else 0.

    PEER_DEAD is for deaths that are not acknowledged.
    """
    if load_relaxed(load64(engine + ENGINE.death)) != load64(engine + ENGINE.acknowledged):
        return PEER_DEAD
    if load_relaxed(load64(engine + ENGINE.abort)) != 0:
        return ABORTED
    return FAILED + ERR_NO_MEM if load64(engine + ENGINE.short_of_memory) != 0 else 0


@kernel("int64(int64, int64, int64)")
def is_spinning(engine, turn, started):  # type: ignore[no-untyped-def]
    """Whether a wait is still to keep the core: not for as many turns where each is a system call, as it is with a network."""
    if turn >= load64(engine + ENGINE.spins):
        return 0
    if load64(engine + ENGINE.poll_other) == 0:
        return 1
    return 1 if ticks() - started < _SPIN_US * load64(engine + ENGINE.ticks_per_us) else 0


@kernel("int64(int64, int64)")
def spin(engine, turn):  # type: ignore[no-untyped-def]
    """One turn of a wait that keeps the core; returns as :func:`idle`."""
    progress(engine)
    pause()
    if turn & (_LOOK_AT_CLOCK - 1) != 0:
        return 0
    return trouble(engine)


@kernel("int64(int64, int64, int64)")
def give_away(engine, turn, started):  # type: ignore[no-untyped-def]
    """One turn of a wait that does not keep the core, as :func:`idle`."""
    if turn & 1 == 0:
        progress(engine)
        return 0
    code = trouble(engine)
    if code != 0:
        return code
    sched_yield()
    now = ticks()
    record = load64(engine + ENGINE.current)
    waited = now - load64(record + TRACE.start)
    deadline = load64(engine + ENGINE.deadline_ticks)
    if deadline > 0 and waited > deadline:
        return DEADLINE
    if now - started > load64(engine + ENGINE.slice_ticks):
        return AGAIN
    quiet = min(waited, now - max(load64(engine + ENGINE.waited_from), moved_at(engine)))
    # A rank whose transfers are under way does its part of them as soon as it can.
    if quiet > load64(engine + (ENGINE.slice_ticks if has_transfers(engine) != 0 else ENGINE.doze_ticks)):
        quiet_us = quiet // load64(engine + ENGINE.ticks_per_us)
        _doze(engine, min(max(quiet_us >> _DOZE_SHIFT, _LEAST_DOZE_US), _MOST_DOZE_US))
    return 0


@kernel("void(int64, int64)")
def _doze(engine, us):  # type: ignore[no-untyped-def]
    """Sleep so long; where a network can end that, in a function of its own (:mod:`ncclx_mpi.p2p.sleeping`)."""
    if load64(engine + ENGINE.doze) != 0:
        call_two(load64(engine + ENGINE.doze), engine, us)
    else:
        usleep(types.uint32(us))


@kernel("int64(int64, int64, int64)")
def idle(engine, turn, started):  # type: ignore[no-untyped-def]
    """One turn of waiting: progress, or give the core away as far as that is wise.

    Parameters
    ----------
    engine
        Address of the engine.
    turn
        How many turns this slice has waited.
    started
        ``ticks()`` at the entry of this slice.

    Returns
    -------
    int
        0: go on. AGAIN: return to Python for its signals, then call again. PEER_DEAD, ABORTED, DEADLINE: give up.
    """
    if is_spinning(engine, turn, started) != 0:
        return spin(engine, turn)
    return give_away(engine, turn, started)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def trace_begin(engine, kind, context, peer, tag, nbytes):  # type: ignore[no-untyped-def]
    """Open the record of an operation in this rank's trace ring; about 10 ns. Returns its address."""
    records = load64(engine + ENGINE.records)
    count = load64(records)
    record = load64(engine + ENGINE.trace) + (count & (TRACE_RECORDS - 1)) * TRACE.total
    store64(record + TRACE.end, 0)
    store64(record + TRACE.kind, kind)
    store64(record + TRACE.context, context)
    store64(record + TRACE.peer, peer)
    store64(record + TRACE.tag, tag)
    store64(record + TRACE.nbytes, nbytes)
    store64(record + TRACE.start, ticks())
    store64(record + TRACE.sequence, count)
    store_relaxed(records, count + 1)
    store64(engine + ENGINE.current, record)
    return record


@kernel("void(int64)")
def trace_end(record):  # type: ignore[no-untyped-def]
    """Close the record of an operation."""
    store_relaxed(record + TRACE.end, ticks())

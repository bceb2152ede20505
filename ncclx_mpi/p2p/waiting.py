"""Waiting for one word, with everything a wait owes: progress, death, deadline and Python's signals.

The slow part is compiled once and called through ``ENGINE.wait_word``, so that kernels which wait in many places stay
small. It does not return to Python for signals: every slice (50 ms) it takes the GIL, lets Python run its handlers,
and goes on. Only a handler that raises ends the wait; the exception is parked in three words of the engine
until :func:`raise_parked` raises it. So kernels that use it need not be resumable.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import AGAIN, BROKEN, COMM, ENGINE, INTERRUPTED
from ncclx_mpi.p2p.progress import idle, sched_yield
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire, load_relaxed, pause, store64, ticks
from numba_kernels.calls import call_five, call_three
from numba_kernels.jit import kernel

_gil_take = types.external("PyGILState_Ensure", types.int32())
_gil_give = types.external("PyGILState_Release", types.void(types.int32))
_run_handlers = types.external("PyErr_CheckSignals", types.int32())
_fetch = types.external("PyErr_Fetch", types.void(types.intp, types.intp, types.intp))

_POLLS = 200
_YIELDS = 4


_call = types.external("PyObject_CallNoArgs", types.intp(types.intp))
_let_go = types.external("Py_DecRef", types.void(types.intp))


@kernel("int64(int64)", is_entry=True)
def check_signals(engine):  # type: ignore[no-untyped-def]
    """Let Python run its signal handlers, and look at what was revoked; INTERRUPTED if one raised: the exception is parked in the engine."""
    state = _gil_take()
    failed = _run_handlers()
    if failed == 0 and load64(engine + ENGINE.revoked_count) != load64(engine + ENGINE.heeded):
        result = _call(load64(engine + ENGINE.heed))
        failed = 1 if result == 0 else 0
        if result != 0:
            _let_go(result)
    if failed != 0:
        parked = engine + ENGINE.parked
        _fetch(parked, parked + 8, parked + 16)
    _gil_give(state)
    return INTERRUPTED if failed != 0 else 0


@kernel("int64(int64, int64, int64)")
def _highest(first, second, third):  # type: ignore[no-untyped-def]
    return max(load_acquire(first), load_acquire(second), load_acquire(third))


@kernel("int64(int64)")
def _peer_left(comm):  # type: ignore[no-untyped-def]
    """PEER_LEFT if a rank has left the communicator before it called the last collective that this one has called."""
    slot, function = load64(comm + COMM.slot), load64(load64(comm + COMM.engine) + ENGINE.peer_left)
    return call_three(function, comm, slot, load64(comm + COMM.sequence)) if slot != 0 and function != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def wait_any(engine, comm, first, second, third, target, alarm):  # type: ignore[no-untyped-def]
    """Wait until one of three shared words is at least `target`: 0, or why the wait was given up.

    `alarm` is the address of a word that a peer makes nonzero when it gives up what this wait is part of (BROKEN), 0 for none.
    `comm` is the communicator whose collective this is part of, 0 for none: no rank of it may have left before (PEER_LEFT).
    """
    state = leave_gil()
    turn, started, code = 0, ticks(), 0
    store64(engine + ENGINE.waited_from, started)
    while code == 0 and _highest(first, second, third) < target:
        code = idle(engine, turn, started)
        turn += 1
        if code == AGAIN:
            code = check_signals(engine)
            started = ticks()
            if code == 0 and comm != 0:
                code = BROKEN if load64(comm + COMM.ended) != 0 else _peer_left(comm)
        if code == 0 and alarm != 0 and load_relaxed(alarm) != 0:
            code = BROKEN
    enter_gil(state)
    return code if _highest(first, second, third) < target else 0


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def wait_word_slowly(engine, comm, word, target, alarm):  # type: ignore[no-untyped-def]
    """Wait until the shared word at `word` is at least `target`; as :func:`wait_any`."""
    return wait_any(engine, comm, word, word, word, target, alarm)


@kernel("int64(int64, int64, int64, int64)")
def wait_word(comm, word, target, alarm):  # type: ignore[no-untyped-def]
    """Wait until the shared word at `word` is at least `target`: 0, or why the wait was given up (see above)."""
    if load_acquire(word) >= target:
        return 0
    engine = load64(comm + COMM.engine)
    if load64(engine + ENGINE.spins) > _POLLS:
        for _ in range(_POLLS):
            pause()
            if load_acquire(word) >= target:
                return 0
    else:  # more ranks than cores: the one that we wait for needs this core more than anything here does
        for _ in range(_YIELDS):
            sched_yield()
            if load_acquire(word) >= target:
                return 0
    return keep_waiting(engine, comm, word, target, alarm)


@kernel("int64(int64, int64, int64, int64, int64)")
def keep_waiting(engine, comm, word, target, alarm):  # type: ignore[no-untyped-def]
    """Wait as :func:`wait_word` does, with progress from the start; `comm` is 0 for what is no collective."""
    return call_five(load64(engine + ENGINE.wait_word), engine, comm, word, target, alarm)


def raise_parked(words: Any) -> None:
    """Raise the exception that a signal handler raised inside a compiled wait; `words` are the engine's three."""
    pointers = [ctypes.c_void_p(int(word)) for word in words]
    for index in range(len(words)):
        words[index] = 0
    ctypes.pythonapi.PyErr_Restore(*pointers)

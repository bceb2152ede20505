"""Peers that have joined while the program ran: polling several transports, and what becomes of messages to those that have ended.

::

    ENGINE.poll_other -> poll_all(list)      list: | how many | poll, arm, state | poll, arm, state | ...
    ENGINE.arm_other  -> arm_all(list)

A list is never changed: another one takes its place, under the engine's lock. Who polls a network of one job calls its function directly, as
long as nobody has joined.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE
from ncclx_mpi.p2p.progress import lock, unlock
from ncclx_mpi.p2p.revoking import arrive_revoke
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_one, call_step
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from transports.base import ARMED, UNARMED


@kernel("void(int64)", is_entry=True)
def poll_all(several):  # type: ignore[no-untyped-def]
    """Have every transport of a list hand up what has come."""
    at = several + WORD
    for _ in range(load64(several)):
        call_step(load64(at), load64(at + 2 * WORD))
        at += 3 * WORD


@kernel("int64(int64)", is_entry=True)
def arm_all(several):  # type: ignore[no-untyped-def]
    """Arm every transport of a list; one that has no event has to be looked at again soon."""
    at, found = several + WORD, ARMED
    for _ in range(load64(several)):
        function = load64(at + WORD)
        found = min(found, call_one(function, load64(at + 2 * WORD)) if function != 0 else UNARMED)
        at += 3 * WORD
    return found


@kernel("void(int64, int64, int64, int64)", is_entry=True)
def poll_from_now_on(engine, poll, arm, state):  # type: ignore[no-untyped-def]
    """Poll and arm with these functions, and no more with those before: on return, nobody is in those."""
    lock(engine)
    store64(engine + ENGINE.other_state, state)
    store64(engine + ENGINE.arm_other, arm)
    store64(engine + ENGINE.poll_other, poll)
    unlock(engine)


@kernel("void(int64, int64)", is_entry=True)
def note_end(engine, context):  # type: ignore[no-untyped-def]
    """Have Python look at what has become of a peer, in the next slice of any wait; `context` is none of a communicator."""
    lock(engine)
    arrive_revoke(engine, context)
    unlock(engine)


@kernel("int64(int64, int64, int64)", is_entry=True)
def note_guest_end(table, word, place):  # type: ignore[no-untyped-def]
    """As :func:`note_end`, of a peer that its transport has found dead: the function of a ``DeathNotice``. The engine's lock is held.

    `table`: the engine, and behind it the number of the peer at each place.
    """
    store64(word, 1)
    arrive_revoke(load64(table), -1 - load64(table + WORD * (1 + place)))
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def drop(engine, peer, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Take a message to a peer that has ended."""
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def drop_credit(engine, peer, released):  # type: ignore[no-untyped-def]
    """Take a credit for a peer that has ended."""
    return 1

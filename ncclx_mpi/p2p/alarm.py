"""Messages that are not for the program: compiled code looks at them when they come, and what it leaves wakes a thread that serves it.

Whoever makes progress finds the message, most often a thread of the rank that waits in compiled code::

    progress      takes the message, if all before it from its origin are done with; else keeps it; sleeper 1 -> 0: writes the event
    the thread    sleeper = 1, looks for messages once more, waits for the event

Looking and keeping are done under the engine's lock, so that one of the two sees what the other did.
Cost: a comparison for each message that comes before its receive; a system call for one that finds the thread asleep.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE, REQUEST, WATCHED
from ncclx_mpi.p2p.progress import lock, unlock
from numba_kernels import types
from numba_kernels.atomics import compare_exchange, load64, load_acquire, store64, store_release
from numba_kernels.calls import call_seven
from numba_kernels.jit import kernel

_write_event = types.external("eventfd_write", types.int32(types.int32, types.int64))

SERVED = 2
"""The message space, of the four of each communicator."""


@kernel("int64(int64, int64)")
def _watched(engine, context):  # type: ignore[no-untyped-def]
    """What looks at the messages of a context, 0 if nothing does."""
    space = load64(engine + ENGINE.watched)
    while space != 0 and load64(space + WATCHED.context) != context:
        space = load64(space + WATCHED.next)
    return space


@kernel("int64(int64, int64)")
def _place_of(space, source):  # type: ignore[no-untyped-def]
    """Where a world rank stands in the counts of a space."""
    return 8 * load64(load64(space + WATCHED.local) + 8 * source)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def offer(engine, context, source, nbytes, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Have an eager message served at once: 1; or 0 if it is to be kept. `source` is a world rank."""
    if context & 3 != SERVED:
        return 0
    space = _watched(engine, context)
    if space == 0:
        return 0
    place = _place_of(space, source)
    if load64(load64(space + WATCHED.kept) + place) != load_acquire(load64(space + WATCHED.served) + place):
        return 0
    return call_seven(load64(space + WATCHED.take), space, engine, place // 8, nbytes, first, first_bytes, rest)


@kernel("void(int64, int64)")
def _count(space, source):  # type: ignore[no-untyped-def]
    """Note that a message of a world rank was left to the thread."""
    count = load64(space + WATCHED.kept) + _place_of(space, source)
    store64(count, load64(count) + 1)


@kernel("void(int64, int64, int64)")
def note_kept(engine, context, source):  # type: ignore[no-untyped-def]
    """A message that has come was kept: wake the thread if it sleeps, and the message is one of its own."""
    if context & 3 != SERVED:
        return
    space = _watched(engine, context)
    if space != 0:
        _count(space, source)
    if compare_exchange(engine + ENGINE.sleeper, 1, 0) == 1:
        _write_event(types.int32(load64(engine + ENGINE.alarm)), 1)


@kernel("void(int64)", is_entry=True)
def note_served(count):  # type: ignore[no-untyped-def]
    """The thread has done with a message that was left to it; `count`: address of the word of its origin."""
    store_release(count, load64(count) + 1)


@kernel("void(int64, int64)", is_entry=True)
def watch(engine, space):  # type: ignore[no-untyped-def]
    """Look at the messages of a space from now on; those that have come already are the thread's."""
    lock(engine)
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0:
        if load64(message + REQUEST.context) == load64(space + WATCHED.context):
            _count(space, load64(message + REQUEST.source))
        message = load64(message + REQUEST.order_next)
    store64(space + WATCHED.next, load64(engine + ENGINE.watched))
    store64(engine + ENGINE.watched, space)
    unlock(engine)


@kernel("void(int64, int64)", is_entry=True)
def unwatch(engine, space):  # type: ignore[no-untyped-def]
    """Look at the messages of a space no more."""
    lock(engine)
    link = engine + ENGINE.watched
    while load64(link) != 0 and load64(link) != space:
        link = load64(link) + WATCHED.next
    if load64(link) == space:
        store64(link, load64(space + WATCHED.next))
    unlock(engine)

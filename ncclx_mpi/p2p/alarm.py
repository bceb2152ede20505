"""Waking the thread that takes messages from one message space, while the rank waits in the library.

Whoever makes progress finds the message, most often another thread of the rank in compiled code::

    the thread    sleeper = 1, looks for messages once more, waits for the event
    progress      keeps the message; sleeper 1 -> 0: writes the event

Looking and keeping are done under the engine's lock, so that one of the two sees what the other did.
Cost: a comparison for each message that comes before its receive; a system call for one that finds the thread asleep.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE
from numba_kernels import types
from numba_kernels.atomics import compare_exchange, load64
from numba_kernels.jit import kernel

_write_event = types.external("eventfd_write", types.int32(types.int32, types.int64))

SERVED = 2
"""The message space, of the four of each communicator."""


@kernel("void(int64, int64)")
def wake(engine, context):  # type: ignore[no-untyped-def]
    """Wake the thread if it sleeps, and the message that has come in `context` is one of its own."""
    if context & 3 == SERVED and compare_exchange(engine + ENGINE.sleeper, 1, 0) == 1:
        _write_event(types.int32(load64(engine + ENGINE.alarm)), 1)

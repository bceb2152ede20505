"""Communicators that nobody is to wait in any more: they were revoked, or have ranks that died.

::

    who revokes                                   every other rank of the communicator
      REVOKE {context} -------------------------> keeps the context; the next slice of any wait has Python look at it,
                                                  which passes it on once, and raises the communicator's alarm

An alarm ends waits in the communicator within a slice (50 ms). So does the death of a rank, in all communicators that there are, until it is
acknowledged: from then on only in those that it was a rank of, whose alarms are raised.

All functions run under the engine's lock, but :func:`is_alarmed`.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE
from ncclx_mpi.p2p.progress import lock, unlock
from ncclx_mpi.p2p.rendezvous import peer_of, tell
from numba_kernels.atomics import load64, store64, store_release
from numba_kernels.jit import kernel
from transports.messages import REVOKE

MOST_REVOKED = 1024
"""Of those that nobody has looked at yet; older ones are lost, and their ranks learn of them when they wait for each other."""


@kernel("void(int64, int64)")
def arrive_revoke(engine, context):  # type: ignore[no-untyped-def]
    """Take in that a communicator was revoked."""
    count = load64(engine + ENGINE.revoked_count)
    store64(load64(engine + ENGINE.revoked) + 8 * (count % MOST_REVOKED), context)
    store_release(engine + ENGINE.revoked_count, count + 1)


@kernel("void(int64, int64, int64)", is_entry=True)
def tell_revoked(engine, world_rank, context):  # type: ignore[no-untyped-def]
    """Tell a rank that a communicator was revoked."""
    lock(engine)
    tell(engine, peer_of(engine, world_rank), REVOKE, context, 0, 0)
    unlock(engine)

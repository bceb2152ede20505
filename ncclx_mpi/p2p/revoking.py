"""Communicators that nobody is to wait in any more: they were revoked, or have ranks that died.

::

    who revokes                                   every other rank of the communicator
      REVOKE {context} -------------------------> keeps the context; the next slice of any wait has Python look at it,
                                                  which passes it on once, and ends the communicator

Waits in a communicator that has ended are given up within a slice (50 ms). The death of a rank ends all waits until it is acknowledged, and
from then on the communicators of which it was a rank (:mod:`ncclx_mpi.p2p.ended`).
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

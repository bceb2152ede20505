"""Waking the thread that makes progress (:mod:`ncclx_mpi.p2p.progress_thread`) when something is pending that it can move on.

::

    who starts something    under the engine's lock: counts it; rouse not 0: calls it
    the thread              under the engine's lock: nothing is counted: rouse = ring, then sleeps until the event

Cost: a load and a comparison for each receive that waits, large send and collective that starts; a system call for one that finds the
thread asleep.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_step
from numba_kernels.jit import kernel

_write_event = types.external("eventfd_write", types.int32(types.int32, types.int64))


@kernel("void(int64)")
def stir(engine):  # type: ignore[no-untyped-def]
    """Something is pending from now on; the engine's lock is held."""
    if load64(engine + ENGINE.rouse) != 0:
        call_step(load64(engine + ENGINE.rouse), engine)


@kernel("void(int64)", is_entry=True)
def ring(engine):  # type: ignore[no-untyped-def]
    """Wake the thread, which sleeps; called by address."""
    store64(engine + ENGINE.rouse, 0)
    _write_event(types.int32(load64(engine + ENGINE.bell)), 1)

"""A thread that lets the network move while the rank computes.

What a transport to other hosts takes may be on its way no further than into its own queue: to a peer that it has not talked with
before it goes out when that one has answered, and so in some later call of the sender. A rank that then computes for a minute, or
sleeps, would keep its peers waiting in a barrier that it has left itself. Shared memory needs no such help: what was sent there has
arrived.
"""

from __future__ import annotations

import threading

from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.p2p.layout import ENGINE
from ncclx_mpi.p2p.progress import try_lock, unlock, usleep
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire
from numba_kernels.calls import call_step
from numba_kernels.jit import entry, kernel
from numba_kernels.layout import WORD, zeroed

_PERIOD_US = 5000
"""Between two looks at the network: a system call each, which costs a rank that computes nothing to speak of."""


class NetworkProgress:
    """The thread, from its making until :meth:`stop`. It holds no GIL, and does nothing while the rank is in the engine itself."""

    def __init__(self, engine: Engine) -> None:
        self._is_stopped, self._stopped_at = zeroed(WORD)
        self._engine = engine  # its memory stays as long as the thread goes on
        self._thread = threading.Thread(target=self._run, name="ncclx_mpi-network", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, before the transports are closed."""
        self._is_stopped[0] = 1
        self._thread.join()

    def _run(self) -> None:
        entry(_poll_now_and_then)(self._engine.address, self._stopped_at)


@kernel("void(int64, int64)", is_entry=True)
def _poll_now_and_then(engine, is_stopped):  # type: ignore[no-untyped-def]
    """Let the transport to other nodes deliver and send, every `_PERIOD_US`, until the word at `is_stopped` is not 0."""
    while load_acquire(is_stopped) == 0:
        if try_lock(engine) != 0:
            call_step(load64(engine + ENGINE.poll_other), load64(engine + ENGINE.other_state))
            unlock(engine)
        usleep(types.uint32(_PERIOD_US))

"""Sleeping until a network has something: UCX's event descriptor, where a wait dozes and where nobody waits.

::

    who sleeps       under the engine's lock: arms the network (transports.base.Functions.arm)
                     ARMED:   sleeps on the events, a set of descriptors of all networks, for a while at most
                     COME:    looks at the network in the place of sleeping
                     UNARMED: sleeps for a while, as there is that to do which no event tells of

What comes by shared memory ends no sleep, as its sender would have to look, behind a fence, whether its peer sleeps. So a rank that waits
dozes as long as it would without a network, at most (:func:`ncclx_mpi.p2p.progress.give_away`).

Cost: two system calls, which a message from another host saves up to a millisecond.
"""

from __future__ import annotations

import select

from ncclx_mpi.p2p.layout import ENGINE
from ncclx_mpi.p2p.progress import try_lock, unlock, usleep
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_one
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import make_stack
from transports.base import ARMED, UNARMED

_ppoll = types.external("ppoll", types.int32(types.intp, types.int64, types.intp, types.intp))
_POLLIN = 1
_US, _US_NS = 1_000_000, 1000
MOST_ASLEEP_US = 50_000
"""For how long a thread sleeps at most that makes progress for a rank: what the rank begins in the meantime is no event."""

_timespec = make_stack(2)


class Events:
    """The descriptors that tell of something from a network, as one that is slept on.

    Attributes
    ----------
    polled : int
        It, as the first word of a ``struct pollfd``.
    """

    def __init__(self) -> None:
        self._set = select.epoll()
        self.polled = self._set.fileno() | _POLLIN << 32

    def add(self, event: int) -> None:
        """Have a descriptor wake who sleeps, as long as it is open."""
        self._set.register(event, select.EPOLLIN)


@kernel("int64(int64)")
def arm_network(engine):  # type: ignore[no-untyped-def]
    """Arm the network; the engine's lock is held. What that returns: ``transports.base.Functions.arm``."""
    function = load64(engine + ENGINE.arm_other)
    return call_one(function, load64(engine + ENGINE.other_state)) if function != 0 else UNARMED


@kernel("void(int64, int64)")
def sleep_armed(engine, us):  # type: ignore[no-untyped-def]
    """Sleep until the network, which is armed, has something, for so long at most."""
    time = _timespec()
    store64(time, us // _US)
    store64(time + WORD, us % _US * _US_NS)
    _ppoll(engine + ENGINE.events, 1, time, 0)


@kernel("void(int64, int64, int64, int64)")
def rest(engine, armed, longest, nap):  # type: ignore[no-untyped-def]
    """Sleep as :func:`arm_network` has `armed`: until the network has something, so long at most; not at all; or for a nap (microseconds)."""
    if armed == ARMED:
        sleep_armed(engine, longest)
    elif armed == UNARMED:
        usleep(types.uint32(nap))


@kernel("int64(int64, int64)", is_entry=True)
def doze(engine, us):  # type: ignore[no-untyped-def]
    """Sleep for so long at most, or until a network has something, unless it has that already; called by address."""
    armed = UNARMED
    if try_lock(engine) != 0:
        armed = arm_network(engine)
        unlock(engine)
    rest(engine, armed, us, us)
    return 0

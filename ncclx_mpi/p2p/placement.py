"""How far apart the ranks' cores are: the flag round trip between ranks 0 and 1, measured at start.

Cores of one complex exchange a line in about 0.1 us, cores of two in about 0.4 us, and the kind of store that is right in one
case is up to five times too slow in the other. Only the writer's kind of store depends on the figure; protocols and
algorithms never do, since every rank must choose those alike.
"""

from __future__ import annotations

import time

from ncclx_mpi.p2p.clock import ticks_per_us
from ncclx_mpi.p2p.engine import FAR_TRIP_NS, Engine
from ncclx_mpi.p2p.layout import AUTO, DIRECT, ENGINE, PIPED
from numba_kernels.atomics import load_acquire, pause, store_release, ticks
from numba_kernels.jit import entry, kernel
from transports.shm.cma import allow_peers
from transports.shm.layout import CONTROL, HEADER

_ROUNDS = 64
_PATIENCE_US = 20_000
_UNKNOWN = 1


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def bounce(mine, theirs, count, answers, rounds, patience):  # type: ignore[no-untyped-def]
    """Bounce a counter, now `count`, between two words, `rounds` times; one side asks, the other one `answers`.

    Returns the ticks of the shortest round trip, since all others had something else in them; -1 if either side did not
    answer within `patience` ticks. The counter is below ``count + rounds + 2`` afterwards.
    """
    begun = ticks()
    least, before, gave_up = -1, begun, count + rounds + 1
    for k in range(count + 1, count + rounds + 1):
        if answers == 0:
            store_release(mine, k)
        seen = load_acquire(theirs)
        while seen < k:
            pause()
            if ticks() - begun > patience:
                store_release(mine, gave_up)
                return -1
            seen = load_acquire(theirs)
        if seen == gave_up:
            return -1
        if answers != 0:
            store_release(mine, k)
        now = ticks()
        if k > count + 1 and (least < 0 or now - before < least):
            least = now - before
        before = now
    return least


def choose_copies(engine: Engine, copies: str = "auto") -> None:
    """Choose how this rank moves bulk data between private buffers, and let peers copy to and from them if it may be direct."""
    engine.set_word("copies", {"auto": AUTO, "direct": DIRECT, "piped": PIPED}[copies])
    if copies != "piped":
        allow_peers()
        engine.arena.set_word(engine.arena.plan.control(engine.rank) + CONTROL.token_at, engine.address + ENGINE.token)


def choose_stores(engine: Engine, stores: str = "auto") -> None:
    """Choose how this rank writes what its peers read: as `stores` says, or by what :func:`_measure` finds."""
    if stores == "auto":
        _measure(engine)
    else:
        engine.set_word("streamed", int(stores == "streamed"))
        engine.set_word("stores_fixed", 1)


def _measure(engine: Engine) -> None:
    """Measure the round trip (ranks 0 and 1) or wait for the figure (others), and choose the kind of store."""
    arena, base = engine.arena, engine.arena.base
    if engine.size == 1 or not engine.word("spins") > 1:
        return
    if engine.rank < 2:
        mine, theirs = (HEADER.bounce_0, HEADER.bounce_1) if engine.rank == 0 else (HEADER.bounce_1, HEADER.bounce_0)
        rate = ticks_per_us()
        taken = entry(bounce)(base + mine, base + theirs, 0, engine.rank, _ROUNDS, int(_PATIENCE_US * rate))
        if engine.rank == 0:
            trip = int(taken / rate * 1000) if taken >= 0 else _UNKNOWN
            arena.set_word(HEADER.trip, max(trip, _UNKNOWN))
    end = time.monotonic() + 2 * _PATIENCE_US / 1e6
    while not arena.word(HEADER.trip) and time.monotonic() < end:
        time.sleep(0.0002)
    trip = arena.word(HEADER.trip)
    engine.set_word("streamed", int(trip <= _UNKNOWN or trip > FAR_TRIP_NS))

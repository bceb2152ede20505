"""A thread that makes progress while the rank computes (``NCCLX_MPI_PROGRESS_THREAD``).

Without it a large message and a non-blocking collective move when some call of the rank makes progress. The thread does what such a call
does, with the engine's lock and without the GIL; it is one more thread of the rank to the engine, which allows as many as there are.

How often it looks, by what is pending and how long nothing has happened:

===========================  ==========================================================================
nothing is pending           never: it sleeps until something is (:mod:`ncclx_mpi.p2p.stirring`), or until a
                             network has something (:mod:`ncclx_mpi.p2p.sleeping`); every 5 ms at one that
                             cannot tell
the rank waits itself        each tenth time of those below, as the wait makes progress
a processor of its own       all the time for 200 us, then as below
else                         it dozes a 64th of the time, 100 us to 5 ms
===========================  ==========================================================================

It never yields a processor that it shares: it would get it back after milliseconds from a rank that computes, and at once when it sleeps.
"""

from __future__ import annotations

import os
import re
import threading

from ncclx_mpi import errors
from ncclx_mpi.locality.cpu_lists import numbers
from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.p2p.inlined import has_arrivals, has_transfers
from ncclx_mpi.p2p.layout import ENGINE, TRACE
from ncclx_mpi.p2p.progress import lock, progress_locked, try_lock, unlock, usleep
from ncclx_mpi.p2p.sleeping import MOST_ASLEEP_US, arm_network
from ncclx_mpi.p2p.stirring import ring
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire, pause, store64, ticks
from numba_kernels.jit import c_address, entry, kernel
from numba_kernels.layout import WORD, words, zeroed
from transports.base import ARMED, UNARMED

VARIABLE = "NCCLX_MPI_PROGRESS_THREAD"
_OFF, _ON = ("", "off", "no", "false"), ("on", "yes", "true")
_NUMBERS = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")

CONTROL = words("ProgressControl", "stopped ring has_own_processor polled network event")
"""What Python and the thread share: whether it is to end; `ring` by C address; what `poll` looks at, the thread's own event and the
network's, and the first when it was read."""

_poll = types.external("poll", types.int32(types.intp, types.int64, types.int32))
_read_event = types.external("eventfd_read", types.int32(types.int32, types.intp))
_POLLIN, _FOUND_SHIFT = 1, 48
_OWN_SPIN_US = 200
_DOZE_SHIFT, _LEAST_DOZE_US, _MOST_DOZE_US = 6, 100, 5000
_MOST_LEFT_ALONE = 9
"""Dozes in a row in which a rank that is in a call is left alone: two that look at the same lines in turn take them from each other."""
_NETWORK_MS, _ARMED_MS = 5, MOST_ASLEEP_US // 1000
"""Between two looks at a network while nothing is pending here, one that tells of what comes the second: what is to be sent may wait for the
peer's answer (network_progress.py)."""
_LINGER_US = 2000
"""For so long after the last thing that was pending the thread expects the next one, and dozes; waking it costs a system call."""


def processors(setting: str) -> tuple[int, ...] | None:
    """Which processors the setting names, none for ``on``; None for ``off``.

    Raises
    ------
    Exception
        ERR_OTHER: it is neither ``on``, ``off``, nor numbers of processors.
    """
    text = setting.strip().lower()
    if text in _OFF:
        return None
    if text in _ON:
        return ()
    found = tuple(sorted(numbers(text))) if _NUMBERS.fullmatch(text) else ()
    if not found:
        errors.fail(errors.ERR_OTHER, f"{VARIABLE}={setting!r} is neither on, off, nor processors such as 3 or 4-7,12")
    return found


class ProgressThread:
    """The thread, from its making until :meth:`stop`.

    Parameters
    ----------
    engine
        What it moves on.
    named
        Processors, of which the ranks of a node take one each, around; nothing: it runs where the rank may.

    Raises
    ------
    Exception
        ERR_OTHER: it may not run there, or no more threads are allowed.
    """

    def __init__(self, engine: Engine, named: tuple[int, ...] = ()) -> None:
        self._engine = engine  # its memory stays as long as the thread goes on
        self._control, self._address = zeroed(CONTROL.total)
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._fault: OSError | None = None
        self._cpus = {named[engine.local_rank % len(named)]} if named else set()
        for field, value in (
            ("ring", c_address(ring)),
            ("has_own_processor", len(self._cpus)),
            ("polled", self._event | _POLLIN << 32),
        ):
            self._control[getattr(CONTROL, field) // WORD] = value
        engine.set_word("bell", self._event)
        is_placed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(is_placed,), name="ncclx_mpi-progress", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads are allowed
            os.close(self._event)
            errors.fail(errors.ERR_OTHER, f"rank {engine.rank}: the thread of {VARIABLE} cannot be started: {error}")
        is_placed.wait()
        if self._fault is not None:
            self.stop()
            errors.fail(
                errors.ERR_OTHER,
                f"rank {engine.rank}: {VARIABLE} names processor {min(self._cpus)}, where a thread of this process may not run: "
                f"{self._fault.strerror}",
            )

    def stop(self) -> None:
        """End it, before the transports are closed."""
        self._control[CONTROL.stopped // WORD] = 1
        os.eventfd_write(self._event, 1)
        self._thread.join()
        os.close(self._event)

    def _run(self, is_placed: threading.Event) -> None:
        try:
            if self._cpus:
                os.sched_setaffinity(0, self._cpus)  # of this thread
        except OSError as error:
            self._fault = error
            return
        finally:
            is_placed.set()
        entry(keep_moving)(self._engine.address, self._address)


@kernel("int64(int64)")
def _pending(engine):  # type: ignore[no-untyped-def]
    """Whether there is anything that progress could move on: receives that wait, sends that are announced or wait for room, collectives."""
    return (
        load64(engine + ENGINE.posted_count) != load64(engine + ENGINE.unposted)
        or load64(engine + ENGINE.announced) != 0
        or load64(engine + ENGINE.queued) != 0
        or load64(engine + ENGINE.plan_count) != 0
        or load64(engine + ENGINE.lines_first) != 0
        or has_transfers(engine) != 0
    )


@kernel("int64(int64)")
def _mark(engine):  # type: ignore[no-untyped-def]
    """A number that changes when something is complete, most often."""
    return (
        load64(engine + ENGINE.posted_count)
        + 3 * load64(engine + ENGINE.unposted)
        + 5 * load64(engine + ENGINE.announced)
        + 7 * load64(engine + ENGINE.queued)
        + 11 * load64(engine + ENGINE.plan_count)
        + load64(engine + ENGINE.lines_first)
        + 13 * has_transfers(engine)
    )


@kernel("int64(int64)")
def _moved(engine):  # type: ignore[no-untyped-def]
    """Make progress once, unless another thread is in the engine; 1 if something happened."""
    if try_lock(engine) == 0:
        return 0
    before, is_coming = _mark(engine), has_arrivals(engine)
    progress_locked(engine)
    is_any = is_coming != 0 or _mark(engine) != before
    unlock(engine)
    return 1 if is_any else 0


@kernel("void(int64, int64)")
def _sleep(engine, control):  # type: ignore[no-untyped-def]
    """Sleep until something is pending; with a network no longer than until it wants to be polled."""
    lock(engine)
    if _pending(engine):
        unlock(engine)
        return
    store64(engine + ENGINE.rouse, load64(control + CONTROL.ring))
    events, longest = 1, -1
    if load64(engine + ENGINE.poll_other) != 0:
        armed = arm_network(engine)
        events = 2 if armed == ARMED else 1
        longest = _ARMED_MS if armed == ARMED else (_NETWORK_MS if armed == UNARMED else 0)
        store64(control + CONTROL.network, load64(engine + ENGINE.events))
    unlock(engine)
    found = _poll(control + CONTROL.polled, events, types.int32(longest))
    if found > 0 and load64(control + CONTROL.polled) >> _FOUND_SHIFT & _POLLIN != 0:
        _read_event(types.int32(load64(engine + ENGINE.bell)), control + CONTROL.event)
    lock(engine)
    store64(engine + ENGINE.rouse, 0)
    unlock(engine)


@kernel("int64(int64)")
def _is_in_a_call(engine):  # type: ignore[no-untyped-def]
    """Whether the rank is in an operation itself; also after one that was given up."""
    return 1 if load64(load64(engine + ENGINE.current) + TRACE.end) == 0 else 0


@kernel("void(int64)")
def _doze(quiet):  # type: ignore[no-untyped-def]
    """Sleep a share of the microseconds in which nothing has happened."""
    usleep(types.uint32(min(max(quiet >> _DOZE_SHIFT, _LEAST_DOZE_US), _MOST_DOZE_US)))


@kernel("void(int64, int64)", is_entry=True)
def keep_moving(engine, control):  # type: ignore[no-untyped-def]
    """Make progress until the thread is to end."""
    spin_us = _OWN_SPIN_US if load64(control + CONTROL.has_own_processor) != 0 else 0
    since, left_alone = ticks(), 0
    while load_acquire(control + CONTROL.stopped) == 0:
        quiet = (ticks() - since) // load64(engine + ENGINE.ticks_per_us)
        if _is_in_a_call(engine) != 0 and left_alone < _MOST_LEFT_ALONE:
            left_alone += 1
            _doze(quiet)
            continue
        left_alone = 0
        if _moved(engine) != 0:
            since = ticks()
        elif quiet > _LINGER_US and _pending(engine) == 0:
            _sleep(engine, control)
            since = ticks()
        elif quiet < spin_us:
            pause()
        else:
            _doze(quiet)

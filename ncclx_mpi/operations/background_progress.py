"""Operations that Python moves on while nobody waits for them: every blocking call that is in Python anyway does, else a thread.

Receives of objects have to ask for their frames; a forgotten receive into scattered memory has to be unpacked when its message
is there; messages of device arrays are copied piece by piece.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ncclx_mpi import errors
from ncclx_mpi.process import report_exception

_STEP_SECONDS, _SETTLE_SECONDS = 0.005, 0.0005
_MOST_PAUSE_SECONDS = 10.0
_IDLE_STEPS = 100
"""Steps without anything pending after which the thread sleeps until it is wanted: half a second."""


class Stepped(Protocol):
    """What can be moved on.

    Attributes
    ----------
    is_owed
        Whether a peer needs it to be complete, even after this rank has lost interest.
    """

    is_owed: bool

    def poll(self) -> bool:
        """Go as far as possible now; whether it is done."""


_pending: set[Stepped] = set()
"""A forgotten operation stays here until it is complete."""
_watches: list[Callable[[], bool]] = []
"""Functions that look at what compiled code has in hand, take over what that cannot move on, and say whether there is anything."""


def add(operation: Stepped) -> None:
    """Move an operation on from now on, until it is done or discarded."""
    _pending.add(operation)
    stepper.want()


def discard(operation: Stepped) -> None:
    """Leave an operation alone."""
    _pending.discard(operation)


def watch(look: Callable[[], bool]) -> None:
    """Call `look` now and then, as long as it says that there is something to look at, and from each :meth:`Stepper.want` on."""
    _watches.append(look)


def step(besides: Stepped | None = None) -> bool:
    """Move everything that is pending on, `besides` what the caller moves on; whether there is anything left. What fails is reported."""
    is_any = False
    for look in _watches:
        is_any = look() or is_any
    for operation in list(_pending) if _pending else ():
        if operation is besides:
            continue
        try:
            is_done = _poll(operation)
        except errors.Exception:  # another thread has just finished this one
            continue
        if is_done:
            _pending.discard(operation)
    return is_any or bool(_pending)


def _poll(operation: Stepped) -> bool:
    """Poll an operation; whether it needs no more of that. It fails again if it fails: what does not was a signal handler's exception."""
    try:
        return operation.poll()
    except errors.Exception:
        raise
    except Exception as first:
        try:
            operation.poll()
        except errors.Exception:  # another thread has finished it meanwhile
            pass
        except Exception:
            report_exception("an operation that nobody waits for failed in the background, and is given up")
            return True
        raise first


def settle(seconds: float = 5.0) -> None:
    """Move on what is owed to peers until it is done, before this rank leaves; what nobody takes is given up after `seconds`."""
    end = time.monotonic() + seconds
    while any(operation.is_owed for operation in list(_pending)) and time.monotonic() < end:
        step()
        time.sleep(_SETTLE_SECONDS)


class Stepper:
    """A thread that steps what is pending while the rank waits in compiled code, or computes.

    Attributes
    ----------
    is_awake
        Whether it is stepping, so that it need not be wanted: a call of :meth:`want` costs more than the look of one who sends often.
    """

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._starting = threading.RLock()  # a finalizer may come in between
        self.is_awake = False
        self._is_stopped = False
        self._is_over = False
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """See to it that what is pending is stepped, and what is watched looked at, from now on."""
        if self.is_awake or self._is_over:
            return
        self._wanted.set()
        with self._starting:  # threads that want it at the same time start one
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ncclx_mpi-objects", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread; the engine may go afterwards."""
        self._is_over = True  # what finalizers forget from now on is past being moved on
        if self._thread is not None:
            self._is_stopped = True
            self._wanted.set()
            self._thread.join()
            self._thread, self._is_stopped = None, False

    def _run(self) -> None:
        pause = _STEP_SECONDS
        while not self._is_stopped:
            try:
                self._step_on()
            except BaseException:
                report_exception(f"the thread that moves operations on in the background failed; it goes on in {pause:g} s")
                self.is_awake = False
                time.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_SECONDS)

    def _step_on(self) -> None:
        """Step what is pending, and sleep while nothing is."""
        while not self._is_stopped:
            self.is_awake = False
            if not step():  # else one was posted just now, by who still saw the thread awake
                self._wanted.wait()
            self._wanted.clear()
            self.is_awake, idle = True, 0
            while idle < _IDLE_STEPS and not self._is_stopped:
                time.sleep(_STEP_SECONDS)
                idle = 0 if step() else idle + 1


stepper = Stepper()


def stop() -> None:
    """End the thread, before the engine goes."""
    stepper.stop()

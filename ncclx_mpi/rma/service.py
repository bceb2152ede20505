"""The thread in which a rank serves accesses to its windows by ranks that share no memory with it.

No signal handler of the program runs in it: an exception in the middle of an accumulation would leave half of it behind. It lives
as long as there is such a window. While the rank waits in the library, a request that its progress finds wakes the thread
(:mod:`ncclx_mpi.p2p.alarm`); while the rank computes, the thread looks for requests, ever more rarely as long as there are none.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from ncclx_mpi import runtime
from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.process import report_exception
from ncclx_mpi.rma.serving import Serving

_AWAKE_SECONDS, _NAP_SECONDS = 1e-3, 50e-6
"""For so long after a request the thread expects the next one, and looks for it ever so often."""
_LEAST_PAUSE_MS, _MOST_PAUSE_MS, _PAUSE_SHARE = 1, 5, 1 / 16
"""Later, a pause is a share of the time without requests."""
_FAILED_SECONDS = 0.1


class Service:
    """The thread, and the windows that it serves."""

    def __init__(self) -> None:
        self._servings: list[Serving] = []
        self._changing = threading.Lock()
        self._serving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._engine: Engine | None = None
        self._event = -1

    def add(self, serving: Serving) -> None:
        """Serve a window from now on."""
        with self._changing:
            if self._engine is None:
                self._start_up(serving.engine)
            serving.watch()
            self._servings = [*self._servings, serving]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(serving.engine,), name="ncclx_mpi-windows", daemon=True)
                self._thread.start()
            serving.is_served_by(self._thread.ident or 0)

    def _start_up(self, engine: Engine) -> None:
        """Do what is done once: the event is for good, as compiled code may be about to write to it whenever it is closed."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        engine.set_word("alarm", self._event)
        runtime.before_leaving(self.stop)
        self._engine = engine

    def remove(self, serving: Serving) -> None:
        """Leave a window alone; on return nothing of it is in use."""
        with self._changing:
            serving.unwatch()
            self._servings = [each for each in self._servings if each is not serving]
            if not self._servings:
                self._end()
        with self._serving:
            return

    def stop(self) -> None:
        """End the thread, whatever windows there are: the engine may go afterwards."""
        with self._changing:
            for serving in self._servings:
                serving.unwatch()
            self._servings = []
            self._end()

    def _end(self) -> None:
        """Let the thread end, and wait for that."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.eventfd_write(self._event, 1)
            thread.join()

    def _run(self, engine: Engine) -> None:
        last = time.monotonic()
        while self._servings:
            if self._step():
                last = time.monotonic()
            elif time.monotonic() - last < _AWAKE_SECONDS:
                time.sleep(_NAP_SECONDS)
            else:
                engine.set_word("sleeper", 1)
                if not self._step():
                    self._sleep(time.monotonic() - last)
                engine.set_word("sleeper", 0)

    def _step(self) -> bool:
        """Serve what has come to any window; whether there was anything. What fails is reported: a thread that ended would serve nobody."""
        try:
            with self._serving:
                served = [serving.step() for serving in self._servings]
        except Exception:
            report_exception(f"the thread that serves windows failed; it goes on in {_FAILED_SECONDS:g} s")
            time.sleep(_FAILED_SECONDS)
            return False
        return any(served)

    def _sleep(self, idle: float) -> None:
        """Sleep until progress finds a request, or it is time to look for one; there was none for `idle` seconds."""
        most = _LEAST_PAUSE_MS if any(serving.is_waited_for for serving in self._servings) else _MOST_PAUSE_MS
        event = select.poll()
        event.register(self._event, select.POLLIN)
        if event.poll(min(max(1000 * idle * _PAUSE_SHARE, _LEAST_PAUSE_MS), most)):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)


_service = Service()
add = _service.add
remove = _service.remove

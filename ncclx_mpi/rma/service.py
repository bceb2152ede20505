"""The thread in which a rank serves accesses to its windows by ranks that share no memory with it.

No signal handler of the program runs in it: an exception in the middle of an accumulation would leave half of it behind. It lives
as long as there is such a window. While the rank waits in the library, requests come to the thread by what the rank progresses;
while the rank computes, the thread looks for them, ever more rarely as long as there are none.
"""

from __future__ import annotations

import threading
import time

from ncclx_mpi import runtime
from ncclx_mpi.rma.serving import Serving

_LEAST_PAUSE, _MOST_PAUSE, _MOST_PAUSE_WAITED_FOR = 50e-6, 5e-3, 500e-6
_PAUSE_SHARE = 1 / 16
"""A pause is this part of the time without requests."""


class Service:
    """The thread, and the windows that it serves."""

    def __init__(self) -> None:
        self._servings: list[Serving] = []
        self._changing = threading.Lock()
        self._serving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_registered = False

    def add(self, serving: Serving) -> None:
        """Serve a window from now on."""
        with self._changing:
            self._servings = [*self._servings, serving]
            if not self._is_registered:
                runtime.before_leaving(self.stop)
                self._is_registered = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ncclx_mpi-windows", daemon=True)
                self._thread.start()

    def remove(self, serving: Serving) -> None:
        """Leave a window alone; on return nothing of it is in use."""
        with self._changing:
            self._servings = [each for each in self._servings if each is not serving]
            if not self._servings:
                self._end()
        with self._serving:
            return

    def stop(self) -> None:
        """End the thread, whatever windows there are: the engine may go afterwards."""
        with self._changing:
            self._servings = []
            self._end()

    def _end(self) -> None:
        """Let the thread end, and wait for that."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while self._servings:
            with self._serving:
                servings = self._servings
                served = [serving.step() for serving in servings]
            now = time.monotonic()
            if any(served):
                last = now
            most = _MOST_PAUSE_WAITED_FOR if any(serving.is_waited_for for serving in servings) else _MOST_PAUSE
            time.sleep(min(max((now - last) * _PAUSE_SHARE, _LEAST_PAUSE), most))


_service = Service()
add = _service.add
remove = _service.remove

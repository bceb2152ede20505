"""Writes for a supervisor that may not wait: whoever reads what the ranks write may do so slowly, or not at all."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_FULL_BYTES = 1 << 20
_PIECE_BYTES = 1 << 14
"""So much is written at a time: small enough to see that a slow reader reads."""


class Outlet:
    """Writes bytes in their order, in a thread of its own.

    A descriptor is not made non-blocking for this, as other processes may share it, and a terminal or pipe that can be written can
    still block. The thread begins with the first bytes: whoever forks processes does that before, or after :meth:`finish`.

    Parameters
    ----------
    write
        Writes bytes, and returns when somebody has taken all of them.
    """

    def __init__(self, write: Callable[[memoryview], None]) -> None:
        self._write = write
        self._pieces: deque[memoryview] = deque()
        self._held = 0
        self._error: OSError | None = None
        self._last_taken = 0.0
        self._is_ending = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """Whether who produces should wait; what is put in nevertheless is kept."""
        return self._held >= _FULL_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be written."""
        return self._held > 0

    def put(self, data: bytes) -> None:
        """Have `data` written.

        Raises
        ------
        OSError
            It could not be, or something before it.
        """
        self.check()
        view = memoryview(data)
        with self._changed:
            if not self._held:
                self._last_taken = time.monotonic()
            self._held += len(view)
            self._pieces.extend(view[at : at + _PIECE_BYTES] for at in range(0, len(view), _PIECE_BYTES))
            self._changed.notify_all()
        if self._thread is None:
            self._start()
        self.check()

    def check(self) -> None:
        """Say what went wrong.

        Raises
        ------
        OSError
            Something could not be written; what came after it was dropped.
        """
        if self._error is not None:
            raise self._error

    def finish(self, patience: float | None, deadline: float = float("inf")) -> bool:
        """Wait until all is written, and end the thread. Returns False if the rest had to be given up; see also :meth:`check`.

        Parameters
        ----------
        patience
            Seconds without a reader taking anything after which the rest is given up; None for no limit.
        deadline
            When it is given up in any case, on the monotonic clock.
        """
        with self._changed:
            while self._held:
                end = deadline if patience is None else min(deadline, self._last_taken + patience)
                if time.monotonic() >= end:
                    return False
                self._changed.wait(min(end - time.monotonic(), threading.TIMEOUT_MAX))
            self._is_ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._is_ending = None, False
        return True

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ncclx_mpi-output", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed: the caller has to wait after all
            self._is_ending = True
            self._run()
            self._is_ending = False
        else:
            self._thread = thread

    def _run(self) -> None:
        while piece := self._next():
            try:
                self._write(piece)
            except OSError as error:
                self._fail(error)
                return
            with self._changed:
                self._held -= len(piece)
                self._last_taken = time.monotonic()
                self._changed.notify_all()

    def _next(self) -> memoryview | None:
        """The next piece, None at the end."""
        with self._changed:
            while not self._pieces and not self._is_ending:
                self._changed.wait()
            return self._pieces.popleft() if self._pieces else None

    def _fail(self, error: OSError) -> None:
        with self._changed:
            self._error, self._held = error, 0
            self._pieces.clear()
            self._changed.notify_all()

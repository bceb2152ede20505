"""Non-blocking accesses: done in turn by a thread, which waits for the disk and not for other ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import runtime
from ncclx_mpi.operations.operation import EMPTY, Operation, wait_for, write_status

if TYPE_CHECKING:
    from ncclx_mpi.api.status import Status

Work = Callable[[], int]
"""An access; returns its bytes."""


class Access(Operation):
    """An access that the thread does, or has done. Its buffer is the operation's until it is done, whatever becomes of the request."""

    __slots__ = ("failure", "is_done", "nbytes", "owner", "work")
    failure: BaseException | None

    def __init__(self, work: Work, owner: Any) -> None:
        super().__init__()
        self.work = work
        self.owner = owner
        self.failure = None
        self.is_done = False
        self.nbytes = 0

    def run(self) -> None:
        """Do it, on whichever thread."""
        try:
            self.nbytes = self.work()
        except BaseException as error:
            self.failure = error
        self.is_done = True

    def poll(self) -> bool:
        """Whether it is done."""
        return self.is_done

    def wait(self) -> None:
        """Return when it is done."""
        runtime.engine().idle_wait(self.poll, "an access to a file")

    def fill(self, status: Status) -> None:
        """Write how many bytes were accessed to `status`."""
        write_status(status, EMPTY._replace(nbytes=self.nbytes))

    def finish(self) -> None:
        """Say what went wrong, if anything did, and empty it."""
        failure = self.failure
        self.empty()
        if failure is not None:
            raise failure

    def release(self) -> None:
        """Give it up; it goes on by itself."""

    def abandon(self) -> None:
        """Let it end before its buffer is the program's again: it only waits for the disk."""
        done = threading.Event()
        _thread.put(done.set)
        done.wait()
        self.empty()


class _Thread:
    """The thread, which is there from the first access on until the rank leaves."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there was any access."""
        return self._thread is not None

    def put(self, run: Callable[[], None]) -> None:
        """Call a function after all others that were given."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ncclx_mpi-files", daemon=True)
                self._thread.start()
                runtime.before_leaving(self._stop)
        self._queue.put(run)

    def _stop(self) -> None:
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            run = self._queue.get()
            if run is None:
                return
            run()


_thread = _Thread()


def start(work: Work, owner: Any) -> Operation:
    """Begin an access in the background; `owner` keeps its memory alive."""
    access = Access(work, owner)
    _thread.put(access.run)
    return access


def done(work: Work) -> Operation:
    """Do an access now; what goes wrong is said when it is waited for."""
    access = Access(work, None)
    access.run()
    return access


def settle() -> None:
    """Return when all accesses that were begun are done."""
    if _thread.is_running:
        wait_for(start(lambda: 0, None))

"""Notices the end of processes of other jobs that this one has met.

One daemon thread sleeps over their pidfds; it is started for the first of them. Once a second it tries those again of whom there was no
pidfd to be had.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from ncclx_mpi.bootstrap.pidfd import open_pidfd

_RETRY_SECONDS = 1.0


class GuestWatch:
    """The thread of one process."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._poll.register(self._stop_read, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._unwatched: list[tuple[int, int, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ncclx_mpi-guests", daemon=True)
        self._thread.start()

    def add(self, pid: int, started: int, ended: Callable[[], None]) -> None:
        """Have `ended` called by the thread once the process with this number that was started then has ended."""
        with self._lock:
            self._unwatched.append((pid, started, ended))
        self._take_up()

    def close(self) -> None:
        """End the thread; a fork of this process has none."""
        if os.getpid() != self._owner or self._stop_write < 0:
            return
        os.close(self._stop_write)
        self._stop_write = -1
        self._thread.join(1.0)

    def _take_up(self) -> None:
        """Watch over those that are not watched yet; where descriptors have run out, that is tried again."""
        with self._lock:
            waiting, self._unwatched = self._unwatched, []
            for pid, started, ended in waiting:
                try:
                    fd = open_pidfd(pid, started)
                except OSError:
                    self._unwatched.append((pid, started, ended))
                    continue
                if fd is None:
                    ended()
                else:
                    self._watched[fd] = ended
                    self._poll.register(fd, select.EPOLLIN)

    def _run(self) -> None:
        while True:
            ready = [fd for fd, _ in self._poll.poll(_RETRY_SECONDS)]  # one may be refused while it sleeps
            if self._stop_read in ready:
                break
            for fd in ready:
                with self._lock:
                    ended = self._watched.pop(fd)
                    self._poll.unregister(fd)
                    os.close(fd)
                ended()
            if self._unwatched:
                self._take_up()
        for fd in [*self._watched, self._stop_read]:
            os.close(fd)
        self._poll.close()

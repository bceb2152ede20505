"""Notices the end of processes that no launcher of this one watches over."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import threading
from collections.abc import Callable

from transports.shm.arena import start_time

_RETRY_MS = 1000
_WAKING_BYTES = 4096


class ProcessWatch:
    """A daemon thread, which is started for the first process, and sleeps in ``poll`` over pidfds: nothing is spent until one ends."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wake_read, select.POLLIN)
        self._watched: dict[int, Callable[[], object]] = {}
        self._unwatched: collections.deque[tuple[int, int | None, Callable[[], object]]] = collections.deque()
        self._is_over = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ncclx_mpi-watch", daemon=True)

    def add(self, pid: int, started: int | None, ended: Callable[[], object]) -> None:
        """Have `ended` called by the thread once a process has ended, or if it has already.

        Parameters
        ----------
        pid, started
            Its number, and when it was started; None for the one that has the number now.
        ended
            What to call.
        """
        self._unwatched.append((pid, started, ended))
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._wake()

    def close(self) -> None:
        """End the thread. Safe to call twice, and in a forked child, which has no such thread."""
        if os.getpid() != self._owner or self._is_over:
            return
        self._is_over = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join(1.0)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes, too
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        while not self._is_over:
            for _ in range(len(self._unwatched)):
                self._take_up(*self._unwatched.popleft())
            for fd, _ in self._poll.poll(_RETRY_MS if self._unwatched else None):
                if fd == self._wake_read:
                    os.read(fd, _WAKING_BYTES)
                else:
                    self._poll.unregister(fd)
                    os.close(fd)
                    self._watched.pop(fd)()
        for fd in self._watched:
            os.close(fd)

    def _take_up(self, pid: int, started: int | None, ended: Callable[[], object]) -> None:
        """Watch over a process, or see that it has ended; where neither can be told now, that is tried again."""
        try:
            fd = open_pidfd(pid, started)
        except OSError:
            self._unwatched.append((pid, started, ended))
            return
        if fd is None:
            ended()
        else:
            self._watched[fd] = ended
            self._poll.register(fd, select.POLLIN)


def open_pidfd(pid: int, started: int | None) -> int | None:
    """A pidfd of the process with this number that was started then, None if it is gone; its number may be another one's by now.

    Without `started`, that of whoever has the number now.

    Raises
    ------
    OSError
        There is none to be had, which says nothing about the process: this one has no descriptors left, or may not make any.
    """
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)  # takes no descriptor
        except ProcessLookupError:
            return None
    fd = os.pidfd_open(pid)
    try:
        if started is None or start_time(pid) == started:
            return fd
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None

"""A small process that outlives the launcher by a moment, to end what the ranks may have started.

It leads the process group of all ranks and sleeps on a pipe that only the launcher holds open. When the launcher ends,
however it ends, the guard kills the group: the ranks, their children, and itself.

It was forked when all was loaded that ranks use, has one thread, and has nothing to do. So it forks launchers for the processes that ranks
start (:mod:`ncclx_mpi.bootstrap.nursery`), if it is told how one works.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from ncclx_mpi import process

Nursery = Callable[[bytes, list[int]], int]
"""Runs a job as a rank asked for it, whose message and descriptors it gets; returns the exit status."""
_MOST_BYTES, _FDS = 1 << 17, 3
_FIRST_FREE = 64
"""Descriptors from here on are not in the way of those that are kept."""


class Guard:
    """The guard of one job, forked from the launcher.

    Parameters
    ----------
    nursery
        What a launcher that a rank asks for does; None: none is forked.
    file_limit
        Limits of open files that such a launcher begins with.

    Attributes
    ----------
    group : int
        Process group for the ranks.
    requests : socket
        Where ranks ask.
    """

    def __init__(self, nursery: Nursery | None, file_limit: tuple[int, int]) -> None:
        reader, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self.requests, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._has_ended = False
        self._nursery, self._file_limit = nursery, file_limit
        try:
            self.group = process.fork()
        except OSError:
            for fd in (reader, self._lifeline):
                os.close(fd)
            self.requests.close()
            asked.close()
            raise
        if self.group == 0:
            self._watch(reader, asked.fileno())
        os.close(reader)
        asked.close()
        with contextlib.suppress(OSError):
            os.setpgid(self.group, self.group)

    def _watch(self, reader: int, asked: int) -> None:
        try:
            os.setpgid(0, 0)
            handlers = _ignore_signals()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for fd in (reader, asked)], start=3):
                os.dup2(fd, place, inheritable=False)
            os.closerange(5, 65536)
            self._wait(3, socket.socket(fileno=4), handlers)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)

    def _wait(self, lifeline: int, asked: socket.socket, handlers: dict[int, Any]) -> None:
        """Sleep until the launcher ends; fork others meanwhile."""
        poll = select.poll()
        for fd in (lifeline, asked.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if lifeline in ready:
                return
            message, fds, flags, _ = socket.recv_fds(asked, _MOST_BYTES, _FDS)
            if not message:
                poll.unregister(asked.fileno())
            elif self._nursery is not None and len(fds) == _FDS and not flags & socket.MSG_TRUNC:
                with contextlib.suppress(OSError):  # whoever asked finds that nobody answers
                    if process.fork() == 0:
                        os.close(lifeline)
                        asked.close()
                        self._be_launcher(self._nursery, message, fds, handlers)
            for fd in fds:
                os.close(fd)

    def _be_launcher(self, nursery: Nursery, message: bytes, fds: list[int], handlers: dict[int, Any]) -> NoReturn:
        status = 1
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limit)
            status = nursery(message, fds)
        except BaseException:
            process.print_exception()
        finally:
            process.flush_streams()
            os._exit(status)

    def close_in_child(self) -> None:
        """A rank must not hold the lifeline."""
        os.close(self._lifeline)

    def signal(self, number: int) -> None:
        """Send a signal to all that the ranks have started; the guard itself heeds SIGKILL only. After :meth:`end` nobody gets it."""
        if self._has_ended:  # the number may be another group's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def end(self) -> None:
        """Kill whatever is left of the group, the guard included."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.group, 0)
        self._has_ended = True
        os.close(self._lifeline)
        self.requests.close()


def _ignore_signals() -> dict[int, Any]:
    """Heed none but SIGKILL, and leave those that end to nobody; returns what was done on each before."""
    handlers: dict[int, Any] = {signal.SIGCHLD: signal.getsignal(signal.SIGCHLD)}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            handler = signal.getsignal(number)
            signal.signal(number, signal.SIG_IGN)
            handlers[number] = handler if handler is not None else signal.SIG_DFL
    return handlers

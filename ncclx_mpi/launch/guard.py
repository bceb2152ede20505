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
    requests : socket, optional
        Where ranks ask, if there is a nursery.
    """

    def __init__(self, nursery: Nursery | None, file_limit: tuple[int, int]) -> None:
        reader, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self.requests: socket.socket | None = None
        asked: socket.socket | None = None
        if nursery is not None:
            self.requests, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._has_ended = False
        self._nursery, self._file_limit = nursery, file_limit
        try:
            self.group = process.fork()
            if self.group == 0:
                self._watch(reader, asked)
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reader)
            if asked is not None:
                asked.close()
        with contextlib.suppress(OSError):
            os.setpgid(self.group, self.group)

    def _watch(self, reader: int, asked: socket.socket | None) -> None:
        try:
            os.setpgid(0, 0)
            handlers = _ignore_signals()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            kept = [reader] if asked is None else [reader, asked.fileno()]
            for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for fd in kept], start=3):
                os.dup2(fd, place, inheritable=False)
            os.closerange(3 + len(kept), 65536)
            with contextlib.suppress(Exception):  # what it is for comes first
                if asked is not None:
                    self._serve(3, socket.socket(fileno=4), handlers)
            os.read(3, 1)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)

    def _serve(self, lifeline: int, asked: socket.socket, handlers: dict[int, Any]) -> None:
        """Fork launchers until this one's launcher ends."""
        poll = select.poll()
        for fd in (lifeline, asked.fileno()):
            poll.register(fd, select.POLLIN)
        while lifeline not in [fd for fd, _ in poll.poll()]:
            message, fds, flags, _ = socket.recv_fds(asked, _MOST_BYTES, _FDS)
            if not message:
                return
            if len(fds) == _FDS and not flags & socket.MSG_TRUNC:
                with contextlib.suppress(OSError):  # whoever asked finds that nobody answers
                    if process.fork() == 0:
                        os.close(lifeline)
                        asked.close()
                        self._be_launcher(message, fds, handlers)
            for fd in fds:
                os.close(fd)

    def _be_launcher(self, message: bytes, fds: list[int], handlers: dict[int, Any]) -> NoReturn:
        status = 1
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limit)
            assert self._nursery is not None
            status = self._nursery(message, fds)
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
        if self.requests is not None:
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

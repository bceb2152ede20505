"""The ranks of a notebook as its kernel has them: processes that were started, and connections to them."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Set
from typing import Any

from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.client import start_server
from ncclx_mpi.launch.wakeup import QUESTION
from ncclx_mpi.locality.cpu_lists import ranges
from ncclx_mpi.notebook.messages import Ended, Places, Ready, Start, Written

_TURN_SECONDS = 0.1
_CATCH_UP_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_END_SECONDS = 2.0
_LEAVE_SECONDS = 4.0
"""Time for ranks to end as programs do: Jupyter grants a kernel five seconds in all."""

Sink = Callable[[int, Any], None]


class NoRanks(Exception):
    """The ranks could not be started, or are gone; says why."""


class Session:
    """Ranks that live until they are stopped, or this process ends, however it does.

    Parameters
    ----------
    nranks
        Number of ranks.
    shell
        As :class:`ncclx_mpi.notebook.messages.Start` has it.

    Raises
    ------
    NoRanks
        This process may not open that many files.

    Attributes
    ----------
    nranks : int
        Number of ranks.
    ended : Ended or None
        How they ended; None while there are any.
    lost : set of int
        Ranks whose connection has ended.
    """

    def __init__(self, nranks: int, shell: dict[str, Any]) -> None:
        self.nranks = nranks
        self.ended: Ended | None = None
        self.lost: set[int] = set()
        self._owner = os.getpid()
        self._pidfds: dict[int, int] = {}
        self._places: Places | None = None
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[int, memoryview] = {}
        pairs = _pairs(nranks + 1)
        self._server, *self._ranks = [ours for ours, _ in pairs]
        self._process: subprocess.Popen[bytes] = start_server(
            "ncclx_mpi.notebook.server", [theirs for _, theirs in pairs], os.environ
        )
        self._inboxes = [protocol.Inbox(connection) for connection in self._ranks]
        self._server_inbox = protocol.Inbox(self._server)
        for number, connection in enumerate([*self._ranks, self._server]):
            self._selector.register(connection, selectors.EVENT_READ, number)
        _sessions.add(self)
        with contextlib.suppress(OSError):  # it has died already, which is heard
            protocol.send(self._server, Start([folder or os.getcwd() for folder in sys.path], shell))

    # -- what happens ----------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether all ranks are there."""
        return self.ended is None and not self.lost and self._owner == os.getpid()

    @property
    def is_started(self) -> bool:
        """Whether all ranks wait for cells, or have done so."""
        return len(self._pidfds) == self.nranks

    def turn(self, sink: Sink, wakeup: socket.socket | None = None, seconds: float = _TURN_SECONDS) -> bool:
        """Take in what has come; whether anything had.

        Parameters
        ----------
        sink
            Gets the messages of ranks, and what they wrote.
        wakeup
            Ends the wait when there is something to read.
        seconds
            How long to wait, if nothing has.
        """
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ, None)
        found = self._selector.select(seconds)
        if wakeup is not None:
            self._selector.unregister(wakeup)
        for key, events in found:
            if key.data is not None:
                self._serve(key.data, events, sink)
        return bool(found)

    def catch_up(self, sink: Sink) -> None:
        """Take in what has come since the last turn, the end of ranks for one."""
        end = time.monotonic() + _CATCH_UP_SECONDS
        while self.ended is None and self.turn(sink, seconds=0.0) and time.monotonic() < end:
            pass

    def _serve(self, number: int, events: int, sink: Sink) -> None:
        if number == self.nranks:
            self._hear_server(sink)
            return
        if events & selectors.EVENT_WRITE:
            self._send_on(number)
        if events & selectors.EVENT_READ:
            self._hear_rank(number, sink)

    def _hear_rank(self, rank: int, sink: Sink) -> None:
        inbox = self._inboxes[rank]
        for message in inbox.receive():
            if isinstance(message, Ready):
                with contextlib.suppress(OSError):
                    self._pidfds[rank] = os.pidfd_open(message.pid)
            else:
                sink(rank, message)
        if inbox.is_ended:
            self.lost.add(rank)
            self._unsent.pop(rank, None)
            self._selector.unregister(self._ranks[rank])

    def _hear_server(self, sink: Sink) -> None:
        for message in self._server_inbox.receive():
            if isinstance(message, Written):
                sink(message.rank, message)
            elif isinstance(message, Places):
                self._places = message
            elif isinstance(message, Ended):
                self.ended = message
        if self._server_inbox.is_ended:
            self._selector.unregister(self._server)
            if self.ended is None:
                self.ended = Ended("", ["the process that forks the ranks died; see its messages on stderr"], None)

    def story(self) -> str:
        """Why there are no ranks any more, or not all."""
        ended = self.ended
        if ended is not None and ended.refused:
            return ended.refused
        if ended is not None and ended.abort_code is not None:
            return f"a rank has aborted all with code {ended.abort_code}"
        if ended is not None and ended.failures:
            return ended.failures[0]
        return f"{name(self.lost)} ended without being asked to"

    # -- what can be done ------------------------------------------------------------------------------------------

    def send(self, rank: int, message: Any) -> None:
        """Have a message sent to a rank while turns are made."""
        self._unsent[rank] = memoryview(protocol.pack(message))
        self._selector.modify(self._ranks[rank], selectors.EVENT_READ | selectors.EVENT_WRITE, rank)

    def _send_on(self, rank: int) -> None:
        data = self._unsent.get(rank, memoryview(b""))
        with contextlib.suppress(OSError):  # full, or the rank has gone, which is heard, too
            data = data[self._ranks[rank].send(data, socket.MSG_DONTWAIT) :]
        self._unsent[rank] = data
        if not data:
            del self._unsent[rank]
            self._selector.modify(self._ranks[rank], selectors.EVENT_READ, rank)

    def places(self, sink: Sink) -> Places:
        """Where all ranks are; what they wrote to descriptors before has gone to `sink` then.

        Raises
        ------
        NoRanks
            Nobody answers.
        """
        self._places = None
        with contextlib.suppress(OSError):  # it has gone, which is heard, too
            self._server.send(bytes([QUESTION]), socket.MSG_DONTWAIT)
        end = time.monotonic() + _ANSWER_SECONDS
        while self._places is None and self.ended is None and time.monotonic() < end:
            self.turn(sink)
        if self._places is None:
            raise NoRanks("the process that forks the ranks does not answer")
        return self._places

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank: SIGINT raises KeyboardInterrupt in its cell, if it is in one."""
        with contextlib.suppress(OSError, KeyError):
            signal.pidfd_send_signal(self._pidfds[rank], number)

    def stop(self, sink: Sink) -> None:
        """Have the ranks end as programs do, with exit handlers and flushed files; kill them if they do not in some seconds."""
        if self._owner != os.getpid():
            return
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        end = time.monotonic() + _LEAVE_SECONDS
        while self.ended is None and time.monotonic() < end:
            self.turn(sink)
        self.kill()

    def kill(self) -> None:
        """End the ranks at once: the fork server kills them when its connection ends."""
        if self._owner != os.getpid():
            return
        self._close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # stopped, for one; the end of it is the end of the ranks, too
            self._process.kill()
            self._process.wait()
        if self.ended is None:
            self.ended = Ended("", [], None)

    def _close(self) -> None:
        self._selector.close()
        for connection in [self._server, *self._ranks]:
            connection.close()
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()


def _pairs(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Connections, each with both ends; all or none."""
    found: list[tuple[socket.socket, socket.socket]] = []
    try:
        while len(found) < count:
            found.append(socket.socketpair())
    except OSError as error:
        for end in itertools.chain(*found):
            end.close()
        raise NoRanks(f"{count - 1} ranks cannot be started from here: {error.strerror}; see `ulimit -n`") from error
    return found


def name(ranks: Set[int]) -> str:
    """Ranks in words."""
    return f"rank{'s' * (len(ranks) != 1)} {ranges(frozenset(ranks))}"


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A fork of the kernel must not keep ranks alive by holding their connections."""
    for session in list(_sessions):
        session._close()


os.register_at_fork(after_in_child=_leave_to_parent)

"""One cell on all ranks, as the kernel sees it: from when they get it until the last one is done with it, or is stopped."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from ncclx_mpi.launch.failure import RankFailed
from ncclx_mpi.notebook.messages import Cell, Done, Places
from ncclx_mpi.notebook.screen import Screen
from ncclx_mpi.notebook.session import NoRanks, Session, name
from ncclx_mpi.process import STACKS_SIGNAL

_HEED_SECONDS = 5.0
"""Time for a rank to end its cell after an interrupt."""
_STUCK_SECONDS = 5.0
"""Ranks that have waited so long, all of them, while one has failed, wait for that one."""
_LOOK_SECONDS = 1.0
_STACKS_SECONDS = 0.5
_FRESH = "the next `%%ranks` starts new ones, without the variables of these"


class CellFailed(RankFailed):
    """A cell did not end well on all ranks; the notebook has shown the tracebacks, and this says the rest."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback, which would be that of the extension."""
        return [f"{type(self).__name__}: {self.args[0]}"]


class CellInterrupted(KeyboardInterrupt):
    """The user has stopped a cell."""

    def _render_traceback_(self) -> list[str]:
        """As above."""
        return [f"KeyboardInterrupt: {self.args[0]}"]


class Run:
    """A cell under way.

    Parameters
    ----------
    session
        The ranks.
    screen
        Shows what they say.
    """

    def __init__(self, session: Session, screen: Screen) -> None:
        self._session = session
        self._screen = screen
        self._done: dict[int, Done] = {}
        self._interrupts = 0
        self._is_stopping = False
        self._give_up_at = self._look_at = float("inf")
        self._stopped_inside: set[int] = set()
        self._killed: set[int] = set()

    def run(self, cell: Cell) -> list[bytes]:
        """Run it, and return what was asked for, in the order of the ranks.

        Raises
        ------
        CellFailed
            It raised an exception on a rank, or a rank has died.
        CellInterrupted
            The user has stopped it.
        NoRanks
            The ranks could not be started.
        """
        with _interrupts_as_bytes() as interrupts:
            self._wait_for_start(interrupts)
            for rank in range(self._session.nranks):
                self._session.send(rank, cell)
            while self._running:
                self._turn(interrupts)
            self._see_the_dead()
            with contextlib.suppress(NoRanks):  # the answer comes after all output that was before it
                self._session.places(self._take)
            self._screen.finish()
        self._raise_trouble()
        return [self._done[rank].pulled for rank in range(self._session.nranks)]

    @property
    def _running(self) -> set[int]:
        """Ranks that are in the cell."""
        if self._session.ended is not None:
            return set()
        return set(range(self._session.nranks)) - self._done.keys() - self._session.lost

    def _wait_for_start(self, interrupts: socket.socket) -> None:
        """Wait until there are ranks; the first time on a machine their engine is compiled.

        Raises
        ------
        NoRanks
            There will not be any.
        CellInterrupted
            The user waits no longer.
        """
        session = self._session
        while not session.is_started:
            session.turn(self._take, interrupts)
            self._screen.step()
            if _take_all(interrupts):
                session.kill()
                raise CellInterrupted("the start of the ranks was stopped")
            if session.ended is not None or session.lost:
                session.stop(self._take)
                raise NoRanks(session.story())

    def _turn(self, interrupts: socket.socket) -> None:
        self._session.turn(self._take, interrupts)
        self._screen.step()
        if _take_all(interrupts):
            self._interrupted()
        now = time.monotonic()
        if now >= self._give_up_at:
            self._give_up()
        elif now >= self._look_at and not self._is_stopping:
            self._look_at = now + _LOOK_SECONDS
            self._stop_if_stuck()

    def _take(self, rank: int, message: Any) -> None:
        if not isinstance(message, Done):
            self._screen.take(rank, message)
            return
        self._done[rank] = message
        if message.error and self._look_at == float("inf"):
            self._look_at = time.monotonic() + _STUCK_SECONDS

    # -- stopping --------------------------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        """The user wants the ranks to stop, and the second time at once."""
        self._interrupts += 1
        if self._interrupts > 1:
            self._give_up()
        elif not self._is_stopping:
            self._stop(self._places(), "interrupted")

    def _stop_if_stuck(self) -> None:
        """Stop ranks that wait for one that will not come, as it has left the cell with an exception."""
        places = self._places()
        if self._running and all(places.waiting.get(rank, 0.0) >= _STUCK_SECONDS for rank in self._running):
            failed = {rank for rank, done in self._done.items() if done.error}
            self._stop(places, f"{name(self._running)} stopped: waiting since {name(failed)} failed")

    def _places(self) -> Places:
        try:
            return self._session.places(self._take)
        except NoRanks as error:
            return Places(f"  {error}", {})

    def _stop(self, places: Places, why: str) -> None:
        """Say where all ranks are, and have those that are in the cell raise KeyboardInterrupt."""
        self._is_stopping = True
        self._screen.say(f"%%ranks: {why}; the ranks were in\n{places.text}")
        self._stopped_inside = self._running & places.waiting.keys()
        for rank in self._running:
            self._session.signal(rank, signal.SIGINT)
        self._give_up_at = time.monotonic() + _HEED_SECONDS

    def _give_up(self) -> None:
        """Kill ranks that do not stop, and show what they are in."""
        self._killed = self._running
        self._screen.say(f"%%ranks: {name(self._killed)} did not stop; all ranks are killed. The Python stacks were")
        for rank in self._killed:
            self._session.signal(rank, STACKS_SIGNAL)
        end = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < end:
            self._session.turn(self._take)
        self._session.kill()

    # -- how it ended ----------------------------------------------------------------------------------------------

    def _see_the_dead(self) -> None:
        """Where a rank has died, the others have had their time to go on without it; learn how it died, and end them."""
        if self._session.lost and self._session.ended is None:
            self._session.stop(self._take)

    def _raise_trouble(self) -> None:
        rank, told = self._trouble()
        if self._stopped_inside and not self._killed:
            told += (
                f"\n{name(self._stopped_inside)} stopped inside an operation. Variables are kept, but a communicator "
                "on which a collective was stopped refuses further ones: `%ranks --restart` starts new ranks"
            )
        if self._interrupts:
            raise CellInterrupted(told)
        if told:
            raise CellFailed(told, rank)

    def _trouble(self) -> tuple[int, str]:
        """The first rank that did not end the cell well, and what there is to say; nothing if all did."""
        session = self._session
        if self._killed:
            return min(self._killed), f"{name(self._killed)} did not stop and all ranks were killed; {_FRESH}"
        if session.lost or session.ended is not None:
            return min(session.lost, default=0), f"{session.story()}; {_FRESH}"
        failed = {rank: done.error for rank, done in self._done.items() if done.error}
        causes = {rank: text for rank, text in failed.items() if not self._done[rank].is_interrupted}
        texts = [f"{name(ranks)} raised {text}" for text, ranks in _by_text(causes).items()]
        if stopped := failed.keys() - causes.keys():
            texts.append(f"{name(stopped)} stopped")
        return min(causes or failed, default=0), "\n".join(texts)


def _by_text(texts: dict[int, str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for rank, text in sorted(texts.items()):
        found.setdefault(text, set()).add(rank)
    return found


@contextlib.contextmanager
def _interrupts_as_bytes() -> Iterator[socket.socket]:
    """Have each SIGINT be a byte in this socket until the end of the block, so that none comes in the middle of anything."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def arrived(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            writer.send(b"\0")

    is_main = threading.current_thread() is threading.main_thread()
    old = signal.signal(signal.SIGINT, arrived) if is_main else None
    try:
        yield reader
    finally:
        if is_main:
            signal.signal(signal.SIGINT, old)
        reader.close()
        writer.close()


def _take_all(connection: socket.socket) -> bool:
    """Read what is there; whether there was anything."""
    with contextlib.suppress(BlockingIOError):
        return bool(connection.recv(64))
    return False

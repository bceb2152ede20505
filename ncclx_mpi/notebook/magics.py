"""The extension of IPython: ``%%ranks`` runs a cell on the ranks, ``%ranks`` looks after them."""

from __future__ import annotations

import argparse
import atexit
import threading
import time
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from ncclx_mpi.notebook import values
from ncclx_mpi.notebook.cell import CellFailed, CellInterrupted, Run
from ncclx_mpi.notebook.messages import Cell
from ncclx_mpi.notebook.screen import Screen
from ncclx_mpi.notebook.session import NoRanks, Session


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as IPython does, instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"ranks: {message}\n{self.format_usage().rstrip()}")


def _names(text: str) -> list[str]:
    """Names of variables in a list with commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name.isidentifier():
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a variable")
    return names


def _number(text: str) -> int:
    """A number of ranks."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%ranks", description="Run this cell on ranks that live on between cells.", add_help=False)
    parser.add_argument("nranks", nargs="?", type=_number, metavar="N", help="number of ranks; none: those that are there")
    parser.add_argument(
        "--push", type=_names, default=[], metavar="A,B", help="give these variables of the notebook to all ranks before"
    )
    parser.add_argument(
        "--pull", type=_names, default=[], metavar="A,B", help="then make lists of these variables of all ranks here"
    )
    parser.add_argument("--restart", action="store_true", help="start new ranks first")
    parser.add_argument("--stop", action="store_true", help="end the ranks")
    return parser


@magics_class
class RanksMagics(Magics):
    """``%%ranks`` and ``%ranks``.

    Parameters
    ----------
    shell
        That of the notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._parser = _parser()
        self._session: Session | None = None
        self._started = ""
        self._busy = threading.Lock()
        atexit.register(self.close)

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run a cell on ranks, or say how they are.

        ``%%ranks 4``
            Run the cell on four ranks, which keep their variables until the kernel ends or other ranks are started.
        ``%%ranks``
            Run it on those that are there.
        ``%%ranks --push a,b --pull c``
            Give the notebook's ``a`` and ``b`` to all ranks before; after, ``c`` is the list of what it is on each rank.
        ``%ranks``
            Say how many there are, and where they are.
        ``%ranks 4``, ``%ranks --restart``, ``%ranks --stop``
            Start them; start as many new ones; end them.
        """
        told = self._parser.parse_args(line.split())
        if (told.push or told.pull or told.stop) and bool(told.stop) == (cell is not None):
            raise UsageError("ranks: --stop stands alone in a %ranks line; --push and --pull go with a cell, %%ranks")
        if not self._busy.acquire(blocking=False):
            raise UsageError("ranks: they are busy with another cell")
        try:
            self._do(told, line, cell)
        except (CellFailed, CellInterrupted, UsageError):
            raise
        except BaseException as error:  # an interrupt in the middle of anything: what comes from the ranks is in pieces
            self._kill()
            if isinstance(error, NoRanks):
                raise CellFailed(str(error), 0) from None
            raise
        finally:
            self._busy.release()

    def _do(self, told: argparse.Namespace, line: str, cell: str | None) -> None:
        screen = Screen(self.shell.display_pub)
        if told.stop:
            self._end(screen)
        elif cell is None and told.nranks is None and not told.restart:
            self._tell(screen)
        else:
            pushed = self._pushed(told)
            self._provide(told, screen)
            source = Cell(cell or "", f"%%ranks {line}".rstrip(), self.shell.execution_count, pushed, tuple(told.pull))
            self._run(source, screen)

    def _pushed(self, told: argparse.Namespace) -> bytes:
        try:
            return values.pack(self.shell.user_ns, told.push, "in the notebook")
        except values.CannotBeSent as error:
            raise UsageError(f"ranks: {error}") from None

    def _provide(self, told: argparse.Namespace, screen: Screen) -> None:
        """See to it that there are as many ranks as are wanted, and say so where others end for that."""
        there = self._living(screen)
        nranks = told.nranks or (self._session.nranks if self._session is not None else 0)
        if not nranks:
            raise UsageError("ranks: there are none yet; say how many, as in %%ranks 4")
        if there is not None and not told.restart and there.nranks == nranks:
            return
        self._session = Session(nranks, self._of_shells())
        if there is not None:
            there.stop(screen.take)
            screen.say(f"%%ranks: {_count(there.nranks)} ended, with their variables; {_count(nranks)} started")
        self._started = time.strftime("%H:%M:%S")

    def _living(self, screen: Screen) -> Session | None:
        """The ranks, if there are any; says how they ended since the last cell."""
        session = self._session
        if session is None or session.ended is not None:
            return None
        session.catch_up(screen.take)
        if session.is_alive:
            return session
        session.stop(screen.take)
        screen.say(f"%%ranks: the ranks have ended since the last cell: {session.story()}")
        return None

    def _of_shells(self) -> dict[str, Any]:
        """What the ranks' shells have of the notebook's."""
        return {"ipython_dir": self.shell.ipython_dir, "profile": self.shell.profile_dir.location, "colors": self.shell.colors}

    def _run(self, cell: Cell, screen: Screen) -> None:
        assert self._session is not None
        pulled = Run(self._session, screen).run(cell)
        if cell.pulled:
            try:
                found = [values.unpack(data, f"of rank {rank}") for rank, data in enumerate(pulled)]
            except values.CannotBeSent as error:
                raise CellFailed(str(error), 0) from None
            self.shell.push({name: [each[name] for each in found] for name in cell.pulled})

    def _end(self, screen: Screen) -> None:
        if self._living(screen) is None:
            screen.say("%ranks: there are none")
        self.close()

    def _tell(self, screen: Screen) -> None:
        session = self._living(screen)
        if session is None:
            print("no ranks; %%ranks 4 starts four and runs a cell on them")
            return
        places = session.places(screen.take)
        screen.finish()
        print(f"{_count(session.nranks)} since {self._started}\n{places.text}")

    def _kill(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.kill()

    def close(self) -> None:
        """End the ranks."""
        session, self._session = self._session, None
        if session is not None and session.ended is None:
            session.stop(lambda *_: None)


def _count(nranks: int) -> str:
    return f"{nranks} rank{'s' * (nranks != 1)}"


_loaded: list[RanksMagics] = []


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell."""
    magics = RanksMagics(shell)
    shell.register_magics(magics)
    _loaded.append(magics)


def unload(shell: InteractiveShell) -> None:
    """End the ranks, and take the magics out."""
    while _loaded:
        _loaded.pop().close()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("ranks", None)

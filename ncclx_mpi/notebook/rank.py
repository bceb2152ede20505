"""A rank of a notebook: waits for cells, and runs them."""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import fcntl
import os
import select
import socket
import sys
import termios
import time
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from IPython.core.profiledir import ProfileDir

from ncclx_mpi import process
from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.relay import STDERR, STDOUT
from ncclx_mpi.notebook import values
from ncclx_mpi.notebook.messages import Cell, Done, Ready, Start
from ncclx_mpi.notebook.post import Interrupts, Post, Stream
from ncclx_mpi.notebook.shell import RankShell
from ncclx_mpi.operations import background_progress

_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.001, 0.02
_TAKEN_SECONDS = 2.0
_MOST_LETTERS = 200
_BACKEND = "module://matplotlib_inline.backend_inline"


def live(rank: int, connection: socket.socket, start: Start, last_inherited: str) -> None:
    """Run cells until the kernel closes the connection, and end as a program would; never returns.

    Parameters
    ----------
    rank
        World rank.
    connection
        To the kernel.
    start
        How the kernel wants its ranks.
    last_inherited
        The last module that the fork server has imported.
    """
    status = 1
    try:
        faulthandler.enable()
        os.environ.setdefault("MPLBACKEND", _BACKEND)
        _Rank(connection, start).serve()
        status = 0
    except BaseException:
        process.report_exception(f"rank {rank} of the notebook failed")
    finally:
        process.leave(status, last_inherited)


class _Rank:
    """Runs cells."""

    def __init__(self, connection: socket.socket, start: Start) -> None:
        self._connection = connection
        self._interrupts = Interrupts()
        self._post = Post(connection, self._interrupts)
        self._streams = [Stream(self._post, STDOUT), Stream(self._post, STDERR)]
        sys.stdout, sys.stderr = self._streams
        sys.path[:] = start.path
        RankShell.post, RankShell.streams = self._post, self._streams
        self._shell = _new_shell(start.shell)
        builtins.input = _no_input

    def serve(self) -> None:
        """Run one cell after another, until the kernel closes the connection."""
        self._post.send(Ready(os.getpid()))
        while (cell := self._next()) is not None:
            self._post.send(self._done(cell))

    def _next(self) -> Cell | None:
        """The next cell; until it comes, whatever is outstanding moves on, as others may wait for it in cells of their own."""
        pause = _LEAST_PAUSE_SECONDS
        while not select.select([self._connection], [], [], pause)[0]:
            _make_progress()
            pause = min(2 * pause, _MOST_PAUSE_SECONDS)
        try:
            cell: Cell = protocol.receive(self._connection)
        except (EOFError, OSError):
            return None
        return cell

    def _done(self, cell: Cell) -> Done:
        """Run a cell, and say how it ended."""
        try:
            self._interrupts.is_in_cell = True
            done = self._run(cell)
            self._interrupts.is_in_cell = False
        except BaseException as error:  # an interrupt that came too late for the cell, or before it
            self._interrupts.is_in_cell = False
            done = _failed(error)
        for stream in self._streams:
            stream.end_line()
        _wait_until_taken()
        return done

    def _run(self, cell: Cell) -> Done:
        shell = self._shell
        try:
            shell.user_ns.update(values.unpack(cell.pushed, "of the notebook"))
            shell.execution_count = cell.number
            heading = (
                "" if cell.source.startswith("%%") else f"# {cell.heading}\n"
            )  # so that lines have the numbers that the notebook shows
            result = shell.run_cell(heading + cell.source, store_history=True)
            error = result.error_before_exec or result.error_in_exec
            if error is not None:
                return _failed(error)
            return Done(pulled=values.pack(shell.user_ns, cell.pulled, "on this rank"))
        except values.CannotBeSent as error:
            return _failed(error)


def _new_shell(traits: dict[str, Any]) -> RankShell:
    """The shell, whose module is the program's ``__main__``."""
    main = ModuleType("__main__", "Variables of the cells that this rank ran.")
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # IPython's advice after sys.exit(), which is none here
    own = {name: value for name, value in traits.items() if name != "profile"}
    shell: RankShell = RankShell.instance(user_module=main, profile_dir=ProfileDir(location=traits["profile"]), **own)
    return shell


def _failed(error: BaseException) -> Done:
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")[:_MOST_LETTERS]
    return Done(text, is_interrupted=isinstance(error, KeyboardInterrupt))


def _no_input(prompt: object = "") -> str:
    raise EOFError("a rank has no input; ask for it in a cell of the notebook itself, and give it to the ranks with --push")


def _make_progress() -> None:
    """Have communication that is outstanding move on."""
    runtime = sys.modules.get("ncclx_mpi.runtime")
    if runtime is not None and runtime.is_active():
        runtime.engine().progress()
        background_progress.step()


def _wait_until_taken(pipes: Sequence[int] = (STDOUT, STDERR)) -> None:
    """Wait until the fork server has read what was written to descriptors: it passes that on before it answers the kernel's question."""
    end = time.monotonic() + _TAKEN_SECONDS
    with contextlib.suppress(OSError):
        while any(_unread(pipe) for pipe in pipes) and time.monotonic() < end:
            time.sleep(0.001)


def _unread(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

"""How far compiling has come, for whoever watches: a line on a terminal that is written over, and gone in the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TextIO

_WIDTH = 30
_ERASE_LINE = "\r\033[K"


class Bar:
    """A bar with the number of functions that are done, how many there are, and the seconds since it was made.

    Parameters
    ----------
    stream
        Where it is shown, if that is a terminal: a file would keep every state of it.
    clock
        Tells the seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begun = clock()
        self._is_shown = stream.isatty()

    def show(self, done: int, total: int) -> None:
        """Show that so many of all are done; after the last one the line is empty again."""
        if not self._is_shown:
            return
        full = _WIDTH * done // max(total, 1)
        seconds = self._clock() - self._begun
        text = f"ncclx_mpi: [{'#' * full}{'.' * (_WIDTH - full)}] {done} of {total}, {seconds:.0f} s" if done < total else ""
        with contextlib.suppress(OSError):  # a terminal that has gone ends no compilation
            self._stream.write(f"{_ERASE_LINE}{text}")
            self._stream.flush()

"""Shows in the notebook what ranks print, return, draw and raise, and whose it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TextIO

from ncclx_mpi.launch.outlet import Outlet
from ncclx_mpi.launch.relay import STDERR, STDOUT, LineRelay
from ncclx_mpi.locality.cpu_lists import ranges
from ncclx_mpi.notebook.messages import Cleared, Raised, Result, Shown, Text, Written

_ALIKE_SECONDS = 0.5
"""So long a traceback waits for those of other ranks, which may be the same."""


class Front(Protocol):
    """What shows objects: IPython's ``display_pub`` of the notebook."""

    def publish(
        self, data: dict[str, Any], metadata: dict[str, Any] | None = None, *, transient: dict[str, Any] | None = None, update: bool
    ) -> None:
        """Show an object, given by MIME type."""

    def clear_output(self, wait: bool = False) -> None:
        """Remove what is shown."""


class _Printer(Outlet):
    """Prints at once, where ``print`` does: the notebook's own streams never let anybody wait."""

    def __init__(self, stream: int) -> None:
        super().__init__(lambda _: None)
        self._stream = stream
        self._is_in_line = False
        self._is_flushed = True

    def put_below(self, text: str) -> None:
        """Print lines that do not continue what somebody else has begun."""
        self.put(b"\n" * self._is_in_line + text.encode(errors="replace"))

    def put(self, data: bytes) -> None:
        self._is_in_line = not data.endswith(b"\n")
        self._is_flushed = False
        self._file.write(data.decode(errors="replace"))

    def flush(self) -> None:
        """Have what was printed be seen: once for many lines, as a kernel's stream waits for its thread then."""
        if not self._is_flushed:
            self._is_flushed = True
            self._file.flush()

    @property
    def _file(self) -> TextIO:
        return sys.stdout if self._stream == STDOUT else sys.stderr


class Screen:
    """The output of one cell.

    Parameters
    ----------
    front
        Shows figures and the like.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._printers = {stream: _Printer(stream) for stream in (STDOUT, STDERR)}
        self._relay = LineRelay(True, self._printers)
        self._raised: dict[int, str] = {}
        self._raised_at = 0.0
        self._results: dict[int, Result] = {}
        self._kinds: dict[type, Callable[[int, Any], None]] = {
            Text: lambda rank, message: self._relay(rank, message.stream, message.text.encode(errors="replace")),
            Written: lambda rank, message: self._relay(rank, message.stream, message.data),
            Shown: self._show,
            Cleared: lambda rank, message: self._front.clear_output(message.wait),
            Result: self._results.__setitem__,
            Raised: self._hold,
        }

    def take(self, rank: int, message: Any) -> None:
        """Show a message of a rank, now or at the end of the cell."""
        self._kinds[type(message)](rank, message)

    def say(self, text: str) -> None:
        """Print a line of our own, after what ranks have written."""
        self._relay.flush(everything=True)
        self._printers[STDERR].put_below(f"{text}\n")
        self._flush()

    def step(self) -> None:
        """Show what has waited long enough."""
        self._relay.flush()
        if self._raised and time.monotonic() > self._raised_at + _ALIKE_SECONDS:
            self._show_raised()
        self._flush()

    def finish(self) -> None:
        """Show all that is left: tracebacks, then results, in the order of the ranks and once for those that have the same."""
        self._show_raised()
        self._relay.flush(everything=True)
        texts = {rank: result.data["text/plain"] for rank, result in self._results.items() if list(result.data) == ["text/plain"]}
        for ranks, text in _alike(texts):
            self._print(STDOUT, ranks, text)
        for rank, result in sorted(self._results.items()):
            if rank not in texts:
                self._show(rank, Shown(result.data, result.metadata, {}, False))
        self._results.clear()
        self._flush()

    def _flush(self) -> None:
        for printer in self._printers.values():
            printer.flush()

    def _show(self, rank: int, message: Shown) -> None:
        if not message.update:
            self._relay.flush(everything=True)
            self._print(STDOUT, [rank], message.data.get("text/plain", ""))
        self._front.publish(message.data, message.metadata, transient=message.transient, update=message.update)

    def _hold(self, rank: int, message: Raised) -> None:
        if not self._raised:
            self._raised_at = time.monotonic()
        if rank in self._raised:
            self._show_raised()
        self._raised[rank] = message.text

    def _show_raised(self) -> None:
        self._relay.flush(everything=True)
        for ranks, text in _alike(self._raised):
            self._print(STDERR, ranks, text)
        self._raised.clear()

    def _print(self, stream: int, ranks: Iterable[int], text: str) -> None:
        """Print lines, each with the ranks that they are of."""
        tag = f"[{ranges(frozenset(ranks))}] "
        self._printers[stream].put_below("".join(f"{tag}{line}\n" for line in text.splitlines() or [""]))


def _alike(texts: dict[int, str]) -> list[tuple[list[int], str]]:
    """Ranks with the same text, in the order of the first one of each."""
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        ranks.setdefault(text, []).append(rank)
    return [(found, text) for text, found in ranks.items()]

"""Passes the output of the ranks on, line by line."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping

from ncclx_mpi.launch.outlet import Outlet

STDOUT, STDERR, CHANNEL = 1, 2, 3
_PARTIAL_SECONDS = 0.1


class LineRelay:
    """Writes whole lines of many ranks to this process's stdout and stderr, and never waits for their readers.

    A line that stays unfinished for 0.1 s (a prompt, a progress bar) is written as it is, so that it can be seen.

    Parameters
    ----------
    is_tagged
        Begin each line with ``[rank]``.
    outlets
        Where stream 1 and stream 2 go; by default to our own descriptors 1 and 2.
    packed
        Makes of a stream and its bytes what its outlet takes.
    """

    def __init__(
        self,
        is_tagged: bool,
        outlets: Mapping[int, Outlet] | None = None,
        packed: Callable[[int, bytes], bytes] = lambda _, data: data,
    ) -> None:
        self.is_tagged = is_tagged
        self._outlets = outlets or {fd: Outlet(functools.partial(write_all, fd)) for fd in (STDOUT, STDERR)}
        self._packed = packed
        self._partial: dict[tuple[int, int], tuple[bytes, float]] = {}
        self._open: set[tuple[int, int]] = set()

    def __call__(self, rank: int, stream: int, data: bytes) -> None:
        """Take what `rank` wrote to `stream`; empty at its end.

        Raises
        ------
        OSError
            Our output cannot be written: a BrokenPipeError if nobody reads it any more.
        """
        key = (rank, stream)
        held, _ = self._partial.pop(key, (b"", 0.0))
        data = held + data if data else held
        cut = data.rfind(b"\n") + 1
        if cut:
            self._write(key, data[:cut])
            self._open.discard(key)
        if data[cut:]:
            self._partial[key] = (data[cut:], time.monotonic())

    def is_full(self, stream: int) -> bool:
        """Whether so much of a stream waits for its reader that the ranks should wait, too."""
        return stream in self._outlets and self._outlets[stream].is_full

    def say(self, text: str) -> None:
        """Write lines of our own to stderr, after what the ranks have written.

        Raises
        ------
        OSError
            As above.
        """
        self._outlets[STDERR].put(self._packed(STDERR, f"{text}\n".encode(errors="backslashreplace")))

    def finish(self, patience: float | None, deadline: float = float("inf")) -> bool:
        """Wait for the readers, as :meth:`Outlet.finish` does. Returns whether they have taken everything of what could be written."""
        written = [outlet.finish(patience, deadline) for outlet in self._outlets.values()]
        return all(written)

    def check(self) -> None:
        """Say what went wrong.

        Raises
        ------
        OSError
            Something could not be written.
        """
        for outlet in self._outlets.values():
            outlet.check()

    def flush(self, everything: bool = False) -> bool:
        """Write unfinished lines that have waited long enough, or all. Returns whether it should be called again soon.

        Raises
        ------
        OSError
            As above.
        """
        now = time.monotonic()
        for key, (data, since) in list(self._partial.items()):
            if everything or now - since > _PARTIAL_SECONDS:
                del self._partial[key]
                self._write(key, data)
                self._open.add(key)
        is_busy = any(outlet.is_busy for outlet in self._outlets.values())
        self.check()  # after that: who has failed is not busy
        return bool(self._partial) or is_busy

    def _write(self, key: tuple[int, int], data: bytes) -> None:
        rank, stream = key
        if self.is_tagged:
            data = self._tag(data, f"[{rank}] ".encode(), is_continued=key in self._open)
        self._outlets[stream].put(self._packed(stream, data))

    @staticmethod
    def _tag(data: bytes, tag: bytes, is_continued: bool) -> bytes:
        body = data[:-1] if data.endswith(b"\n") else data
        tagged = body.replace(b"\n", b"\n" + tag) + data[len(body) :]
        return tagged if is_continued else tag + tagged


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data`, however little the other side takes at a time."""
    while data:
        data = data[os.write(fd, data) :]

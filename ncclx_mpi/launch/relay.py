"""Passes the output of the ranks on, line by line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

STDOUT, STDERR, CHANNEL = 1, 2, 3
_PARTIAL_SECONDS = 0.1


class LineRelay:
    """Writes whole lines of many ranks to this process's stdout and stderr.

    A line that stays unfinished for 0.1 s (a prompt, a progress bar) is written as it is, so that it can be seen.

    Parameters
    ----------
    is_tagged
        Begin each line with ``[rank]``.
    write
        Takes the stream (1 or 2) and the bytes; by default they go to our own descriptors 1 and 2.
    """

    def __init__(self, is_tagged: bool, write: Callable[[int, bytes], None] | None = None) -> None:
        self.is_tagged = is_tagged
        self._write_out = write or write_all
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

    def flush(self, everything: bool = False) -> bool:
        """Write unfinished lines that have waited long enough, or all. Returns whether some are still held back."""
        now = time.monotonic()
        for key, (data, since) in list(self._partial.items()):
            if everything or now - since > _PARTIAL_SECONDS:
                del self._partial[key]
                self._write(key, data)
                self._open.add(key)
        return bool(self._partial)

    def _write(self, key: tuple[int, int], data: bytes) -> None:
        rank, stream = key
        if self.is_tagged:
            data = self._tag(data, f"[{rank}] ".encode(), is_continued=key in self._open)
        self._write_out(stream, data)

    @staticmethod
    def _tag(data: bytes, tag: bytes, is_continued: bool) -> bytes:
        body = data[:-1] if data.endswith(b"\n") else data
        tagged = body.replace(b"\n", b"\n" + tag) + data[len(body) :]
        return tagged if is_continued else tag + tagged


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however little the other side takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

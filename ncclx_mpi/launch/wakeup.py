"""Signals as bytes in a socket, so that a loop sees them in order with everything else."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterable, Iterator
from typing import Any

QUESTION = 0
"""Byte, where others are numbers of signals, that asks a job where its ranks are."""


@contextlib.contextmanager
def signals_as_bytes(reader: socket.socket, writer: socket.socket, numbers: Iterable[int]) -> Iterator[None]:
    """Have each of these signals, unless it is ignored, written to a pair of sockets as a byte, until the end of the block."""
    for end in (reader, writer):
        end.setblocking(False)
    old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    old: dict[int, Any] = {}
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            old[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in old.items():
            signal.signal(number, handler)

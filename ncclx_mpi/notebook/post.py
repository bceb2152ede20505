"""What a rank says to the kernel, and how an interrupt leaves whole what is being said."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.relay import write_all
from ncclx_mpi.notebook.messages import Text


class Interrupts:
    """SIGINT as KeyboardInterrupt: in a cell, and not in the middle of a message.

    Attributes
    ----------
    is_in_cell : bool
        Whether there is anything to interrupt.
    """

    def __init__(self) -> None:
        self.is_in_cell = False
        self._held = 0
        self._has_come = False
        signal.signal(signal.SIGINT, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._has_come = True
        elif self.is_in_cell:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have an interrupt wait until the end of the block; it comes to the main thread, so others need not care."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._has_come and not self._held:
                self._has_come = False
                if self.is_in_cell:
                    raise KeyboardInterrupt


class Post:
    """The connection to the kernel. A process that the rank forks has none: what that prints goes to its descriptors."""

    def __init__(self, connection: socket.socket, interrupts: Interrupts) -> None:
        self._connection = connection
        self._interrupts = interrupts
        self._lock = threading.Lock()
        self._is_in_child = False
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        self._is_in_child = True
        self._connection.close()

    def send(self, message: Any) -> None:
        """Send a message, whole; without effect where the kernel has gone, which ends this rank."""
        if self._is_in_child:
            if isinstance(message, Text):
                write_all(message.stream, memoryview(message.text.encode(errors="backslashreplace")))
            return
        with self._interrupts.held(), self._lock, contextlib.suppress(OSError):
            protocol.send(self._connection, message)


class Stream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of a rank: whole lines go to the kernel, others when they are flushed or the cell ends."""

    def __init__(self, post: Post, number: int) -> None:
        self._post = post
        self._number = number
        self._held = ""
        self._is_in_line = False
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A fork prints nothing of what its parent is about to, and finds no lock that another thread had."""
        self._held, self._lock = "", threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of what is written; the kernel gets text."""
        return "utf-8"

    def fileno(self) -> int:
        """The descriptor that processes started from here write to: it is shown as well."""
        return self._number

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Print `text`."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._held += text
            if "\n" in text:
                cut = self._held.rfind("\n") + 1
                ready, self._held = self._held[:cut], self._held[cut:]
                self._send(ready)
        return len(text)

    def flush(self) -> None:
        """Print what was begun."""
        with self._lock:
            ready, self._held = self._held, ""
            self._send(ready)

    def end_line(self) -> None:
        """Print what was begun, and end its line."""
        with self._lock:
            self.flush()
            if self._is_in_line:
                self._send("\n")

    def _send(self, text: str) -> None:
        if text:
            self._is_in_line = not text.endswith("\n")
            self._post.send(Text(self._number, text))

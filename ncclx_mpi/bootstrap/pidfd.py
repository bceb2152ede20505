"""A descriptor of a process, by which its end is noticed."""

from __future__ import annotations

import contextlib
import os

from transports.shm.arena import start_time


def open_pidfd(pid: int, started: int) -> int | None:
    """A pidfd of the process with this number that was started then, None if it is gone; its number may be another one's by now.

    Raises
    ------
    OSError
        There is none to be had, which says nothing about the process: this one has no descriptors left, or may not make any.
    """
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)  # takes no descriptor
        except ProcessLookupError:
            return None
    fd = os.pidfd_open(pid)
    try:
        if start_time(pid) == started:
            return fd
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None

"""A small process that outlives the launcher by a moment, to end what the ranks may have started.

It leads the process group of all ranks and sleeps on a pipe that only the launcher holds open. When the launcher ends,
however it ends, the guard kills the group: the ranks, their children, and itself.
"""

from __future__ import annotations

import contextlib
import os
import signal

from ncclx_mpi import process


class Guard:
    """The guard of one job, forked from the launcher.

    Attributes
    ----------
    group : int
        Process group for the ranks.
    """

    def __init__(self) -> None:
        reader, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._has_ended = False
        self.group = process.fork()
        if self.group == 0:
            self._watch(reader)
        os.close(reader)
        with contextlib.suppress(OSError):
            os.setpgid(self.group, self.group)

    def _watch(self, reader: int) -> None:
        try:
            os.setpgid(0, 0)
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            keep = os.dup2(reader, 3)
            os.closerange(keep + 1, 65536)
            os.read(keep, 1)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)

    def close_in_child(self) -> None:
        """A rank must not hold the lifeline."""
        os.close(self._lifeline)

    def signal(self, number: int) -> None:
        """Send a signal to all that the ranks have started; the guard itself heeds SIGKILL only. After :meth:`end` nobody gets it."""
        if self._has_ended:  # the number may be another group's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def end(self) -> None:
        """Kill whatever is left of the group, the guard included."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.group, 0)
        self._has_ended = True
        os.close(self._lifeline)

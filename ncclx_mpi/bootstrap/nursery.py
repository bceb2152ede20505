"""Where a rank has a launcher forked for the processes that it starts: by the guard of its job, which has loaded what a launcher needs.

Another interpreter takes 100 ms until it has imported a launcher, and 130 for NumPy and the engine (design/029); to ask and be answered, 18.

::

    rank                         guard                        launcher
     | what to run, descriptors   |                            |
     |--------------------------->| forks                      |
     |                            |--------------------------->|
     |            its process id                               |
     |<--------------------------------------------------------|
     |            go                                           |
     |-------------------------------------------------------->| runs the job
     |            exit status                                  |
     |<--------------------------------------------------------|

It is as if the rank had started it: folder, processors, mask of files and standard streams are the rank's. Environments are compared, and
where they differ nothing is forked: much of one counts only when a process begins.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
from typing import Any

from ncclx_mpi.bootstrap import launcher
from numba_kernels.rows import NamedTuple

_NUMBER = struct.Struct("i")
_HELLO_SECONDS = 5.0
_KILLED = -int(signal.SIGKILL)
_LOOK_MS = 500
"""So long one thread waits that others may ask, too."""
_OF_RANK = (launcher.RANK, launcher.SIZE, launcher.LOCAL_RANK, launcher.JOB, launcher.NUMBER, launcher.PARENT)
"""What environments of ranks of one job differ in."""


class _Door(NamedTuple):
    """How the guard is asked: the socket, its number as a file, as the program may have closed it; and the environment that the guard has."""

    pid: int
    requests: socket.socket
    file: int
    environ: dict[str, str]


_door: _Door | None = None


class Forked:
    """A launcher that a guard has forked; to a rank what a :class:`subprocess.Popen` is for one that it has started."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pidfd = os.pidfd_open(pid)
        self._status: int | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        """Give back what a process that nobody has asked about has left."""
        if self._status is None:
            self._close()

    def poll(self) -> int | None:
        """Exit status, None while it runs."""
        return self._poll(0)

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        while (status := self._poll(_LOOK_MS)) is None:
            pass
        return status

    def kill(self) -> None:
        """Kill it; its guard then kills its ranks."""
        if self.poll() is None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _poll(self, milliseconds: int) -> int | None:
        with self._lock:
            if self._status is None:
                end = select.poll()
                end.register(self._pidfd, select.POLLIN)
                if end.poll(milliseconds):
                    self._status = self._said()
                    self._close()
            return self._status

    def _said(self) -> int:
        """The status that it told before it ended, if it did not end by a signal."""
        said = b""
        with contextlib.suppress(OSError):
            said = self._connection.recv(_NUMBER.size, socket.MSG_DONTWAIT)
        return int(_NUMBER.unpack(said)[0]) if len(said) == _NUMBER.size else _KILLED

    def _close(self) -> None:
        self._connection.close()
        os.close(self._pidfd)


def inherit(requests: socket.socket) -> None:
    """Called in a freshly forked rank, whose environment is still the launcher's: its guard is asked there."""
    global _door
    _door = _Door(os.getpid(), requests, os.fstat(requests.fileno()).st_ino, _common_environ())


def ask(told: dict[str, Any]) -> Forked | None:
    """Have a launcher forked that runs what is `told`; None if there is no guard who could, or this process is not as the guard is."""
    door = _door
    if door is None or door.pid != os.getpid() or door.environ != _common_environ():
        return None
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            if os.fstat(door.requests.fileno()).st_ino != door.file:
                raise ConnectionError("the program has closed the socket")
            socket.send_fds(door.requests, [_message(told)], [1, 2, theirs.fileno()], socket.MSG_DONTWAIT)
        ours.settimeout(_HELLO_SECONDS)
        running = Forked(ours, _NUMBER.unpack(ours.recv(_NUMBER.size))[0])
        ours.sendall(b"+")
        ours.settimeout(None)
    except (OSError, struct.error):
        ours.close()
        return None
    return running


def _message(told: dict[str, Any]) -> bytes:
    """What is asked, and as what the rank starts it; a long one does not go in one piece, which the socket says."""
    import json  # every start imports this module

    about = {"folder": os.getcwd(), "processors": sorted(os.sched_getaffinity(0)), "mask": _mask_of_files()}
    return json.dumps(told | about).encode()


def answer(connection: socket.socket) -> bool:
    """In the forked launcher: say who it is, and whether it is still wanted."""
    with contextlib.suppress(OSError):
        connection.settimeout(_HELLO_SECONDS)
        connection.sendall(_NUMBER.pack(os.getpid()))
        return bool(connection.recv(1))
    return False


def report(connection: socket.socket, status: int) -> None:
    """Tell how the job has ended."""
    with contextlib.suppress(OSError):
        connection.sendall(_NUMBER.pack(status))


def _common_environ() -> dict[str, str]:
    """The environment without what ranks of one job differ in."""
    return {name: value for name, value in os.environ.items() if name not in _OF_RANK}


def _mask_of_files() -> int:
    """The mask of permissions of new files, which no call tells without changing it."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("Umask")), 0o022)

"""Who waits for what, across the processes of a job, when none of them moves any more.

Each double keeps a status page, an anonymous memory file that the others find under ``/proc`` by the job in its name: a counter of what it
has done, and, once it stands still, a description of what its streams and threads wait for. A process with a blocked
stream declares a deadlock when no counter of the job has moved and no process has computed for a while, and all have said by then that
they stand still: one whose streams are in the middle of something has not, however long that takes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import struct
import threading
import time
from pathlib import Path

from numba_kernels.rows import NamedTuple

_NAME = "driver-double-status"
_PAGE = 1 << 16
_HEAD = struct.Struct("<qqq")
"""Moves, length of the text, number of the thread that looks for deadlocks."""
_BUSY = 0.5
_FRAMES = 8
_FRAME = re.compile(r'^  File "(?P<path>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_IDENT_DIGITS = 2 * struct.calcsize("l")


class State(NamedTuple):
    """One process at one time.

    Attributes
    ----------
    moves
        What it has done so far.
    looking
        The thread that looks for deadlocks, 0 before it has.
    demand
        Seconds for which its other threads have run, or were ready to.
    text
        What it waits for; empty if it has done something since it last said that it stands still.
    """

    moves: int
    looking: int
    demand: float
    text: str

    def is_still(self, now: State, elapsed: float) -> bool:
        """Whether the process has done nothing until `now`, `elapsed` seconds later, and says so."""
        is_same = (self.moves, self.looking) == (now.moves, now.looking)
        return is_same and bool(now.text) and now.demand - self.demand < _BUSY * elapsed


class Detector:
    """Finds deadlocks of a job.

    Parameters
    ----------
    job
        Same in all its processes, and in no other job on the machine.
    patience
        Seconds for which nothing moves in a deadlock.
    """

    def __init__(self, job: str, patience: float) -> None:
        self._patience = patience
        self._link = f"/memfd:{_NAME}-{job} (deleted)"
        self._fd = os.memfd_create(f"{_NAME}-{job}", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _PAGE)
        self._page = mmap.mmap(self._fd, _PAGE)
        self._moves = self._thread = 0
        self._before: dict[int, State] = {}
        self._looked = 0.0

    def move(self) -> None:
        """Count something that this process does."""
        self._moves += 1
        _HEAD.pack_into(self._page, 0, self._moves, 0, self._thread)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._looked >= self._patience

    def describe(self, waits: list[str]) -> None:
        """Say that this process stands still and what for; it must not :meth:`move` meanwhile."""
        text = "\n".join(f"  {line}" for line in [*waits, f"main thread: {_main_thread()}"]).encode()[: _PAGE - _HEAD.size]
        self._page[_HEAD.size : _HEAD.size + len(text)] = text
        self._thread = threading.get_native_id()
        _HEAD.pack_into(self._page, 0, self._moves, len(text), self._thread)

    def look(self, *, is_blocked: bool) -> str:
        """Return the report of a deadlock, if it is one."""
        now = time.monotonic()
        before, elapsed = self._before, now - self._looked
        self._before, self._looked = self._states() if is_blocked else {}, now
        if before and _is_still(before, self._before, elapsed):
            lines = [f"process {pid}:\n{state.text}" for pid, state in self._before.items()]
            return f"deadlock: nothing has moved for {elapsed:.1f} s\n" + "\n".join(lines)
        return ""

    def _states(self) -> dict[int, State]:
        """All processes of the job that have a double."""
        states = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                page = next((link for link in (folder / "fd").iterdir() if _target(link) == self._link), None)
                if page is not None:
                    states[int(folder.name)] = _read(page, folder)
        return states

    def close(self) -> None:
        """Leave the job."""
        self._page.close()
        os.close(self._fd)


def _target(link: Path) -> str:
    """Where a link leads; nowhere if it is gone: processes that look at each other open and close descriptors all the time."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _read(page: Path, process: Path) -> State:
    """What a status page says, and what the process wants of the cores."""
    data = page.read_bytes()
    moves, length, looking = _HEAD.unpack_from(data)
    return State(moves, looking, _demand(process, looking), data[_HEAD.size : _HEAD.size + length].decode())


def _is_still(before: dict[int, State], after: dict[int, State], elapsed: float) -> bool:
    return before.keys() == after.keys() and all(before[pid].is_still(now, elapsed) for pid, now in after.items())


def _main_thread() -> str:
    """Where the main thread is.

    It goes on running meanwhile, and following the frames of a thread that runs is not safe in Python 3.11: a frame's caller can come out as
    an object that is no frame at all. faulthandler follows them in one step, which no other thread interrupts.
    """
    with os.fdopen(os.memfd_create(f"{_NAME}-stacks", os.MFD_CLOEXEC), "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = file.read().decode(errors="replace")
    own = stacks.partition(f"0x{threading.main_thread().ident or 0:0{_IDENT_DIGITS}x} ")[2].partition("\n\n")[0]
    frames = list(_FRAME.finditer(own))[:_FRAMES]
    return " < ".join(f"{frame['name']} ({Path(frame['path']).name}:{frame['line']})" for frame in frames)


def _demand(process: Path, looking: int) -> float:
    """Seconds that the threads of a process ran or waited for a core, but for the one that looks for deadlocks."""
    seconds = 0.0
    for task in (process / "task").iterdir():
        if task.name != str(looking):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                seconds += int((task / "schedstat").read_text().split()[1]) / 1e9
    return seconds

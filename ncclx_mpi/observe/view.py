"""Reading an arena from outside the job: nothing is mapped, nothing is written."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transports.shm.layout import CONTROL, HEADER, MAGIC, VERSION, ArenaPlan

_WORD = 8
_LINK = "/memfd:ncclx_mpi-arena"


class ArenaView:
    """A running job's arena, read through a process that holds it.

    Attributes
    ----------
    plan : ArenaPlan
        Where everything lies in it.
    nranks : int
        Number of ranks.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if self.word(HEADER.magic) != MAGIC or self.word(HEADER.version) != VERSION:
            os.close(self._fd)
            raise ValueError(f"{path} is an arena of another version of ncclx_mpi; trace it with that version")
        self.nranks = self.word(HEADER.nranks)
        self.plan = ArenaPlan(self.nranks, self.word(HEADER.world_size), self.word(HEADER.heap_bytes))

    def word(self, offset: int) -> int:
        """The word at `offset`."""
        return int.from_bytes(os.pread(self._fd, _WORD, offset), "little", signed=True)

    def words(self, offset: int, count: int) -> array[int]:
        """A copy of `count` words from `offset`."""
        return array("q", os.pread(self._fd, count * _WORD, offset))

    def state(self, rank: int) -> int:
        """ABSENT, ALIVE, FINALIZED or DEAD."""
        return self.word(self.plan.control(rank) + CONTROL.state)

    @property
    def job(self) -> int:
        """A number that no other job has."""
        return self.word(HEADER.job)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


@dataclass
class Found:
    """A job that runs on this machine: where its arenas can be opened, the process that started it, its number, and how many ranks it has."""

    paths: list[str]
    holder: int
    key: int
    world_size: int

    def open(self) -> list[ArenaView]:
        """Its arenas, without those whose processes have ended meanwhile."""
        views = []
        for path in self.paths:
            with contextlib.suppress(OSError):
                views.append(ArenaView(path))
        return views


def arenas_of(pid: int) -> list[str]:
    """Paths below /proc at which the process's arenas can be opened."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith(_LINK):
                    found.append(entry.path)
    return found


def jobs() -> list[Found]:
    """All jobs of this user (of all users, for root)."""
    found: dict[int, Found] = {}
    seen: set[int] = set()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        for path in arenas_of(pid):
            with contextlib.suppress(OSError, ValueError):
                view = ArenaView(path)
                if view.word(HEADER.key) not in seen:
                    seen.add(view.word(HEADER.key))
                    found.setdefault(view.job, Found([], view.word(HEADER.creator), view.job, view.plan.world_size)).paths.append(
                        path
                    )
                view.close()
    return list(found.values())


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                yield from family(int(child))


def command_of(pid: int) -> str:
    """The command line of a process, empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()

"""The simulated network of a job: an anonymous memory file that all ranks map, and which ends with the last of them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from transports.virtual.layout import DEFAULT_CREDITS, HEADER, MAGIC, MEMBER, MOST_CREDITS, VERSION, NetworkPlan

_WORD = 8
_MAP_NORESERVE = 0x4000  # Linux; in the mmap module from Python 3.13 on only


@dataclass(frozen=True)
class Settings:
    """How the network behaves.

    Attributes
    ----------
    credits
        Packets of 4 KiB that may be under way from a rank to another.
    delay_us, jitter_us
        A packet may be read `delay_us` after it was sent, and up to `jitter_us` later, as is drawn for each.
    is_shuffled
        Whether packets overtake each other.
    seed
        Of all that is drawn.
    """

    credits: int = DEFAULT_CREDITS
    delay_us: int = 0
    jitter_us: int = 0
    is_shuffled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.delay_us, self.jitter_us) < 0:
            raise ValueError(f"packets cannot arrive before they are sent: delay {self.delay_us} us, jitter {self.jitter_us} us")
        if not 1 <= self.credits <= MOST_CREDITS:
            raise ValueError(f"a simulated network has 1 to {MOST_CREDITS} credits, not {self.credits}")


class Network:
    """One mapping of it.

    Attributes
    ----------
    fd : int
        The memory file; the network owns it.
    base : int
        Address of the mapping in this process.
    plan : NetworkPlan
        Offsets of all regions.
    settings : Settings
        How it behaves.
    """

    def __init__(self, fd: int, nranks: int, settings: Settings) -> None:
        self.fd = fd
        self.settings = settings
        self.plan = plan = NetworkPlan(nranks, settings.credits)
        try:
            self._map = mmap.mmap(fd, plan.nbytes, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        except OSError:
            os.close(fd)
            raise
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_DONTDUMP)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)

    @classmethod
    def create(cls, nranks: int, settings: Settings | None = None, nodes: Sequence[int] = ()) -> Network:
        """Make the network of a job of `nranks` ranks, on the nodes of these numbers if they are said.

        Raises
        ------
        OSError
            The limits of this process are too low for it.
        """
        settings = settings or Settings()
        plan = NetworkPlan(nranks, settings.credits)
        fd = os.memfd_create("ncclx_mpi-network", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, plan.nbytes)
        except OSError:
            os.close(fd)
            raise
        network = cls(fd, nranks, settings)
        for field, value in (
            ("version", VERSION),
            ("nranks", nranks),
            ("credits", settings.credits),
            ("nbytes", plan.nbytes),
            ("delay_us", settings.delay_us),
            ("jitter_us", settings.jitter_us),
            ("shuffled", int(settings.is_shuffled)),
            ("seed", settings.seed),
            ("magic", MAGIC),
        ):
            network._set_word(getattr(HEADER, field), value)
        for rank, node in enumerate(nodes):
            network._set_word(plan.member(rank) + MEMBER.node, node)
        return network

    @classmethod
    def attach(cls, fd: int) -> Network:
        """Map a network that another process of the job made; takes over `fd`.

        Raises
        ------
        ValueError
            The file is no network, or one of another version of this package.
        """
        found = os.pread(fd, HEADER.total, 0)
        head = array("q", found.ljust(HEADER.total, b"\0"))
        if len(found) < HEADER.total or (head[HEADER.magic // _WORD], head[HEADER.version // _WORD]) != (MAGIC, VERSION):
            raise ValueError("the descriptor is not the network of a job of this version of ncclx_mpi")
        settings = Settings(
            head[HEADER.credits // _WORD],
            head[HEADER.delay_us // _WORD],
            head[HEADER.jitter_us // _WORD],
            bool(head[HEADER.shuffled // _WORD]),
            head[HEADER.seed // _WORD],
        )
        return cls(fd, head[HEADER.nranks // _WORD], settings)

    @property
    def nranks(self) -> int:
        return self.plan.nranks

    def join(self, rank: int, pid: int, start_time: int) -> None:
        """Say which process `rank` is."""
        self._set_word(self.plan.member(rank) + MEMBER.start_time, start_time)
        self._set_word(self.plan.member(rank) + MEMBER.pid, pid)

    def process_of(self, rank: int) -> tuple[int, int]:
        """Process of `rank` and its start time; zeros as long as it has not joined."""
        at = self.plan.member(rank)
        return self._word(at + MEMBER.pid), self._word(at + MEMBER.start_time)

    def leave(self, rank: int) -> None:
        """Say that `rank` ended its communication in order."""
        self._set_word(self.plan.member(rank) + MEMBER.left, 1)

    def has_left(self, rank: int) -> bool:
        """Whether `rank` said so."""
        return self._word(self.plan.member(rank) + MEMBER.left) != 0

    def nodes(self) -> tuple[int, ...]:
        """The number of the node of each rank, as whoever made the network said it."""
        return tuple(self._word(self.plan.member(rank) + MEMBER.node) for rank in range(self.nranks))

    def member_word(self, rank: int, field: str) -> int:
        """A word of what is known of `rank`: ``pid``, ``forced`` ..."""
        return self._word(self.plan.member(rank) + getattr(MEMBER, field))

    def set_member_word(self, rank: int, field: str, value: int) -> None:
        """Write a word of what is known of `rank`, which is this process's."""
        self._set_word(self.plan.member(rank) + getattr(MEMBER, field), value)

    def absent_ranks(self) -> list[int]:
        """Ranks that have not joined yet."""
        return [rank for rank in range(self.nranks) if not self.process_of(rank)[0]]

    def silence(self, rank: int, is_silent: bool = True) -> None:
        """Let nothing of `rank` arrive any more, or again."""
        self._set_word(self.plan.member(rank) + MEMBER.silent, int(is_silent))

    def close(self) -> None:
        """Unmap. Addresses inside the network become invalid."""
        del self._anchor
        self._map.close()
        os.close(self.fd)

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._map[offset : offset + _WORD], "little", signed=True)

    def _set_word(self, offset: int, value: int) -> None:
        self._map[offset : offset + _WORD] = value.to_bytes(_WORD, "little", signed=True)

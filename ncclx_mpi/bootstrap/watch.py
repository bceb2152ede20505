"""Notices the death of the other ranks where no launcher of ours does.

A daemon thread sleeps in ``poll`` over the pidfds of the peers; nothing is spent until one ends. A peer that ends before it
has finalized is declared dead in the arena, which wakes all who wait for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

from transports.shm.arena import Arena, start_time
from transports.shm.layout import FINALIZED


class Watch:
    """The thread that watches over the peers of one rank."""

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena = arena
        self._rank = rank
        self._owner = os.getpid()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="ncclx_mpi-watch", daemon=True)

    def start(self) -> None:
        """Begin; a child that the user forks has no such thread, and is no rank."""
        if self._arena.nranks > 1:
            self._thread.start()

    def close(self) -> None:
        """End the thread. Safe to call twice, and in a forked child."""
        if os.getpid() != self._owner or self._stop_write < 0:
            return
        os.close(self._stop_write)
        self._stop_write = -1
        if self._thread.is_alive():
            self._thread.join(1.0)
        os.close(self._stop_read)

    def _run(self) -> None:
        watched = {}
        lost = []
        for rank in range(self._arena.nranks):
            if rank != self._rank:
                fd = self._open(rank)
                if fd is None:
                    lost.append(rank)
                else:
                    watched[fd] = rank
        for rank in lost:
            self._ended(rank)
        self._poll(watched)
        for fd in watched:
            os.close(fd)

    def _open(self, rank: int) -> int | None:
        """A pidfd of the peer's process, None if it is gone (or its number belongs to another process by now)."""
        pid = self._arena.control_word(rank, "pid")
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            if start_time(pid) == self._arena.control_word(rank, "start_time"):
                return fd
            os.close(fd)
        return None

    def _poll(self, watched: dict[int, int]) -> None:
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN)
        for fd in watched:
            poll.register(fd, select.POLLIN)
        remaining = len(watched)
        while remaining:
            for fd, _ in poll.poll():
                if fd == self._stop_read:
                    return
                poll.unregister(fd)
                remaining -= 1
                self._ended(watched[fd])

    def _ended(self, rank: int) -> None:
        if self._arena.state(rank) != FINALIZED:
            self._arena.declare_dead(rank, "its process ended")

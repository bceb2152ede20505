"""Work with an order, on several processes: each task is done once, by whoever is free, after the tasks that it needs."""

from __future__ import annotations

import contextlib
import gc
import heapq
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ncclx_mpi import process

_NUMBER_BYTES = 4
_STOP = (1 << 8 * _NUMBER_BYTES) - 1
_DONE, _FAILED = b"\1", b"\0"
_MANY_OBJECTS = 100_000
"""A compiler makes millions that go by themselves; looking for cycles among them every 700 takes 5 to 11 % of the time."""


@dataclass(frozen=True)
class Task:
    """Something to do.

    Attributes
    ----------
    run
        Does it, in a forked process; returns whether it went well.
    needs
        Tasks that come first, by their place in the list. All are before this one.
    """

    run: Callable[[], bool]
    needs: frozenset[int] = frozenset()


def run_all(tasks: Sequence[Task], processes: int, told: Callable[[int, int], None] = lambda done, total: None) -> bool:
    """Do all tasks on so many forked processes, or as many as can be had; returns whether all went well.

    What needs one that failed is tried nevertheless. `told` is called with how many are done, and how many there are, whenever one is.

    Of those that can be begun, the one with the longest chain of others behind it goes first.
    """
    behind: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for needed in task.needs:
            behind[needed].append(number)
    chain = _chains(behind)
    missing = [len(task.needs) for task in tasks]
    ready = [(-chain[number], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    idle = list(_start_workers(tasks, min(processes, len(tasks))))
    busy: dict[socket.socket, tuple[_Worker, int]] = {}
    went_well, done = True, 0
    try:
        while busy or (ready and idle):
            while ready and idle:
                worker, (_, number) = idle.pop(), heapq.heappop(ready)
                worker.begin(number)
                busy[worker.connection] = worker, number
            for connection in select.select(list(busy), [], [])[0]:
                worker, number = busy.pop(connection)
                outcome = worker.outcome()
                went_well &= outcome == _DONE
                done += 1
                told(done, len(tasks))
                if outcome:
                    idle.append(worker)
                else:
                    worker.stop()
                for other in behind[number]:
                    missing[other] -= 1
                    if not missing[other]:
                        heapq.heappush(ready, (-chain[other], other))
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.stop()
    return went_well and not ready


def _chains(behind: list[list[int]]) -> list[int]:
    """For each task, how many others follow on it one after another."""
    chain = [0] * len(behind)
    for number in reversed(range(len(behind))):
        chain[number] = max((1 + chain[other] for other in behind[number]), default=0)
    return chain


def _start_workers(tasks: Sequence[Task], count: int) -> Iterator[_Worker]:
    """Start so many, or fewer where no more processes are allowed."""
    with contextlib.suppress(OSError):
        for _ in range(count):
            yield _Worker(tasks)


class _Worker:
    """A forked process that does one task after another."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.connection, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = process.fork()
        if self._pid == 0:
            process.end_with_parent(parent)
            _serve(theirs, tasks)
        theirs.close()

    def begin(self, number: int) -> None:
        """Have a task done. A process that has died is noticed by :meth:`outcome`."""
        with contextlib.suppress(OSError):
            self.connection.sendall(number.to_bytes(_NUMBER_BYTES, "little"))

    def outcome(self) -> bytes:
        """How the task went; nothing if the process died."""
        try:
            return self.connection.recv(1)
        except OSError:
            return b""

    def stop(self) -> None:
        """Let the process end, after what it is doing, and wait for it."""
        self.begin(_STOP)
        self.connection.close()
        os.waitpid(self._pid, 0)


def _serve(connection: socket.socket, tasks: Sequence[Task]) -> None:
    """In a worker: do what comes until told to stop."""
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS)
    try:
        while (number := int.from_bytes(connection.recv(_NUMBER_BYTES, socket.MSG_WAITALL), "little")) != _STOP:
            connection.sendall(_DONE if tasks[number].run() else _FAILED)
    finally:
        os._exit(0)

"""What collectives between hosts cost by plain sockets, the floor of UCX over TCP: ``python benchmarks/socket_floor.py``, as root.

Two ranks on each of two network namespaces, as in ``between_hosts.py``, whose words for bytes are meant. By hand, in arrays that all ranks
of a host map; nothing is matched, acknowledged, or watched for a peer that dies:

- ``alltoall``: a rank has a socket to each of the two on the other host, which it fills and empties as far as they go, and copies its own
  block and that of its mate.
- ``allgather``: it swaps its block with one rank of the other host, and copies three: its own, its mate's, and what its mate received.
- ``reduce_scatter``: it adds what it and its mate have for one rank of the other host, swaps that with it, and adds three for itself.

The same in turn on this library, and with ``--peer mpich=PYTHON`` on mpi4py over that MPI. Milliseconds: means of the slowest rank, the
least of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))

import between_hosts  # noqa: E402

PORT, RANKS = 28_100, 4
SIZES = (64 << 10, 16 << 20)
NAMES = ("alltoall", "allgather", "reduce_scatter")
SMALL = 64 << 10
PATIENCE = 60
"""Seconds that a rank waits for its mate."""
_FLAGS = 4096
"""Bytes before the blocks: a counter for each rank."""

Times = dict[str, dict[str, list[float]]]


def main() -> None:
    """Run all in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", default=",".join(NAMES), help="of them: alltoall,allgather")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "MEMORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    calls = options.calls.split(",")
    if options.rank:
        print(json.dumps(run(int(options.rank[0]), options.rank[1], calls)), flush=True)
        return
    times: Times = {}
    with between_hosts.hosts():
        for _ in range(options.rounds):
            note(times, by_hand(options.calls))
            for found in between_hosts.mpi(dict(peer.split("=", 1) for peer in options.peer), 2, options.calls):
                note(times, {row.removeprefix("mpi "): columns for row, columns in found.items()})
    for row, columns in times.items():
        floor = min(columns["sockets"])
        for name, values in columns.items():
            told = ", ".join(f"{value:.2f}" for value in values)
            print(f"{row:26} {name:10} {min(values):8.3f} ms  {min(values) / floor:5.2f} x sockets   ({told})")
    if options.json:
        Path(options.json).write_text(json.dumps(times, indent=1) + "\n")


def note(times: Times, found: dict[str, dict[str, float]]) -> None:
    """Add a round, in milliseconds."""
    for row, columns in found.items():
        for name, value in columns.items():
            times.setdefault(row, {}).setdefault(name, []).append(value / 1e3)


def by_hand(calls: str) -> dict[str, dict[str, float]]:
    """The slowest rank's microseconds."""
    fd = os.memfd_create("floor")
    os.ftruncate(fd, _FLAGS + RANKS * 2 * RANKS * max(SIZES))
    name = f"/proc/{os.getpid()}/fd/{fd}"
    line = [sys.executable, str(HERE), "--calls", calls, "--rank"]
    try:
        said = between_hosts.said_by_all([between_hosts.on_host(rank // 2, *line, str(rank), name) for rank in range(RANKS)])
    finally:
        os.close(fd)
    return {row: {"sockets": max(found[row] for found in said)} for row in said[0]}


def run(rank: int, name: str, calls: list[str]) -> dict[str, float]:
    """Microseconds of each call and size, as a rank."""
    with open(name, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    others = connected(rank)
    between_hosts.bind(rank, 2)
    found = {}
    for call in calls:
        for nbytes in SIZES:
            host = Host(rank, memory, nbytes)
            together(host, others)  # the same memory was blocks of another size
            host.sent[rank] = rank + 1
            step = {"alltoall": alltoall, "allgather": allgather, "reduce_scatter": reduce_scatter}[call](host, others)
            found[f"{call} {nbytes}"] = timed(host, others, step)
    return found


class Host:
    """What the ranks of a host have in common.

    Attributes
    ----------
    sent, received
        Of each rank, arrays of ``RANKS`` blocks of `nbytes`.
    mate, far
        The other rank of this host, and the one of the other host that stands where this one does.
    """

    def __init__(self, rank: int, memory: mmap.mmap, nbytes: int) -> None:
        self.rank, self.mate, self.far = rank, rank ^ 1, (rank + 2) % RANKS
        self._counters = np.frombuffer(memory, np.int64, RANKS)
        blocks = np.frombuffer(memory, np.uint8, RANKS * 2 * RANKS * nbytes, _FLAGS).reshape(RANKS, 2, RANKS, nbytes)
        self.sent, self.received = blocks[:, 0], blocks[:, 1]

    def meet(self) -> None:
        """Wait for the mate."""
        self._counters[self.rank] += 1
        limit = time.monotonic() + PATIENCE
        while self._counters[self.mate] < self._counters[self.rank]:
            if time.monotonic() > limit:
                raise SystemExit(f"rank {self.rank} has waited {PATIENCE} s for rank {self.mate}")
            os.sched_yield()


def timed(host: Host, others: list[socket.socket], step: Callable[[], None]) -> float:
    """Microseconds of a step, all ranks having begun it together, as ``between_hosts.py`` has them."""
    loops = max(12, min(200, (64 << 20) // host.sent.shape[2]))
    total = 0.0
    for number in range(loops + 1):
        together(host, others)
        begun = time.perf_counter()
        step()
        total += time.perf_counter() - begun if number else 0
        host.meet()
    return total / loops * 1e6


def together(host: Host, others: list[socket.socket]) -> None:
    """Wait for all ranks."""
    host.meet()
    exchange(others[host.rank % 2 :][:1], [np.zeros(1, np.uint8)], [np.zeros(1, np.uint8)])
    host.meet()


def alltoall(host: Host, others: list[socket.socket]) -> Callable[[], None]:
    """A block from each to each."""
    mine, received = host.sent[host.rank], host.received[host.rank]
    first = 2 * (1 - host.rank // 2)

    def step() -> None:
        exchange(others, [mine[first], mine[first + 1]], [received[first], received[first + 1]])
        received[host.rank] = mine[host.rank]
        received[host.mate] = host.sent[host.mate, host.rank]
        assert [int(block[-1]) for block in received] == [1, 2, 3, 4]

    return step


def allgather(host: Host, others: list[socket.socket]) -> Callable[[], None]:
    """A block of each to all."""
    received = host.received[host.rank]
    across = others[host.rank % 2 :][:1]

    def step() -> None:
        exchange(across, [host.sent[host.rank, 0]], [received[host.far]])
        host.meet()
        received[host.rank] = host.sent[host.rank, 0]
        received[host.mate] = host.sent[host.mate, 0]
        received[host.far ^ 1] = host.received[host.mate, host.far ^ 1]
        assert [int(block[-1]) for block in received] == [1, 2, 3, 4]

    return step


def reduce_scatter(host: Host, others: list[socket.socket]) -> Callable[[], None]:
    """The sum of a quarter of what all have."""
    count = host.sent.shape[2] // 4 // RANKS
    numbers = [host.sent[rank, 0].view(np.float32).reshape(RANKS, count) for rank in range(RANKS)]
    mine, mates = numbers[host.rank], numbers[host.mate]
    mine[:] = host.rank + 1
    partial, landing, result = (np.zeros(count, np.float32) for _ in range(3))
    across = others[host.rank % 2 :][:1]

    def step() -> None:
        np.add(mine[host.far], mates[host.far], out=partial)
        exchange(across, [partial.view(np.uint8)], [landing.view(np.uint8)])
        np.add(mine[host.rank], mates[host.rank], out=result)
        np.add(result, landing, out=result)
        assert result[-1] == 1 + 2 + 3 + 4

    return step


def connected(rank: int) -> list[socket.socket]:
    """Sockets to the two ranks of the other host, in their order."""
    if rank < 2:
        with socket.create_server((between_hosts._ADDRESSES[0], PORT + rank)) as server:
            accepted = [server.accept()[0] for _ in range(2)]
        found = dict(sorted((each.recv(1)[0], each) for each in accepted))
        others = list(found.values())
    else:
        others = []
        for peer in range(2):
            while True:
                try:
                    others.append(socket.create_connection((between_hosts._ADDRESSES[0], PORT + peer)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            others[-1].sendall(bytes([rank]))
    for each in others:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
    return others


def exchange(others: list[socket.socket], sent: list[Any], received: list[Any]) -> None:
    """Send a block on each socket, and receive one: by asking again and again what is small, as a rank that polls does."""
    wanted = [[memoryview(block), memoryview(landing)] for block, landing in zip(sent, received, strict=True)]
    if len(wanted[0][0]) > SMALL:
        _exchange_when_ready(others, wanted)
        return
    while any(views[0] or views[1] for views in wanted):
        moved = [_moved(other, views, True, True) for other, views in zip(others, wanted, strict=True)]
        if not any(moved):
            os.sched_yield()


def _exchange_when_ready(others: list[socket.socket], wanted: list[list[memoryview]]) -> None:
    with selectors.DefaultSelector() as selector:
        for other, views in zip(others, wanted, strict=True):
            selector.register(other, selectors.EVENT_READ | selectors.EVENT_WRITE, views)
        while selector.get_map():
            for key, ready in selector.select():
                views, other = key.data, key.fileobj
                assert isinstance(other, socket.socket)
                _moved(other, views, bool(ready & selectors.EVENT_WRITE), bool(ready & selectors.EVENT_READ))
                left = (selectors.EVENT_WRITE if views[0] else 0) | (selectors.EVENT_READ if views[1] else 0)
                if not left:
                    selector.unregister(other)
                elif left != key.events:
                    selector.modify(other, left, views)


def _moved(other: socket.socket, views: list[memoryview], may_send: bool, may_receive: bool) -> bool:
    """Send and receive as far as it goes, and keep what is left of both; whether anything went."""
    before = len(views[0]) + len(views[1])
    with contextlib.suppress(BlockingIOError):
        if may_send and views[0]:
            views[0] = views[0][other.send(views[0]) :]
    with contextlib.suppress(BlockingIOError):
        if may_receive and views[1]:
            received = other.recv_into(views[1])
            if not received:
                raise SystemExit("a rank of the other host has ended")
            views[1] = views[1][received:]
    return len(views[0]) + len(views[1]) < before


if __name__ == "__main__":
    main()

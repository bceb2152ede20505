"""What an alltoall between two hosts costs by plain sockets, the floor of one by UCX over TCP: as root ``python benchmarks/socket_floor.py``.

Two ranks on each of two network namespaces, as in ``between_hosts.py``, each with 16 MiB for each rank. By hand: a rank has a socket to each
of the two on the other host, which it fills and empties as far as they go, and copies its own block and that of its mate, which lies in
memory that both map; nothing is matched, acknowledged, or watched for a peer that dies. The same in turn on this library, and with ``--peer
mpich=PYTHON`` on mpi4py over that MPI. Milliseconds: means of the slowest rank, the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))

import between_hosts  # noqa: E402

BLOCK, LOOPS, PORT = 16 << 20, 10, 28_100


def main() -> None:
    """Run all in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps({"sockets": run(int(options.rank[0]), options.rank[1]) * 1e3}), flush=True)
        return
    times: dict[str, list[float]] = {}
    with between_hosts.hosts():
        for _ in range(options.rounds):
            for name, value in by_hand().items():
                times.setdefault(name, []).append(value)
            for found in between_hosts.mpi(dict(peer.split("=", 1) for peer in options.peer), 2, "alltoall"):
                for name, value in found[f"mpi alltoall {BLOCK}"].items():
                    times.setdefault(name, []).append(value / 1e3)
    floor = min(times["sockets"])
    for name, values in times.items():
        print(
            f"{name:10} {min(values):8.2f} ms  {min(values) / floor:5.2f} x sockets   ({', '.join(f'{value:.1f}' for value in values)})"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(times, indent=1) + "\n")


def by_hand() -> dict[str, float]:
    """The slowest rank's milliseconds."""
    fd = os.memfd_create("floor")
    os.ftruncate(fd, 4 * 2 * BLOCK)
    name = f"/proc/{os.getpid()}/fd/{fd}"
    lines = [between_hosts.on_host(rank // 2, sys.executable, str(HERE), "--rank", str(rank), name) for rank in range(4)]
    try:
        return {"sockets": max(found["sockets"] for found in between_hosts.said_by_all(lines))}
    finally:
        os.close(fd)


def run(rank: int, name: str) -> float:
    """Seconds of one exchange, as a rank."""
    with open(name, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 4 * 2 * BLOCK)
    shared = np.ndarray((4, 2, BLOCK), np.uint8, memory)
    mine, mates = shared[rank], shared[rank ^ 1]
    mine[:] = rank + 1
    sent, received = np.full((2, BLOCK), rank + 1, np.uint8), np.zeros((4, BLOCK), np.uint8)
    others = connected(rank)
    between_hosts.bind(rank // 2 + rank)
    begun = 0.0
    for number in range(LOOPS + 2):
        if number == 2:
            begun = time.perf_counter()
        exchange(others, [sent[0], sent[1]], [received[2 * (1 - rank // 2)], received[2 * (1 - rank // 2) + 1]])
        received[rank][:] = mine[0]
        received[rank ^ 1][:] = mates[1]
    taken = (time.perf_counter() - begun) / LOOPS
    assert [int(block[-1]) for block in received] == [1, 2, 3, 4]
    return taken


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
    """Send a block on each socket, and receive one."""
    with selectors.DefaultSelector() as selector:
        for other, block, landing in zip(others, sent, received, strict=True):
            selector.register(other, selectors.EVENT_READ | selectors.EVENT_WRITE, [memoryview(block), memoryview(landing)])
        while selector.get_map():
            for key, ready in selector.select():
                left, other = key.data, key.fileobj
                assert isinstance(other, socket.socket)
                if ready & selectors.EVENT_WRITE:
                    left[0] = left[0][other.send(left[0]) :]
                if ready & selectors.EVENT_READ:
                    left[1] = left[1][other.recv_into(left[1]) :]
                wanted = (selectors.EVENT_WRITE if left[0] else 0) | (selectors.EVENT_READ if left[1] else 0)
                if not wanted:
                    selector.unregister(other)
                elif wanted != key.events:
                    selector.modify(other, wanted, left)


if __name__ == "__main__":
    main()

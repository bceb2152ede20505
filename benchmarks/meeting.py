"""How long ranks of several hosts take to know each other's endpoints, beside NCCL's way: ``python benchmarks/meeting.py``, as root.

Four network namespaces of this machine, joined by a bridge, are the hosts. All processes are there and wait; then it begins, and it ends
when the last rank has the endpoints of all. Both ways are Python on the same sockets, in turn in each round, and the medians count.

- ``ours``: the agents of the hosts meet at a store and make a mesh (:mod:`ncclx_mpi.bootstrap.hosts`); a rank gives its endpoint to the
  agent of its host, which tells each other agent, and all ranks of a host map one table (:mod:`ncclx_mpi.bootstrap.exchange`).
- ``ring``: what NCCL does (``src/bootstrap.cc`` of NCCL 2.2x; arXiv:2510.20171 measures it): every rank gives its address to one root,
  which tells each rank that of the next one when all have come; then endpoints go round that ring, N - 1 times.

The table ends with what each rank, and the one place that all come to, sends and receives.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from namespaces import ip, namespaces

from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.agent_process import AgentProcess, Order
from ncclx_mpi.bootstrap.exchange import TOKEN_LENGTH, Directory, name_of
from ncclx_mpi.bootstrap.patience import Patience

HERE = Path(__file__).resolve()
HOSTS, SWITCH = [f"meet{number}" for number in range(4)], "meetswitch"
ENDPOINT_BYTES = 300
"""As long as UCX's over one TCP interface."""
_SECONDS = 120.0
_ROOT_PORT, _STORE_PORT = 29600, 29601
_ADDRESS = struct.Struct("!I15sHH")
"""A rank, its address, and the ports where the one before it and the root call."""
_FEW = struct.Struct("!I")


def main() -> None:
    """Run all rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,128,256", help="of all hosts together (64,128,256)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=("ours", "ring"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(word) for word in options.ranks.split(",")]
    if options.host is not None:
        be_host(options.host, options.way, sizes[0], sys.stdin.readline().strip())
        return
    with hosts():
        taken = measure(sizes, options.rounds)
    report(taken)
    if options.json:
        about = {"date": datetime.date.today().isoformat(), "python": platform.python_version(), "cores": os.cpu_count()}
        rows = [{"ranks": size, "way": way, "seconds": values} for (size, way), values in taken.items()]
        Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def measure(sizes: Sequence[int], rounds: int) -> dict[tuple[int, str], list[float]]:
    """Seconds of each way, round by round."""
    taken: dict[tuple[int, str], list[float]] = {}
    for number in range(rounds):
        for size in sizes:
            for way in ("ours", "ring"):
                taken.setdefault((size, way), []).append(meet_once(size, way))
                print(f"round {number + 1} of {rounds}: {size} ranks, {way}: {taken[size, way][-1]:.3f} s", file=sys.stderr)
    return taken


def report(taken: dict[tuple[int, str], list[float]]) -> None:
    """Print a line for each number of ranks."""
    print(f"{'ranks':>6} {'ours':>9} {'ring':>9} {'ratio':>6}   ours: at the store, of a rank   ring: at the root, of a rank")
    for size in sorted({size for size, _ in taken}):
        ours, ring = (statistics.median(taken[size, way]) for way in ("ours", "ring"))
        counts = f"{2 * len(HOSTS):>17} {2:>12} {2 * size:>21} {2 + 2 * (size - 1):>12}"
        print(f"{size:6} {ours:9.3f} {ring:9.3f} {ours / ring:6.2f}   {counts}")
    print("seconds; operations at the one place that all come to, and messages that a rank sends or gets")


def meet_once(size: int, way: str) -> float:
    """Start all processes, have them begin, and return how long the last one took."""
    pipe = subprocess.PIPE
    words = [sys.executable, str(HERE), "--ranks", str(size), "--way", way, "--host"]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "NCCLX_MPI_JOIN_TIMEOUT": str(_SECONDS)}
    begun = [
        subprocess.Popen(["ip", "netns", "exec", name, *words, str(number)], stdin=pipe, stdout=pipe, text=True, env=env)
        for number, name in enumerate(HOSTS)
    ]
    token = secrets.token_hex(16)
    for host in begun:
        print(token, file=host.stdin, flush=True)
    for host in begun:
        assert host.stdout is not None and host.stdout.readline() == "ready\n"
    start = time.monotonic()
    for host in begun:
        print(file=host.stdin, flush=True)
    ends = [float(host.communicate(timeout=_SECONDS)[0]) for host in begun]
    return max(ends) - start


def be_host(host: int, way: str, size: int, token: str) -> None:
    """Fork the processes of one host, and print when the last of its ranks was done."""
    count = size // len(HOSTS)
    ranks = range(host * count, (host + 1) * count)
    gate, ends = os.pipe(), os.pipe()
    begin = {"ours": start_ours, "ring": start_ring}[way]
    children = begin(
        host, ranks, size, token, lambda: os.read(gate[0], 1), lambda: os.write(ends[1], struct.pack("d", time.monotonic()))
    )
    os.close(gate[0])
    os.close(ends[1])
    print("ready", flush=True)
    sys.stdin.readline()
    os.write(gate[1], bytes(len(children)))
    with open(ends[0], "rb") as read:
        times = struct.unpack(f"{count}d", read.read(8 * count))
    for child in children:
        os.waitpid(child, 0)
    print(max(times))


Hook = Callable[[], object]


def fork(wait: Hook, work: Callable[[], None]) -> int:
    """A process that does `work` when it may."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        wait()
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


# Ours ------------------------------------------------------------------------------------------------------------


def start_ours(host: int, ranks: range, size: int, token: str, wait: Hook, done: Hook) -> list[int]:
    """The agent of the host, and its ranks."""
    name, local_token = handover.place(f"meeting {token} node {host}")
    order = Order(f"{address(0)}:{_STORE_PORT}", host, len(HOSTS), len(ranks), token, size, ranks[0], name, local_token)
    lifeline, _kept = os.pipe()
    agent = fork(wait, lambda: AgentProcess(order, lifeline).run())

    def rank_of(rank: int) -> None:
        for fd in handover.fetch(name, local_token, rank, size, _SECONDS):
            os.close(fd)
        found = Directory(name_of(name), local_token[:TOKEN_LENGTH]).exchange(rank, endpoint(rank), Patience(_SECONDS))
        check(found, size)
        done()

    return [agent, *(fork(wait, partial(rank_of, rank)) for rank in ranks)]


# The ring --------------------------------------------------------------------------------------------------------


def start_ring(host: int, ranks: range, size: int, token: str, wait: Hook, done: Hook) -> list[int]:
    """The root, on the first host, and the ranks."""
    root = [fork(wait, lambda: be_root(size))] if host == 0 else []

    def rank_of(rank: int) -> None:
        with socket.create_server((address(host), 0), backlog=2) as listener:
            found = go_round(rank, size, listener, join_ring(rank, host, listener.getsockname()[1]))
        check(found, size)
        done()

    return [*root, *(fork(wait, partial(rank_of, rank)) for rank in ranks)]


def be_root(size: int) -> None:
    """Tell each rank where the next one listens, when all have said where they do."""
    found: dict[int, tuple[bytes, int, int]] = {}
    with socket.create_server((address(0), _ROOT_PORT), backlog=size) as listener:
        while len(found) < size:
            connection, _ = listener.accept()
            with connection:
                rank, *where = _ADDRESS.unpack(exactly(connection, _ADDRESS.size))
                found[rank] = (where[0], where[1], where[2])
    for rank in range(size):
        text, _, port = found[rank]
        with socket.create_connection((_text(text), port), timeout=_SECONDS) as connection:
            connection.sendall(_ADDRESS.pack((rank + 1) % size, *found[(rank + 1) % size]))


def join_ring(rank: int, host: int, port: int) -> tuple[str, int]:
    """Say where this rank listens, and learn where the next one does."""
    with socket.create_server((address(host), 0)) as called:
        own = _ADDRESS.pack(rank, address(host).encode(), port, called.getsockname()[1])
        end = time.monotonic() + _SECONDS
        while True:
            try:
                with socket.create_connection((address(0), _ROOT_PORT), timeout=_SECONDS) as root:
                    root.sendall(own)
                break
            except ConnectionRefusedError:  # the root does not listen yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        connection, _ = called.accept()
        with connection:
            _, text, following, _ = _ADDRESS.unpack(exactly(connection, _ADDRESS.size))
    return _text(text), following


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


def go_round(rank: int, size: int, listener: socket.socket, following: tuple[str, int]) -> list[bytes]:
    """Pass endpoints on until all have come by."""
    found = [b""] * size
    found[rank] = passed = endpoint(rank)
    with socket.create_connection(following, timeout=_SECONDS) as right:
        left, _ = listener.accept()
        with left:
            for connection in (left, right):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for step in range(1, size):
                right.sendall(passed)
                passed = exactly(left, ENDPOINT_BYTES)
                found[(rank - step) % size] = passed
    return found


# Both ------------------------------------------------------------------------------------------------------------


def endpoint(rank: int) -> bytes:
    """What stands for the endpoint of a rank."""
    return _FEW.pack(rank) * (ENDPOINT_BYTES // _FEW.size)


def check(found: Sequence[bytes], size: int) -> None:
    """Raise unless these are the endpoints of all."""
    if list(found) != [endpoint(rank) for rank in range(size)]:
        raise SystemExit("a rank has wrong endpoints")


def exactly(connection: socket.socket, nbytes: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < nbytes:
        part = connection.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        data += part
    return data


def address(host: int) -> str:
    """Of a host."""
    return f"10.95.0.{host + 1}"


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Make the namespaces and the bridge between them, and remove them."""
    with namespaces(SWITCH, *HOSTS):
        ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "bridge", "up")
        for number, name in enumerate(HOSTS):
            ip("link", "add", "veth", "netns", name, "type", "veth", "peer", "name", f"to{number}", "netns", SWITCH)
            ip("-n", SWITCH, "link", "set", f"to{number}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", "veth")
            for link in ("lo", "veth"):
                ip("-n", name, "link", "set", link, "up")
        subprocess.run(
            ["ip", "netns", "exec", HOSTS[0], "ping", "-c", "1", "-w", "10", address(1)], capture_output=True, check=False
        )
        yield


if __name__ == "__main__":
    main()

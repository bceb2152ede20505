"""A large message over two links of different speed: ``python benchmarks/lanes.py``, as root.

Two network namespaces are joined by three pairs of virtual interfaces: one that jobs are started by, and two that are limited to ``--rates``
(``tc tbf``, in Mbit/s). In each of ``--rounds`` rounds, in turn, ``--bytes`` go from a rank on one to a rank on the other:

- ``lanes``: the two links as lanes (``NCCLX_MPI_LANES``).
- ``fast``: the faster link alone.
- ``rails``: as UCX shares them out, where it is given both and told to use two.
- ``halves``: half by each, by plain sockets and at once: what equal striping comes to.
- ``cut N``: the two as lanes, and link N loses everything from the middle of the message on. Afterwards each byte is compared, and another
  message goes by the link that is left.

Mbit/s that arrive, from the start of a send until its buffer is free; of a cut, seconds until then, beside those of the faster link.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
HOME = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from between_hosts import control_congestion  # noqa: E402
from namespaces import await_links, ip, namespaces  # noqa: E402

_HOSTS = tuple(f"la{os.getpid()}{end}" for end in "ab")
_NETWORKS = ("10.95.0", "10.95.1", "10.95.2")
"""The first one starts jobs; the others are lanes."""
_PORT = 27_400
_LIMIT = 120
"""Seconds after which a run has failed."""
Times = dict[str, list[float]]


def main() -> None:
    """Run all in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--rates", type=int, nargs=2, default=(300, 100), metavar="MBIT")
    parser.add_argument("--congestion", default="cubic,reno", help="control of TCP, the first that may be had; or system")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", choices=("whole", "cut", "half"), help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank == "half":
        be_half(options.number, options.bytes)
    elif options.rank:
        be_rank(options.rank == "cut", options.bytes)
    else:
        with hosts(options):
            times = measure(options)
        for name, values in times.items():
            print(f"{name:8} {statistics.median(values):8.1f} {'s' if name.startswith('cut') else 'Mbit/s'}")
        if options.json:
            about = {"date": time.strftime("%Y-%m-%d"), "bytes": options.bytes, "rates": options.rates, "rounds": times}
            Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def links(host: int) -> list[str]:
    """The interfaces of a host, that for starting first."""
    return [f"la{'ab'[host]}{number}" for number in range(len(_NETWORKS))]


@contextlib.contextmanager
def hosts(options: argparse.Namespace) -> Iterator[None]:
    """Make two namespaces with three links, two of which are limited."""
    with namespaces(*_HOSTS):
        for number, network in enumerate(_NETWORKS):
            near, far = (links(host)[number] for host in range(2))
            ip("link", "add", near, "netns", _HOSTS[0], "type", "veth", "peer", "name", far, "netns", _HOSTS[1])
            for host, link in enumerate((near, far)):
                ip("-n", _HOSTS[host], "addr", "add", f"{network}.{host + 1}/24", "dev", link)
                ip("-n", _HOSTS[host], "link", "set", link, "up")
                if number:
                    limit(host, number, options.rates[number - 1])
        for name in _HOSTS:
            ip("-n", name, "link", "set", "lo", "up")
            if options.congestion != "system":
                control_congestion(name, options.congestion.split(","))
        await_links((name, link) for host, name in enumerate(_HOSTS) for link in links(host))
        yield


def limit(host: int, number: int, rate: int) -> None:
    """Have a link send no more than so many Mbit/s."""
    shape = ["tbf", "rate", f"{rate}mbit", "burst", "128kb", "latency", "50ms"]
    subprocess.run(on_host(host, "tc", "qdisc", "replace", "dev", links(host)[number], "root", *shape), check=True)


def swallow(number: int) -> None:
    """Have a link lose all that is sent, both ways, and nobody hear of it: it goes to a card that is not there."""
    for host in range(2):
        other = ["to", f"{_NETWORKS[number]}.{2 - host}", "dev", links(host)[number]]
        ip("-n", _HOSTS[host], "neigh", "replace", *other, "lladdr", "02:00:00:00:00:01", "nud", "permanent")


def mend(number: int) -> None:
    """End that."""
    for host in range(2):
        ip("-n", _HOSTS[host], "neigh", "del", "to", f"{_NETWORKS[number]}.{2 - host}", "dev", links(host)[number])


def on_host(number: int, *words: str) -> list[str]:
    """A command there."""
    return ["ip", "netns", "exec", _HOSTS[number], *words]


def measure(options: argparse.Namespace) -> Times:
    """All rounds."""
    times: Times = {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        both = [",".join(links(host)[1:]) for host in range(2)]
        for name, found in (
            ("lanes", job("whole", options, NCCLX_MPI_LANES=both)),
            ("fast", job("whole", options, UCX_NET_DEVICES=[links(host)[1] for host in range(2)])),
            ("rails", job("whole", options, UCX_NET_DEVICES=both, UCX_MAX_EAGER_RAILS=["2"] * 2, UCX_MAX_RNDV_RAILS=["2"] * 2)),
            ("halves", halves(options)),
        ):
            times.setdefault(name, []).append(options.bytes * 8 / found / 1e6)
        for lane in (1, 2):
            times.setdefault(f"cut {lane}", []).append(job("cut", options, cut=lane, NCCLX_MPI_LANES=both))
            mend(lane)
    return times


def job(rank: str, options: argparse.Namespace, cut: int = 0, **variables: list[str]) -> float:
    """Run a rank on each host; the seconds that a message took. `variables`: of each host; `cut`: a link that fails in the middle."""
    token, port = secrets.token_hex(16), _PORT + secrets.randbelow(500)
    started = []
    for host in range(2):
        env = {
            **os.environ,
            "PYTHONPATH": str(HOME),
            "NCCLX_MPI_TOKEN": token,
            **{name: values[host] for name, values in variables.items()},
        }
        own = ["--nnodes", "2", "--rendezvous", f"{_NETWORKS[0]}.1:{port}", "-n", "1", "--node-rank", str(host)]
        words = [str(HERE), "--rank", rank, "--bytes", str(options.bytes)]
        line = on_host(host, sys.executable, "-m", "ncclx_mpi", "run", *own, *words)
        started.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
    watch = threading.Timer(_LIMIT, lambda: [each.kill() for each in started])
    watch.start()
    stdout = started[0].stdout
    assert stdout is not None
    found: dict[str, Any] = {}
    for line in stdout:
        if line.startswith("begun") and cut:
            time.sleep(0.5 * options.bytes * 8 / 1e6 / sum(options.rates))  # until the middle
            swallow(cut)
        elif line.startswith("{"):
            found = json.loads(line)
    statuses = [each.wait() for each in started]
    watch.cancel()
    if any(statuses) or not found:
        raise SystemExit(f"{rank} {variables} ended with {statuses}")
    return float(found["seconds"])


def be_rank(is_cut: bool, nbytes: int) -> None:
    """Send a message, and say how long that took; rank 1 compares it."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    data = np.arange(nbytes // 8, dtype=np.int64)
    room = np.zeros_like(data)
    for _ in range(1 if is_cut else 2):  # the first makes the connections
        comm.Sendrecv(data[: 1 << 18], 1 - comm.rank, recvbuf=room[: 1 << 18], source=1 - comm.rank)
    took = []
    for _ in range(1 if is_cut else 3):
        comm.Barrier()
        if comm.rank == 0:
            print("begun", flush=True)
            began = time.perf_counter()
            comm.Ssend(data, 1)
            took.append(time.perf_counter() - began)
        else:
            room[:] = -1
            comm.Recv(room, 0)
            assert (room == data).all()
    if is_cut:
        comm.Sendrecv(data, 1 - comm.rank, recvbuf=room, source=1 - comm.rank)
        assert (room == data).all()
    if comm.rank == 0:
        print(json.dumps({"seconds": statistics.median(took)}), flush=True)


def halves(options: argparse.Namespace) -> float:
    """Half of the bytes by each link, at once."""
    words = [str(HERE), "--rank", "half", "--bytes", str(options.bytes)]
    lines = [on_host(host, sys.executable, *words, "--number", str(host)) for host in range(2)]
    receiver = subprocess.Popen(lines[1], stdout=subprocess.PIPE, text=True)
    sender = subprocess.Popen(lines[0])
    output, _ = receiver.communicate(timeout=_LIMIT)
    sender.wait(timeout=_LIMIT)
    return float(json.loads(output)["seconds"])


def be_half(number: int, nbytes: int) -> None:
    """The sender (0) or receiver of both halves, each in a thread of its own."""
    half, times = nbytes // 2, [0.0, 0.0]

    def work(lane: int) -> None:
        address = (f"{_NETWORKS[lane + 1]}.2", _PORT + 600 + lane)
        if number:
            with socket.create_server(address) as server:
                server.settimeout(_LIMIT)
                peer, _ = server.accept()
            left, room, began = half, bytearray(1 << 20), time.perf_counter()
            while left:
                left -= peer.recv_into(room, min(left, len(room)))
            times[lane] = time.perf_counter() - began
        else:
            end = time.monotonic() + 10
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address, timeout=_LIMIT) as peer:
                    peer.sendall(bytes(half))
                    return
                if time.monotonic() > end:
                    raise SystemExit("nobody listens")
                time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if number:
        print(json.dumps({"seconds": max(times)}), flush=True)


if __name__ == "__main__":
    main()

"""What our messages cost by UCX, beside what UCX's own benchmark takes with the same library: ``python benchmarks/ucx_floor.py``.

Two processes on this machine, over the loopback interface unless UCX_NET_DEVICES says otherwise, exchange messages of each size there and
back. Half a round trip, the median of all, is printed in microseconds: ours with the Python calls of an engine (three a message), theirs
(``ucx_perftest -t ucp_am_lat``, which lies beside the library or is on the path) with none. Both are run in turn, ``--rounds`` times, and
the least median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ncclx_mpi.p2p.engine import Engine
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory
from transports.ucx.library import Library, find
from transports.ucx.transport import Ucx

SIZES = {8: 5000, 1024: 3000, 16 << 10: 1000, 64 << 10: 500, 1 << 20: 100, 16 << 20: 20}
"""How often a message of each size goes there and back."""


def main() -> None:
    """Run both, and print a table, or JSON to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank-1", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    if options.rank_1:
        exchange(1, None)
        return
    library = find()
    theirs = perftest(library)
    rounds = [(ours(), {size: their_half(theirs, library, size) for size in SIZES}) for _ in range(options.rounds)]
    rows = {size: (min(round[0][size] for round in rounds), min(round[1][size] for round in rounds)) for size in SIZES}
    print(
        f"UCX {library.name}, {library.path}, {os.environ['UCX_NET_DEVICES']}\n{'bytes':>10} {'ours':>10} {'theirs':>10} {'ratio':>6}"
    )
    for size, (our_half, their) in rows.items():
        print(f"{size:10} {our_half:10.2f} {their:10.2f} {our_half / their:6.2f}")
    if options.json:
        facts = {"ucx": library.name, "devices": os.environ["UCX_NET_DEVICES"], "half round trip, us": rows}
        Path(options.json).write_text(json.dumps(facts, indent=1))


def ours() -> dict[int, float]:
    """Half a round trip of each size, this process being rank 0."""
    program = [sys.executable, __file__, "--rank-1"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        return exchange(0, other)


def exchange(rank: int, other: subprocess.Popen[str] | None) -> dict[int, float]:
    """Connect with the other process, exchange messages, and leave."""
    out, into = (other.stdin, other.stdout) if other else (sys.stdout, sys.stdin)
    assert out is not None and into is not None
    arena = Arena.create(1, [rank], 2)
    arena.join(0)
    ucx = Ucx(find(), rank, 2, {1 - rank}, arena.death_notice)
    print(ucx.endpoint().hex(), file=out, flush=True)
    endpoints = [b"", b""]
    endpoints[1 - rank] = bytes.fromhex(into.readline())
    engine = Engine(arena, [SharedMemory(arena, rank), ucx], rank, timeout=300, endpoints={"ucx": endpoints})
    halves = {size: half_round_trip(engine, size, loops) for size, loops in SIZES.items()}
    engine.drain()
    engine.say_goodbye()
    engine.drain(seconds=1.0)
    ucx.close()
    return halves


def half_round_trip(engine: Engine, nbytes: int, loops: int) -> float:
    """Microseconds, the median of `loops`."""
    comm, room = engine.new_comm(4, [0, 1]), np.zeros(nbytes, np.uint8)
    address, other = room.ctypes.data, 1 - engine.rank
    starts = [engine.start_send, engine.start_recv]
    if engine.rank:
        starts.reverse()
    times = []
    for _ in range(loops):
        begun = time.perf_counter()
        for start in starts:
            request = start(comm, address, nbytes, other, 1)
            engine.wait(request)
            engine.free(request)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / 2 * 1e6


def perftest(library: Library) -> str:
    """Path of UCX's benchmark."""
    beside = Path(library.path).parents[1] / "bin" / "ucx_perftest"
    found = str(beside) if beside.exists() else shutil.which("ucx_perftest")
    if not found:
        raise SystemExit(f"there is no ucx_perftest beside {library.path} or on the path")
    return found


def their_half(program: str, library: Library, nbytes: int) -> float:
    """Microseconds that UCX's benchmark says, the median."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(library.path).parent), "UCX_TLS": os.environ.get("UCX_TLS", "tcp")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with subprocess.Popen([program, "-p", port], env=environment, stdout=subprocess.DEVNULL) as server:
        command = [program, "-p", port, "127.0.0.1", "-t", "ucp_am_lat", "-s", str(nbytes), "-n", str(SIZES[nbytes])]
        for _ in range(100):  # until the server listens
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            final = [line for line in done.stdout.splitlines() if line.startswith("Final")]
            if final:
                return float(final[0].split()[2])
            time.sleep(0.05)
        server.kill()
    raise SystemExit(f"{' '.join(command)}: {done.stderr}")


if __name__ == "__main__":
    main()

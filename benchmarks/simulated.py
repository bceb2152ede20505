"""What the simulator says of plans between hosts beside what they take: ``python benchmarks/simulated.py``, as root.

Hosts are namespaces, as in ``between_hosts.py``, with as many ranks on each as ``--layouts`` says: ``2x4`` is two hosts of four. First the
constants of the model are measured, by messages between two ranks, exchanges of all with one other, copies and reductions. Then each plan
of five collectives of more than 64 KiB is forced, in random order; of each call the time of the slowest rank counts, and of these the mean.
The same plan is priced with the constants of that minute, as ``ncclx simulate`` prices it, since a shared machine is another one in the
next. Of the rounds the middle ratio counts.

The hosts share the cores of this machine, one after the other: of four, the first two have one half. What sends and receives there is a
core, not a card, so the file that is printed says ``core.ranks`` and ``rack.core``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import between_hosts  # noqa: E402

COLLECTIVES = ("allreduce", "bcast", "allgather", "alltoall", "reduce_scatter")
SIZES = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes that each rank gives, to all others together."""
GOAL = 1.25
_BYTES, _MOST, _FEWEST = 32 << 20, 60, 5
"""A plan is called so often that this many bytes go, but not more than the second, nor less than the third."""
_ITEMSIZE = 4
_CORES = min(2, len(os.sched_getaffinity(0)))
"""That the ranks of all hosts share."""
_COLD = 64 << 20
"""Bytes of memory on which constants are measured, part by part: no cache holds them, as in a program that does more than to call."""


def main() -> None:
    """Run all layouts, and print a line for each point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", default="2x1,2x2,2x4,4x1")
    parser.add_argument("--only", default=",".join(COLLECTIVES), help="collectives: allreduce,bcast")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_rank(options.rank, options.only.split(","))
        return
    points: dict[str, dict[str, list[float]]] = {}
    networks: dict[str, list[str]] = {}
    for layout in options.layouts.split(","):
        for call, lines, times in measured(layout, options.rounds, options.only):
            networks.setdefault(f"{layout} {call}", []).append("; ".join(lines))
            for algorithm, us in times.items():
                found = points.setdefault(f"{layout} {call} {algorithm}", {"measured": [], "simulated": []})
                found["measured"].append(us)
                found["simulated"].append(priced(layout, call, algorithm, lines))
    report(points)
    if options.json:
        about = {"date": time.strftime("%Y-%m-%d"), "unit": "us", "goal": GOAL, "networks": networks, "points": points}
        Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def measured(layout: str, rounds: int, only: str) -> Iterator[tuple[str, list[str], dict[str, float]]]:
    """A call, the lines of a network, as it was just before and after, and what each plan of the call takes on it; of all rounds."""
    hosts, ranks = map(int, layout.split("x"))
    own = [f"node.ranks = {ranks}", f"core.ranks = {max(1, hosts * ranks // _CORES)}"]
    words = ["--rank", str(ranks), "--only", only]
    with between_hosts.hosts(count=hosts):
        for number in range(rounds):
            print(f"{layout}: round {number + 1} of {rounds}", file=sys.stderr)
            (said,) = between_hosts.said_by_all(between_hosts.ours(ranks, *words, count=hosts, program=HERE))
            for call, before, times, after in said["found"]:
                yield call, [*own, *(f"{key} = {(before[key] + after[key]) / 2:.6g}" for key in before)], times


def priced(layout: str, call: str, algorithm: str, lines: list[str]) -> float:
    """What the simulator says of a plan, in us."""
    from ncclx_mpi.algorithms import row_of
    from ncclx_mpi.simulate import network
    from ncclx_mpi.simulate.calls import Call
    from ncclx_mpi.simulate.price import price

    hosts, ranks = map(int, layout.split("x"))
    name, nbytes = call.split()
    nodes = tuple(rank // ranks for rank in range(hosts * ranks))
    return price(row_of(name, algorithm), Call(hosts * ranks, int(nbytes), _ITEMSIZE, nodes=nodes), network.read(lines)).us


def report(points: dict[str, dict[str, list[float]]]) -> None:
    """A line for each point, medians of all rounds, and how many hold."""
    held = 0
    for point, found in points.items():
        ratios = [simulated / us for simulated, us in zip(found["simulated"], found["measured"], strict=True)]
        us, simulated, ratio = (statistics.median(values) for values in (found["measured"], found["simulated"], ratios))
        held += 1 / GOAL <= ratio <= GOAL
        print(f"{point:56} {us:11.1f} us, simulated {simulated:11.1f} {ratio:6.2f}")
    print(f"{held} of {len(points)} within {GOAL}")


# Ranks --------------------------------------------------------------------------------------------------------------------


def be_rank(ranks: int, only: list[str]) -> None:
    """Measure constants and points, and say them."""
    from mpi4py import MPI

    from ncclx_mpi.algorithms import PLAN, rows_of

    comm, found = MPI.COMM_WORLD, []
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank * _CORES // comm.size]})
    for name in only:
        names = [row.name for row in rows_of(name) if row.kind == PLAN]
        comms = {each: between_hosts.flat_twin(comm, name, each)[between_hosts.FLAT] for each in names}
        for nbytes in SIZES:
            block = nbytes // comm.size if name == "alltoall" else nbytes
            calls = {each: between_hosts.call_of(name, comms[each], block) for each in names}
            before = constants(comm, ranks, nbytes)
            us = between_hosts.means_in_turn(comm, calls, max(_FEWEST, min(_MOST, _BYTES // nbytes)))
            found.append((f"{name} {nbytes}", before, us, constants(comm, ranks, nbytes)))
        for each in names:
            comms[each].Free()
    if comm.rank == 0:
        print(json.dumps({"found": found}), flush=True)


def constants(comm: Any, ranks: int, nbytes: int) -> dict[str, float]:
    """What the file about this network says, for messages of up to so many bytes; of rank 0."""
    sharing, other_half = max(1, comm.size // _CORES), (comm.rank + comm.size // 2) % comm.size
    found = {"message": flood(comm)}
    one, both = one_way(comm, comm.size - 1, nbytes), exchange(comm, other_half, nbytes)
    found["rack.bandwidth"] = _gigabytes(one.byte)
    found["rack.latency"] = max(0.0, one.us - found["message"])
    found["rack.core"] = _gigabytes(both.byte / 2 / sharing)  # of each rank, what it sends, and what it receives
    if ranks > 1:
        near = exchange(comm, comm.rank ^ 1, nbytes)
        found["node.latency"] = max(0.0, near.us - found["message"])
        found["node.core"] = found["node.bandwidth"] = _gigabytes(near.byte / 2 / sharing)
    found["copy"], found["reduce"] = _gigabytes(copied(nbytes)), _gigabytes(reduced(nbytes))
    comm.Barrier()
    return found


class _Line:
    """What a message takes: so many us, and so many for each byte, by two sizes."""

    def __init__(self, times: dict[int, float]) -> None:
        (small, its), (large, other) = sorted(times.items())
        self.byte = max(other - its, 1e-3) / (large - small)
        self.us = max(0.0, its - small * self.byte)


def _sizes(nbytes: int) -> tuple[int, int]:
    return max(nbytes // 4, 64 << 10), nbytes


def one_way(comm: Any, peer: int, nbytes: int) -> _Line:
    """Half a round trip between rank 0 and another one, while the others wait."""

    def turn(data: Any) -> None:
        between_hosts.there_and_back(comm, data, peer)

    return _Line({each: _mean(comm, (0, peer), turn, each) / 2 for each in _sizes(nbytes)})


def exchange(comm: Any, peer: int, nbytes: int) -> _Line:
    """An exchange of all ranks, each with one."""

    def turn(data: Any) -> None:
        comm.Sendrecv(data, peer, recvbuf=room[: data.nbytes], source=peer)

    room = np.ones(nbytes, np.uint8)
    return _Line({each: _mean(comm, range(comm.size), turn, each) for each in _sizes(nbytes)})


def flood(comm: Any, number: int = 400) -> float:
    """What a message of 8 B takes that many others follow."""

    def turn(data: Any) -> None:
        start = comm.Isend if comm.rank == 0 else comm.Irecv
        for request in [start(data, far - comm.rank) for _ in range(number)]:
            request.Wait()

    far = comm.size - 1
    return _mean(comm, (0, far), turn, 8) / number


def _mean(comm: Any, who: Sequence[int], turn: Callable[[Any], None], nbytes: int) -> float:
    """Us of a turn, in which some ranks take part; the others wait."""
    turns = max(5, min(50, _BYTES // nbytes))
    parts = np.ones(_COLD, np.uint8).reshape(-1, nbytes)
    comm.Barrier()
    begun = 0.0
    for number in range(turns + 1 if comm.rank in who else 0):
        if number == 1:
            begun = time.perf_counter()
        turn(parts[number % len(parts)])
    us = (time.perf_counter() - begun) / turns * 1e6
    comm.Barrier()
    return us


def copied(nbytes: int) -> float:
    """Us a byte of a copy."""
    return _middle(np.copyto, np.uint8, nbytes)


def reduced(nbytes: int) -> float:
    """Us a byte of a reduction."""
    from mpi4py import MPI

    return _middle(lambda target, source: MPI.SUM.Reduce_local(source, target), np.float32, nbytes)


def _middle(call: Callable[[Any, Any], Any], dtype: Any, nbytes: int) -> float:
    """Us a byte of a call with a target and a source."""
    times = []
    for target, source in zip(*(np.ones(_COLD, np.uint8).view(dtype).reshape(_COLD // nbytes, -1) for _ in range(2)), strict=True):
        begun = time.perf_counter()
        call(target, source)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6 / nbytes


def _gigabytes(us: float) -> float:
    """GB/s, of us a byte."""
    return 1e-3 / us


if __name__ == "__main__":
    main()

"""What the simulator says of plans between hosts beside what they take: ``python benchmarks/simulated.py``, as root.

Hosts are namespaces, as in ``between_hosts.py``, with as many ranks on each as ``--layouts`` says: ``2x4`` is two hosts of four. First the
constants of the model are measured, by messages of two ranks, copies and reductions, and by nothing else. Then each plan of five collectives
of more than 64 KiB is forced, in random order; of each call the time of the slowest rank counts, of these the mean, and of the rounds the
least. The same plan is priced with the constants of its round's job, as ``ncclx simulate`` prices it.

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
from collections.abc import Callable
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
_SMALL, _LARGE = 64 << 10, 4 << 20
"""Bytes of the messages by which the model learns what one takes, and what a byte takes."""
_BYTES, _MOST, _FEWEST = 32 << 20, 60, 5
"""A plan is called so often that this many bytes go, but not more than the second, nor less than the third."""
_ITEMSIZE = 4


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
    layouts = {layout: measured(layout, options.rounds, options.only) for layout in options.layouts.split(",")}
    points = {
        point: times for layout, (network, found) in layouts.items() for point, times in priced(layout, network, found).items()
    }
    report(points)
    if options.json:
        networks = {layout: network for layout, (network, _) in layouts.items()}
        about = {"date": time.strftime("%Y-%m-%d"), "unit": "us", "goal": GOAL, "networks": networks, "points": points}
        Path(options.json).write_text(json.dumps(about, indent=1) + "\n")


def measured(layout: str, rounds: int, only: str) -> tuple[list[str], dict[str, float]]:
    """The lines of a network, and the least time of each plan, of all rounds."""
    hosts, ranks = map(int, layout.split("x"))
    constants: dict[str, list[float]] = {}
    times: dict[str, float] = {}
    with between_hosts.hosts(count=hosts):
        for number in range(rounds):
            print(f"{layout}: round {number + 1} of {rounds}", file=sys.stderr)
            lines = between_hosts.ours(ranks, count=hosts)
            words = [str(HERE), "--rank", str(ranks), "--only", only]
            (found,) = between_hosts.said_by_all([[*line[: line.index(str(between_hosts.HERE))], *words] for line in lines])
            for key, value in found["constants"].items():
                constants.setdefault(key, []).append(value)
            for point, us in found["us"].items():
                times[point] = min(us, times.get(point, us))
    lines = [f"{key} = {statistics.median(values):.6g}" for key, values in constants.items()]
    return [f"node.ranks = {ranks}", f"core.ranks = {max(1, hosts * ranks // _cores())}", *lines], times


def priced(layout: str, lines: list[str], times: dict[str, float]) -> dict[str, dict[str, float]]:
    """What each plan takes, and what the simulator says."""
    from ncclx_mpi.algorithms import rows_of
    from ncclx_mpi.simulate import network
    from ncclx_mpi.simulate.calls import Call
    from ncclx_mpi.simulate.price import price

    hosts, ranks = map(int, layout.split("x"))
    print(f"\n# {layout}", *lines, sep="\n")
    modelled = network.read(lines)
    found = {}
    for point, us in times.items():
        name, nbytes, algorithm = point.split()
        (row,) = (row for row in rows_of(name) if row.name == algorithm)
        nodes = tuple(rank // ranks for rank in range(hosts * ranks))
        call = Call(hosts * ranks, int(nbytes), _ITEMSIZE, nodes=nodes)
        found[f"{layout} {point}"] = {"measured": us, "simulated": round(price(row, call, modelled).us, 1)}
    return found


def report(points: dict[str, dict[str, float]]) -> None:
    """A line for each point, and how many hold."""
    held = 0
    print()
    for point, times in points.items():
        ratio = times["simulated"] / times["measured"]
        held += 1 / GOAL <= ratio <= GOAL
        print(f"{point:56} {times['measured']:11.1f} us, simulated {times['simulated']:11.1f} {ratio:6.2f}")
    print(f"{held} of {len(points)} within {GOAL}")


# Ranks --------------------------------------------------------------------------------------------------------------------


def be_rank(ranks: int, only: list[str]) -> None:
    """Measure constants and points, and say them."""
    from mpi4py import MPI

    from ncclx_mpi.algorithms import PLAN, rows_of

    comm, found, dice = MPI.COMM_WORLD, {}, np.random.default_rng(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank * _cores() // comm.size]})
    learned = constants(comm, ranks)
    for name in only:
        names = [row.name for row in rows_of(name) if row.kind == PLAN]
        comms = {each: between_hosts.flat_twin(comm, name, each)[between_hosts.FLAT] for each in names}
        for nbytes in SIZES:
            block = nbytes // comm.size if name == "alltoall" else nbytes
            calls = {each: between_hosts.call_of(name, comms[each], block) for each in comms}
            times = {each: np.zeros(max(_FEWEST, min(_MOST, _BYTES // nbytes)) + 1) for each in comms}
            for number in range(len(times[names[0]])):
                for each in dice.permutation(names):
                    comm.Barrier()
                    begun = time.perf_counter()
                    calls[each]()
                    times[each][number] = (time.perf_counter() - begun) * 1e6
            for each, own in times.items():
                slowest = np.zeros_like(own)
                comm.Allreduce(own, slowest, op=MPI.MAX)
                found[f"{name} {nbytes} {each}"] = float(np.mean(slowest[1:]))  # the first call makes the plan, and what it needs
        for each in names:
            comms[each].Free()
    if comm.rank == 0:
        print(json.dumps({"constants": learned, "us": found}), flush=True)


def _cores() -> int:
    """That the ranks of all hosts share."""
    return min(2, len(os.sched_getaffinity(0)))


def constants(comm: Any, ranks: int) -> dict[str, float]:
    """What the file about this network says; of rank 0."""
    far = comm.size - 1
    found = {}
    found["message"] = flood(comm, far)
    one, both = one_way(comm, far), both_ways(comm, far)
    found["rack.bandwidth"] = _gigabytes(one.byte)
    found["rack.latency"] = max(0.0, one.us - found["message"])
    found["rack.core"] = _gigabytes(both.byte / 2)
    if ranks > 1:  # on one core: what one sends the other receives afterwards
        near = one_way(comm, 1)
        found["node.latency"] = max(0.0, near.us - found["message"])
        found["node.core"] = found["node.bandwidth"] = _gigabytes(near.byte / 2)
    found["copy"], found["reduce"] = _gigabytes(copied()), _gigabytes(reduced())
    comm.Barrier()
    return found


class _Line:
    """What a message takes: so many us, and so many for each byte, by two sizes."""

    def __init__(self, times: dict[int, float]) -> None:
        (small, its), (large, other) = sorted(times.items())
        self.byte = (other - its) / (large - small)
        self.us = max(0.0, its - small * self.byte)


def one_way(comm: Any, peer: int) -> _Line:
    """Half a round trip between rank 0 and another one."""

    def turn(data: Any) -> None:
        if comm.rank == 0:
            comm.Send(data, peer)
            comm.Recv(data, peer)
        else:
            comm.Recv(data, 0)
            comm.Send(data, 0)

    return _Line({nbytes: _mean(comm, peer, turn, nbytes) / 2 for nbytes in (_SMALL, _LARGE)})


def both_ways(comm: Any, peer: int) -> _Line:
    """An exchange of these two."""
    other = peer - comm.rank

    def turn(data: Any) -> None:
        comm.Sendrecv(data, other, recvbuf=room[data.nbytes], source=other)

    room = {nbytes: np.zeros(nbytes, np.uint8) for nbytes in (_SMALL, _LARGE)}
    return _Line({nbytes: _mean(comm, peer, turn, nbytes) for nbytes in (_SMALL, _LARGE)})


def flood(comm: Any, peer: int, number: int = 400) -> float:
    """What a message of 8 B takes that many others follow."""

    def turn(data: Any) -> None:
        start = comm.Isend if comm.rank == 0 else comm.Irecv
        for request in [start(data, peer - comm.rank) for _ in range(number)]:
            request.Wait()

    return _mean(comm, peer, turn, 8) / number


def _mean(comm: Any, peer: int, turn: Callable[[Any], None], nbytes: int) -> float:
    """Us of a turn, in which only two ranks take part; the others wait."""
    data, turns = np.zeros(nbytes, np.uint8), max(5, min(200, _BYTES // nbytes))
    comm.Barrier()
    begun = 0.0
    for number in range(turns + 1 if comm.rank in (0, peer) else 0):
        if number == 1:
            begun = time.perf_counter()
        turn(data)
    us = (time.perf_counter() - begun) / turns * 1e6
    comm.Barrier()
    return us


def copied() -> float:
    """Us a byte of a copy."""
    source, target = np.ones(_LARGE, np.uint8), np.ones(_LARGE, np.uint8)
    return _best(lambda: np.copyto(target, source))


def reduced() -> float:
    """Us a byte of a reduction."""
    from mpi4py import MPI

    source, target = np.ones(_LARGE // _ITEMSIZE, np.float32), np.ones(_LARGE // _ITEMSIZE, np.float32)
    return _best(lambda: MPI.SUM.Reduce_local(source, target))


def _best(call: Callable[[], None]) -> float:
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6 / _LARGE


def _gigabytes(us: float) -> float:
    """GB/s, of us a byte."""
    return 1e-3 / us


if __name__ == "__main__":
    main()

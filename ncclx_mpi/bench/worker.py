"""The timed program: plain mpi4py, the same file on every side.

    mpiexec -n 2 python worker.py points.json results.json

``points.json`` holds ``{"points": [[case, bytes], ...], "seconds": s, "blocks": b}``. Each point is warmed up, then
timed in up to `blocks` blocks of as many calls as fit the seconds; a block's time is that of its slowest rank, the result
is the median over the blocks. Calls follow each other without a barrier between them, as in nccl-tests.

Bytes are what one rank contributes to one destination, in float32. Nothing of this package is imported: the other sides have not got it.
"""

import json
import sys
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI


class Work(NamedTuple):
    """One case on one rank.

    Attributes
    ----------
    call
        Python statement that is timed.
    names
        What the statement refers to, beside ``comm``.
    result
        Name of the array to check after the run; empty for none.
    expected
        What it must hold.
    trips
        Calls that one statement stands for: the time is divided by it.
    requests
        Persistent requests to free in the end.
    """

    call: str
    names: dict[str, Any]
    result: str = ""
    expected: Any = None
    trips: int = 1
    requests: Sequence[Any] = ()


Build = Callable[[Any, int], Work]
"""Makes the work of a rank, out of the communicator and the bytes."""


def _sent(nbytes: int, rank: int, blocks: int = 1) -> Any:
    return np.full(blocks * (nbytes // 4), rank + 1, np.float32)


def _room(nbytes: int, blocks: int = 1) -> Any:
    return np.zeros(blocks * (nbytes // 4), np.float32)


def _ranks(nbytes: int, size: int) -> Any:
    """Block r holds r + 1."""
    return np.repeat(np.arange(1, size + 1, dtype=np.float32), nbytes // 4)


def _barrier(comm: Any, nbytes: int) -> Work:
    return Work("comm.Barrier()", {})


def _bcast(comm: Any, nbytes: int) -> Work:
    return Work("comm.Bcast(b)", {"b": _sent(nbytes, comm.rank)}, "b", 1)


def _reduction(method: str, comm: Any, nbytes: int) -> Work:
    n, r = comm.size, comm.rank
    total = {
        "Allreduce": n * (n + 1) / 2,
        "Reduce": n * (n + 1) / 2 if r == 0 else 0,
        "Scan": (r + 1) * (r + 2) / 2,
        "Exscan": r * (r + 1) / 2,
    }[method]
    return Work(f"comm.{method}(s, r)", {"s": _sent(nbytes, r), "r": _room(nbytes)}, "r", total)


def _reduce_scatter(call: str, comm: Any, nbytes: int) -> Work:
    n = comm.size
    names = {"s": _sent(nbytes, comm.rank, n), "r": _room(nbytes), "counts": [nbytes // 4] * n}
    return Work(call, names, "r", n * (n + 1) / 2)


def _gathering(method: str, is_vector: bool, comm: Any, nbytes: int) -> Work:
    n = comm.size
    blocks = n if method.startswith("Alltoall") else 1
    target: Any = _room(nbytes, n)
    names = {"s": _sent(nbytes, comm.rank, blocks), "r": target, "counts": [nbytes // 4] * n}
    send = "[s, counts]" if is_vector and blocks > 1 else "s"
    call = f"comm.{method}({send}, {'[r, counts]' if is_vector else 'r'})"
    holds = comm.rank == 0 or not method.startswith("Gather")
    return Work(call, names, "r", _ranks(nbytes, n) if holds else 0)


def _scatter(call: str, comm: Any, nbytes: int) -> Work:
    names = {"s": _ranks(nbytes, comm.size), "r": _room(nbytes), "counts": [nbytes // 4] * comm.size}
    return Work(call, names, "r", comm.rank + 1)


def _alltoallw(comm: Any, nbytes: int) -> Work:
    n = comm.size
    sides = ([nbytes // 4] * n, [k * nbytes for k in range(n)]), [MPI.FLOAT] * n
    names = {"s": _sent(nbytes, comm.rank, n), "r": _room(nbytes, n), "counts": sides[0], "types": sides[1]}
    return Work("comm.Alltoallw([s, counts, types], [r, counts, types])", names, "r", _ranks(nbytes, n))


def _nonblocking(blocking: Build, comm: Any, nbytes: int) -> Work:
    """The non-blocking form of a collective, waited for at once."""
    work = blocking(comm, nbytes)
    method, operands = work.call.removeprefix("comm.").split("(", 1)
    return work._replace(call=f"comm.I{method.lower()}({operands}.Wait()")


def _persistent(blocking: Build, comm: Any, nbytes: int) -> Work:
    """The persistent form of a collective, started and waited for."""
    work = blocking(comm, nbytes)
    request = eval(work.call.replace("(", "_init(", 1), {**work.names, "comm": comm})
    return work._replace(call="request.Start(); request.Wait()", names={**work.names, "request": request}, requests=[request])


def _ring(comm: Any, nbytes: int) -> Work:
    """One message to the next rank, one from the rank before."""
    n, r = comm.size, comm.rank
    names = {"s": _sent(nbytes, r), "r": _room(nbytes), "above": (r + 1) % n, "below": (r - 1) % n}
    call = "MPI.Request.Waitall([comm.Irecv(r, below), comm.Isend(s, above)])"
    return Work(call, names, "r", names["below"] + 1)


def _persistent_ring(comm: Any, nbytes: int) -> Work:
    work = _ring(comm, nbytes)
    names = work.names
    requests = [comm.Recv_init(names["r"], names["below"]), comm.Send_init(names["s"], names["above"])]
    call = "MPI.Prequest.Startall(requests); MPI.Request.Waitall(requests)"
    return work._replace(call=call, names={**names, "requests": requests}, requests=requests)


def _pingpong(comm: Any, nbytes: int) -> Work:
    """Half a round trip between ranks 0 and 1."""
    names = {"s": _sent(nbytes, comm.rank), "r": _room(nbytes)}
    calls = {0: "comm.Send(s, 1); comm.Recv(r, 1)", 1: "comm.Recv(r, 0); comm.Send(s, 0)"}
    is_player = comm.rank < 2
    return Work(calls.get(comm.rank, "pass"), names, "r" if is_player else "", 2 - comm.rank, trips=2)


def _dictionary(nbytes: int) -> dict[str, float]:
    """A dictionary whose pickle has about `nbytes`."""
    return {f"parameter {k:04d}": k / 7 for k in range(max(1, nbytes // 28))}


def _array(nbytes: int) -> Any:
    return np.zeros(nbytes // 8)


def _list(nbytes: int) -> list[Any]:
    """A list that holds an array."""
    return ["header", {"step": 1}, np.ones(nbytes // 8)]


def _object_bcast(make: Callable[[int], Any], comm: Any, nbytes: int) -> Work:
    """An object of rank 0 to all."""
    return Work("d = comm.bcast(given)", {"given": make(nbytes) if comm.rank == 0 else None})


def _object_pingpong(make: Callable[[int], Any], comm: Any, nbytes: int) -> Work:
    """Half a round trip of an object between ranks 0 and 1."""
    calls = {0: "comm.send(given, 1); d = comm.recv(source=1)", 1: "d = comm.recv(source=0); comm.send(given, 0)"}
    return Work(calls.get(comm.rank, "pass"), {"given": make(nbytes)}, trips=2)


def _object_ring(call: str, make: Callable[[int], Any], comm: Any, nbytes: int) -> Work:
    """An object to the next rank, one from the rank before."""
    return Work(call, {"given": make(nbytes), "above": (comm.rank + 1) % comm.size, "below": (comm.rank - 1) % comm.size})


_SENDRECV = "d = comm.sendrecv(given, above, source=below)"
_WAITALL = "d = MPI.Request.waitall([comm.irecv(source=below), comm.isend(given, above)])"
_WAIT = "q = comm.irecv(source=below); p = comm.isend(given, above); d = q.wait(); p.wait()"
_MPROBE = "p = comm.isend(given, above); d = comm.mprobe(below).recv(); p.wait()"


def _allgather_dict(comm: Any, nbytes: int) -> Work:
    return Work("d = comm.allgather(words)", {"words": _dictionary(nbytes)})


def _allreduce_object(comm: Any, nbytes: int) -> Work:
    """A Python float for each 8 bytes, in a tuple if there are several, reduced by MPI.MAX."""
    numbers = tuple(comm.rank + 0.5 for _ in range(max(1, nbytes // 8)))
    return Work("x = comm.allreduce(number, MPI.MAX)", {"number": numbers if len(numbers) > 1 else numbers[0]})


CASES: dict[str, Build] = {
    "barrier": _barrier,
    "bcast": _bcast,
    "allreduce": partial(_reduction, "Allreduce"),
    "reduce": partial(_reduction, "Reduce"),
    "scan": partial(_reduction, "Scan"),
    "exscan": partial(_reduction, "Exscan"),
    "reduce_scatter_block": partial(_reduce_scatter, "comm.Reduce_scatter_block(s, r)"),
    "reduce_scatter": partial(_reduce_scatter, "comm.Reduce_scatter(s, r, counts)"),
    "allgather": partial(_gathering, "Allgather", False),
    "allgatherv": partial(_gathering, "Allgatherv", True),
    "alltoall": partial(_gathering, "Alltoall", False),
    "alltoallv": partial(_gathering, "Alltoallv", True),
    "alltoallw": _alltoallw,
    "gather": partial(_gathering, "Gather", False),
    "gatherv": partial(_gathering, "Gatherv", True),
    "scatter": partial(_scatter, "comm.Scatter(s, r)"),
    "scatterv": partial(_scatter, "comm.Scatterv([s, counts], r)"),
    "ring": _ring,
    "ring_init": _persistent_ring,
    "pingpong": _pingpong,
    "bcast_dict": partial(_object_bcast, _dictionary),
    "bcast_array": partial(_object_bcast, _array),
    "pingpong_dict": partial(_object_pingpong, _dictionary),
    "pingpong_array": partial(_object_pingpong, _array),
    "pingpong_list": partial(_object_pingpong, _list),
    "sendrecv_dict": partial(_object_ring, _SENDRECV, _dictionary),
    "sendrecv_array": partial(_object_ring, _SENDRECV, _array),
    "ring_dict": partial(_object_ring, _WAITALL, _dictionary),
    "ring_array": partial(_object_ring, _WAITALL, _array),
    "irecv_wait_dict": partial(_object_ring, _WAIT, _dictionary),
    "mprobe_dict": partial(_object_ring, _MPROBE, _dictionary),
    "mprobe_array": partial(_object_ring, _MPROBE, _array),
    "allgather_dict": _allgather_dict,
    "allreduce_object": _allreduce_object,
}
for _case in ("barrier", "bcast", "allreduce", "allgather", "alltoall"):
    CASES[f"i{_case}"] = partial(_nonblocking, CASES[_case])
    CASES[f"{_case}_init"] = partial(_persistent, CASES[_case])
for _case in ("alltoallv", "allgatherv", "gatherv", "scatterv", "reduce_scatter"):
    CASES[f"i{_case}"] = partial(_nonblocking, CASES[_case])


def _pace(comm: Any, timer: timeit.Timer, seconds: float, blocks: int) -> tuple[int, int]:
    """How many blocks of how many calls take `seconds`; all ranks use rank 0's figure.

    A block has four calls at least, so that they overlap as in a program, unless one alone takes a good part of the time.
    """
    timer.timeit(1)
    tries: list[float] = []
    calls = 1
    while len(tries) < 2 and calls <= 4096:  # a rank that was held up once would make a fast call look slow
        spent = comm.bcast(timer.timeit(calls))
        if spent > 0.15 * seconds:
            tries.append(spent / calls)
        else:
            tries, calls = [], 4 * calls
        if spent > seconds and calls == 1:
            break
    each = min(tries, default=spent / calls)
    least = 4 if each < 0.15 * seconds else 1
    blocks = max(1, min(blocks, round(seconds / (least * each))))
    return blocks, int(max(least, min(20000, seconds / blocks / each)))


def _wrong(work: Work) -> int:
    if not work.result:
        return 0
    return int(np.count_nonzero(work.names[work.result] != work.expected))


def _apart(comm: Any, timer: timeit.Timer, calls: int) -> list[float]:
    """The time of each call, which begins when all ranks have come."""
    times = []
    for _ in range(calls):
        comm.Barrier()
        times.append(timer.timeit(1))
    return times


def measure(comm: Any, case: str, nbytes: int, seconds: float, blocks: int, is_apart: bool = False) -> dict[str, Any]:
    """Time one point; the answer is complete on rank 0 only.

    Parameters
    ----------
    is_apart
        Whether a barrier, whose time does not count, is in front of each call, as in OSU's benchmarks: no rank runs ahead into the next one.

    Returns
    -------
    dict
        ``us`` (median block, of its slowest rank, per call), ``us_min``, ``us_max``, ``calls`` per block, ``wrong`` elements.
    """
    work = CASES[case](comm, nbytes)
    timer = timeit.Timer(work.call, globals={**work.names, "comm": comm, "MPI": MPI})
    blocks, calls = _pace(comm, timer, seconds, blocks)
    mine = []
    for _ in range(blocks):
        comm.Barrier()
        mine.append(_apart(comm, timer, calls) if is_apart else [timer.timeit(calls) / calls])
    everyone = comm.gather((mine, _wrong(work)))
    for request in work.requests:
        request.Free()
    answer = {"case": case, "bytes": nbytes, "ranks": comm.size, "calls": calls}
    if comm.rank == 0:
        slowest = np.max([times for times, _ in everyone], axis=0).mean(axis=1) / work.trips * 1e6
        answer["us"] = float(np.median(slowest))
        answer["us_min"], answer["us_max"] = float(slowest.min()), float(slowest.max())
        answer["wrong"] = sum(wrong for _, wrong in everyone)
    return answer


def main(points_file: str, results_file: str) -> None:
    """Measure all points of a file and write what rank 0 has found."""
    comm = MPI.COMM_WORLD
    with open(points_file) as file:
        plan = json.load(file)
    results = [measure(comm, case, nbytes, plan["seconds"], plan["blocks"]) for case, nbytes in plan["points"]]
    if comm.rank == 0:
        report = {"library": MPI.Get_library_version().split("\n")[0].strip("\0 "), "results": results}
        with open(results_file, "w") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Every collective on arrays of any kind: what the same calls give on NumPy arrays is what they must give on device arrays.

A case takes (comm, do, make, length). `make` turns values into an array of this rank's kind, ``do(name, ...)`` carries a collective out in
one of its flavours. It returns the arrays that the collective may have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ncclx_mpi import MPI

Do = Callable[..., None]
Make = Callable[[npt.NDArray[Any]], Any]
Case = Callable[[Any, Do, Make, int], list[Any]]

FLAVOURS = ("blocking", "non-blocking", "persistent")


def doing(comm: Any, flavour: str) -> Do:
    """What carries a collective out; a persistent one twice."""

    def do(name: str, *arguments: Any, **named: Any) -> None:
        if flavour == "blocking":
            getattr(comm, name)(*arguments, **named)
        elif flavour == "non-blocking":
            getattr(comm, f"I{name.lower()}")(*arguments, **named).Wait()
        else:
            request = getattr(comm, f"{name}_init")(*arguments, **named)
            for _ in range(2):
                request.Start()
                request.Wait()
            request.Free()

    return do


def enqueuing(comm: Any, stream: Any) -> Do:
    """What enqueues a collective in a stream."""

    def do(name: str, *arguments: Any, **named: Any) -> None:
        getattr(comm.in_stream(stream), name)(*arguments, **named)

    return do


def own(comm: Any, count: int, salt: int = 0) -> npt.NDArray[np.int64]:
    """Values that tell who gave them, and where they belong."""
    return np.arange(count) + 10_000_000 * (comm.rank + 1) + 1_000_000_000 * salt


def empty(count: int) -> npt.NDArray[np.int64]:
    """What must be overwritten, or must stay."""
    return np.full(count, -7)


def counts(comm: Any, length: int) -> list[int]:
    """Another number for each rank, 0 among them."""
    return [(length * rank) // max(comm.size - 1, 1) for rank in range(comm.size)]


def spread(numbers: list[int]) -> list[int]:
    """Displacements with gaps, the last block first."""
    places, at = [], 1
    for number in reversed(numbers):
        places.append(at)
        at += number + 2
    return places[::-1]


def bcast(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    arrays = []
    for root in range(comm.size):
        arrays.append(make(own(comm, length, root)))
        do("Bcast", arrays[-1], root=root)
    return arrays


def gather(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    arrays = []
    for root in range(comm.size):
        whole = make(own(comm, length * comm.size)) if comm.rank == root else None
        in_place = root % 2 and comm.rank == root
        do("Gather", MPI.IN_PLACE if in_place else make(own(comm, length, root)), whole, root=root)
        arrays += [whole] * (comm.rank == root)
    return arrays


def gatherv(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    numbers, arrays = counts(comm, length), []
    for root in range(comm.size):
        whole = make(empty(sum(numbers) + 3 * comm.size)) if comm.rank == root else None
        in_place = root % 2 and comm.rank == root
        sent = MPI.IN_PLACE if in_place else make(own(comm, numbers[comm.rank], root))
        do("Gatherv", sent, [whole, numbers, spread(numbers), MPI.INT64_T] if comm.rank == root else None, root=root)
        arrays += [whole] * (comm.rank == root)
    return arrays


def scatter(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    arrays = []
    for root in range(comm.size):
        whole = make(own(comm, length * comm.size, root)) if comm.rank == root else None
        in_place = root % 2 and comm.rank == root
        part = make(empty(length))
        do("Scatter", whole, MPI.IN_PLACE if in_place else part, root=root)
        arrays.append(part)
    return arrays


def scatterv(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    numbers, arrays = counts(comm, length), []
    for root in range(comm.size):
        whole = make(own(comm, sum(numbers) + 3 * comm.size, root)) if comm.rank == root else None
        part = make(empty(numbers[comm.rank]))
        do("Scatterv", [whole, numbers, spread(numbers), MPI.INT64_T] if comm.rank == root else None, part, root=root)
        arrays.append(part)
    return arrays


def allgather(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    apart, together = make(empty(length * comm.size)), make(own(comm, length * comm.size))
    do("Allgather", make(own(comm, length)), apart)
    do("Allgather", MPI.IN_PLACE, together)
    return [apart, together]


def allgatherv(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    numbers = counts(comm, length)
    places = spread(numbers)
    apart, together = (make(values(comm, sum(numbers) + 3 * comm.size)) for values in (lambda _, count: empty(count), own))
    do("Allgatherv", make(own(comm, numbers[comm.rank])), [apart, numbers, places, MPI.INT64_T])
    do("Allgatherv", MPI.IN_PLACE, [together, numbers, places, MPI.INT64_T])
    return [apart, _cut(together, numbers, places)]


def _cut(array: Any, numbers: list[int], places: list[int]) -> Any:
    """The blocks of an array, without the gaps, in which each rank has something else."""
    return [array[place : place + number] for number, place in zip(numbers, places, strict=True)]


def alltoall(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    apart, together = make(empty(length * comm.size)), make(own(comm, length * comm.size))
    do("Alltoall", make(own(comm, length * comm.size)), apart)
    do("Alltoall", MPI.IN_PLACE, together)
    return [apart, together]


def alltoallv(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    outgoing = [length // (1 + comm.rank + other) for other in range(comm.size)]
    incoming, room = outgoing, sum(outgoing) + 3 * comm.size
    apart, together = make(empty(room)), make(own(comm, room))
    do(
        "Alltoallv",
        [make(own(comm, room)), outgoing, spread(outgoing), MPI.INT64_T],
        [apart, incoming, spread(incoming), MPI.INT64_T],
    )
    do("Alltoallv", MPI.IN_PLACE, [together, incoming, spread(incoming), MPI.INT64_T])
    return [apart, together]


def alltoallw(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    pairs = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    numbers = [length // 4 // (1 + comm.rank + other) for other in range(comm.size)]
    sent_types = [pairs if comm.rank < other else MPI.INT64_T for other in range(comm.size)]
    received_types = [pairs if comm.rank > other else MPI.INT64_T for other in range(comm.size)]

    def described(array: Any, types: list[Any]) -> list[Any]:
        numbers_of = [number if kind is pairs else 2 * number for number, kind in zip(numbers, types, strict=True)]
        return [array, numbers_of, [8 * (other * (length + 3) + 1) for other in range(comm.size)], types]

    target = make(empty(comm.size * (length + 4)))
    do("Alltoallw", described(make(own(comm, comm.size * (length + 4))), sent_types), described(target, received_types))
    return [target]


def reduce(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    arrays = []
    for root in range(comm.size):
        target = make(own(comm, length, root))
        in_place = root % 2 and comm.rank == root
        do("Reduce", MPI.IN_PLACE if in_place else make(own(comm, length, root)), target, MPI.SUM, root)
        arrays.append(target)
    return arrays


def _both_places(name: str) -> Case:
    """A reduction, apart and in place."""

    def run(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
        apart, together = make(empty(length)), make(own(comm, length))
        do(name, make(own(comm, length)), apart, op=MPI.SUM)
        do(name, MPI.IN_PLACE, together, op=MPI.MAX)
        return [apart, together]

    return run


def reduce_scatter(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    numbers = counts(comm, length)
    apart, together = make(empty(numbers[comm.rank])), make(own(comm, sum(numbers)))
    do("Reduce_scatter", make(own(comm, sum(numbers))), apart, numbers, MPI.SUM)
    do("Reduce_scatter", MPI.IN_PLACE, together, numbers, MPI.SUM)
    return [apart, together[: numbers[comm.rank]]]


def reduce_scatter_block(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    apart, together = make(empty(length)), make(own(comm, length * comm.size))
    do("Reduce_scatter_block", make(own(comm, length * comm.size)), apart, MPI.SUM)
    do("Reduce_scatter_block", MPI.IN_PLACE, together, MPI.SUM)
    return [apart, together[:length]]


def with_gaps(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    """Pairs of numbers with a gap between them, given in threes and taken in fours, by every call that has types for both."""
    threes, fours = (MPI.INT64_T.Create_vector(2, 1, n - 1).Create_resized(0, 8 * n).Commit() for n in (3, 4))
    size, last, number = comm.size, comm.size - 1, length // 4
    numbers = [number // (1 + rank) for rank in range(size)]
    places, mixed = spread(numbers), [number // (1 + comm.rank + other) for other in range(size)]
    room = number * size + 3 * size

    def given(count: int) -> list[Any]:
        return [make(own(comm, 3 * count)), threes]

    both, part = make(own(comm, 3 * number)), make(empty(4 * number))
    at_root, wholes = make(empty(4 * number * size)), [make(empty(4 * room)) for _ in range(4)]
    do("Bcast", [both, threes], root=last)
    do("Gather", given(number), [at_root, fours] if comm.rank == last else None, root=last)
    do("Gatherv", given(numbers[comm.rank]), [wholes[0], numbers, places, fours] if comm.rank == last else None, root=last)
    do("Scatter", given(number * size) if comm.rank == last else None, [part, fours], root=last)
    do("Allgather", given(number), [wholes[1][: 4 * number * size], fours])
    do("Allgatherv", given(numbers[comm.rank]), [wholes[2], numbers, places, fours])
    do("Alltoallv", [make(own(comm, 3 * room)), mixed, spread(mixed), threes], [wholes[3], mixed, spread(mixed), fours])
    every = make(empty(4 * number * size))
    do("Alltoall", given(number * size), [every, fours])
    for kind in (threes, fours):
        kind.Free()
    return [both, at_root, part, every, *wholes]


def own_operation(comm: Any, do: Do, make: Make, length: int) -> list[Any]:
    """An operation of the program that does not commute: the lower rank's numbers stay."""

    def lower(low: Any, high: Any, datatype: Any) -> None:
        np.frombuffer(high, np.int64)[:] = np.frombuffer(low, np.int64)

    op = MPI.Op.Create(lower, commute=False)
    arrays = [make(own(comm, length, salt)) for salt in range(5)]
    do("Allreduce", make(own(comm, length)), arrays[0], op=op)
    do("Reduce", make(own(comm, length)), arrays[1], op=op, root=comm.size - 1)
    do("Scan", make(own(comm, length)), arrays[2], op=op)
    do("Exscan", make(own(comm, length)), arrays[3], op=op)
    do("Reduce_scatter_block", make(own(comm, length * comm.size)), arrays[4], op=op)
    op.Free()
    return arrays


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (bcast, gather, gatherv, scatter, scatterv, allgather, allgatherv, alltoall, alltoallv, alltoallw, reduce)
} | {
    "with_gaps": with_gaps,
    "own_operation": own_operation,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_block": reduce_scatter_block,
    "allreduce": _both_places("Allreduce"),
    "scan": _both_places("Scan"),
    "exscan": _both_places("Exscan"),
}

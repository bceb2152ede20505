"""What is measured: the standard list with its goals, and the sweep that looks for cliffs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20


class Point(NamedTuple):
    """One measurement: a case of the worker, bytes from one rank to one destination, and the number of ranks."""

    case: str
    nbytes: int
    nranks: int

    def __str__(self) -> str:
        return f"{self.case} {size_text(self.nbytes)}, {self.nranks} ranks"


class Goal(NamedTuple):
    """At most this many times the fastest peer's time, in the far and in the near placement of the cores."""

    far: float
    near: float = 1.0


class Tolerance(NamedTuple):
    """What a point of the sweep may lose: this factor, or this many microseconds."""

    factor: float = 1.3
    slack_us: float = 0.3
    excepted: float = 0.02


GOALS: dict[Point, Goal] = {
    Point("allreduce", 8, 2): Goal(0.9),
    Point("barrier", 0, 2): Goal(0.9),
    Point("bcast", 8, 2): Goal(0.9),
    Point("pingpong", 8, 2): Goal(0.9),
    Point("allreduce", 64 * KIB, 2): Goal(0.9),
    Point("allgather", 64 * KIB, 2): Goal(1.0, 1.3),
    Point("alltoall", 64 * KIB, 2): Goal(0.9),
    Point("reduce_scatter_block", 64 * KIB, 2): Goal(0.9),
    Point("allreduce", MIB, 2): Goal(1.0),
    Point("allgather", MIB, 2): Goal(0.8),
    Point("alltoall", MIB, 2): Goal(0.8),
    Point("reduce_scatter_block", MIB, 2): Goal(0.8),
    Point("allreduce", 16 * MIB, 2): Goal(0.5),
    Point("allgather", 16 * MIB, 2): Goal(1.15),
    Point("alltoall", 16 * MIB, 2): Goal(1.0),
    Point("reduce_scatter_block", 16 * MIB, 2): Goal(0.8),
    Point("pingpong", MIB, 2): Goal(0.4),
    Point("pingpong", 16 * MIB, 2): Goal(0.7),
    Point("bcast_dict", KIB, 2): Goal(0.7),
    Point("pingpong_list", 10_000_000, 2): Goal(0.7),
    Point("allreduce", 8, 8): Goal(0.5),
    Point("barrier", 0, 8): Goal(0.65),
    Point("startup", 0, 2): Goal(1.0),
    Point("startup", 0, 64): Goal(1.0),
}

TOLERANCE = Tolerance()

ALIKE = ("allreduce", "reduce", "scan", "exscan", "bcast")
SCATTERED = ("reduce_scatter_block", "reduce_scatter", "scatter", "scatterv")
GATHERED = ("allgather", "allgatherv", "gather", "gatherv")
EXCHANGED = ("alltoall", "alltoallv", "alltoallw")
COLLECTIVES = ("barrier", *ALIKE, *SCATTERED, *GATHERED, *EXCHANGED)
NONBLOCKING = ("ibarrier", "ibcast", "iallreduce", "ring")
OBJECTS = (
    "bcast_dict", "pingpong_list", "pingpong_dict", "sendrecv_dict", "ring_dict", "allgather_dict", "allreduce_object",
)  # fmt: skip
CASES = (*COLLECTIVES, *NONBLOCKING, "pingpong", *OBJECTS, "startup")
SWEEP_RANKS = (1, 2, 3, 4, 8)
SWEEP_BYTES = (0, *(4**k for k in range(1, 14)))


def buffer_bytes(point: Point) -> int:
    """Memory of one rank's buffers, at most (rooted collectives: the root's)."""
    if point.case in ALIKE:
        return 2 * point.nbytes
    if point.case in EXCHANGED:
        return 2 * point.nranks * point.nbytes
    return (point.nranks + 1) * point.nbytes


def sweep(
    cases: Iterable[str] = COLLECTIVES, ranks: Iterable[int] = SWEEP_RANKS, sizes: Sequence[int] = SWEEP_BYTES
) -> Iterator[Point]:
    """Yield every collective from 0 B to 64 MiB in powers of four, with at most 256 MiB a rank."""
    for nranks in ranks:
        for case in cases:
            for nbytes in sizes if case != "barrier" else (0,):
                point = Point(case, nbytes, nranks)
                if buffer_bytes(point) <= 256 * MIB:
                    yield point


def size_text(nbytes: int) -> str:
    """Return a size as people write it: ``8 B``, ``64 KiB``, ``10 MB``."""
    if nbytes and nbytes % 1_000_000 == 0:
        return f"{nbytes // 1_000_000} MB"
    for unit, text in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {text}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Read ``64K``, ``1MiB``, ``8`` (powers of 1024; ``MB`` and ``kB`` of 1000)."""
    units = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "kb": 1000, "mb": 1_000_000}
    number = text.strip().rstrip("bBkKmMiI ")
    unit = text.strip()[len(number) :].strip().lower()
    if not number.isdigit() or unit not in units:
        raise ValueError(f"{text!r} is no size; write it as 8, 64K, 1MiB or 10MB")
    return int(number) * units[unit]

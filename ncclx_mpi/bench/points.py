"""What is measured: the standard list with its goals, lists of other forms of calls, and the sweep that looks for cliffs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from numba_kernels.rows import NamedTuple

KIB, MIB = 1 << 10, 1 << 20


class Point(NamedTuple):
    """One measurement: a case of the worker, bytes from one rank to one destination, and the number of ranks."""

    case: str
    nbytes: int
    nranks: int

    @property
    def operation(self) -> str:
        """The case that a non-blocking or persistent one is a form of."""
        return self.case.removesuffix("_init").removeprefix("i" if self.case in (*NONBLOCKING, *VECTORS) else "")

    @property
    def has_placement(self) -> bool:
        """Whether it matters how far apart the cores are: not where ranks outnumber them, nor for start-up."""
        return self.nranks in (2, 3, 4) and self.case != "startup"

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
    Point("allreduce", 8, 2): Goal(0.9, 0.9),
    Point("barrier", 0, 2): Goal(0.9, 0.9),
    Point("bcast", 8, 2): Goal(0.9, 0.9),
    Point("pingpong", 8, 2): Goal(0.9, 0.9),
    Point("allreduce", 8 * KIB, 2): Goal(0.9, 0.9),
    Point("alltoall", 8 * KIB, 2): Goal(0.9, 0.9),
    Point("bcast", 8 * KIB, 2): Goal(0.9, 0.9),
    Point("pingpong", 8 * KIB, 2): Goal(0.9, 0.9),
    Point("allreduce", 64 * KIB, 2): Goal(0.9, 0.9),
    Point("allgather", 64 * KIB, 2): Goal(1.0, 0.9),
    Point("alltoall", 64 * KIB, 2): Goal(0.9, 0.9),
    Point("reduce_scatter_block", 64 * KIB, 2): Goal(0.9, 0.9),
    Point("allreduce", MIB, 2): Goal(1.0, 0.85),
    Point("allgather", MIB, 2): Goal(0.8),
    Point("alltoall", MIB, 2): Goal(0.8, 0.85),
    Point("reduce_scatter_block", MIB, 2): Goal(0.8),
    Point("allreduce", 16 * MIB, 2): Goal(0.5),
    Point("allgather", 16 * MIB, 2): Goal(1.15),
    Point("alltoall", 16 * MIB, 2): Goal(1.0),
    Point("reduce_scatter_block", 16 * MIB, 2): Goal(0.8),
    Point("pingpong", MIB, 2): Goal(0.4, 0.85),
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
NONBLOCKING = ("ibarrier", "ibcast", "iallreduce", "iallgather", "ialltoall")
VECTORS = ("ialltoallv", "iallgatherv", "igatherv", "iscatterv", "ireduce_scatter")
PERSISTENT = ("barrier_init", "bcast_init", "allreduce_init", "allgather_init", "alltoall_init", "ring_init")
ON_DICTIONARIES = ("bcast_dict", "pingpong_dict", "sendrecv_dict", "ring_dict", "irecv_wait_dict", "mprobe_dict", "allgather_dict")
ON_ARRAYS = ("bcast_array", "pingpong_array", "sendrecv_array", "ring_array", "mprobe_array")
OBJECTS = (*ON_DICTIONARIES, *ON_ARRAYS, "allreduce_object", "pingpong_list")
CASES = (*COLLECTIVES, "pingpong", "ring", *NONBLOCKING, *VECTORS, *PERSISTENT, *OBJECTS, "startup")


def _forms(cases: Iterable[str]) -> Iterator[Point]:
    """Yield collectives and rings in another form: three sizes on two ranks, the smallest on more ranks, too."""
    for case in cases:
        if case in ("ibarrier", "barrier_init"):
            yield from (Point(case, 0, nranks) for nranks in (2, 4, 8))
        else:
            yield from (Point(case, nbytes, 2) for nbytes in (8, 64 * KIB, 16 * MIB))
            yield from (Point(case, 8, nranks) for nranks in (4, 8))


LISTS: dict[str, Sequence[Point]] = {
    "standard": tuple(GOALS),
    "objects": (
        *(Point(case, nbytes, 2) for case in ON_DICTIONARIES for nbytes in (64, KIB)),
        *(Point(case, nbytes, 2) for case in ON_ARRAYS for nbytes in (80, 8 * KIB)),
        *(Point("allreduce_object", 8, nranks) for nranks in (2, 4)),
        *(Point(case, 64, 4) for case in ("bcast_dict", "allgather_dict")),
    ),
    "nonblocking": tuple(_forms(("ring", *NONBLOCKING))),
    "vectors": tuple(_forms(VECTORS)),
    "persistent": tuple(_forms(PERSISTENT)),
}
"""What can be chosen by ``--list``; only the standard list has goals."""

SWEEP_RANKS = (1, 2, 3, 4, 8)
SWEEP_BYTES = (0, *(4**k for k in range(1, 14)))


def buffer_bytes(point: Point) -> int:
    """Memory of one rank's buffers, at most (rooted collectives: the root's)."""
    if point.operation in ALIKE:
        return 2 * point.nbytes
    if point.operation in EXCHANGED:
        return 2 * point.nranks * point.nbytes
    return (point.nranks + 1) * point.nbytes


def sweep(
    cases: Iterable[str] = COLLECTIVES, ranks: Iterable[int] = SWEEP_RANKS, sizes: Sequence[int] = SWEEP_BYTES
) -> Iterator[Point]:
    """Yield every collective from 0 B to 64 MiB in powers of four, with at most 256 MiB a rank."""
    for nranks in ranks:
        for case in cases:
            for nbytes in sizes if "barrier" not in case else (0,):
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

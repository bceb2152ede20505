"""Regret: what the automatic choices of stores, copies and algorithms cost, against each of them forced, in turn in the same rounds.

The automatic side has the name of our own in every other comparison, and the forced ones stand for the peers: so a row's ratio
(:class:`ncclx_mpi.bench.summary.Row`) is its regret. The best of several noisy times is a little too good: where all choices are alike, it
is above 1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ncclx_mpi.algorithms import Case, rows_of, variable
from ncclx_mpi.bench.points import EXCHANGED, KIB, MIB, SCATTERED, Point
from ncclx_mpi.bench.rounds import Effort
from ncclx_mpi.bench.sides import Side, ours
from ncclx_mpi.bench.summary import Row

LIMIT = 1.15
"""What a regret may be, at most."""
EFFORT = Effort(rounds=6, seconds=0.1, blocks=5)
POINTS = tuple(
    Point(case, nbytes, nranks)
    for nranks in (2, 4)
    for nbytes in (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
    for case in ("allreduce", "allgather", "alltoall", "reduce_scatter_block", "bcast", "pingpong")
)
_COPIES = {
    "direct": {"NCCLX_MPI_COPIES": "direct"},
    "piped, streamed": {"NCCLX_MPI_COPIES": "piped", "NCCLX_MPI_STORES": "streamed"},
    "piped, plain": {"NCCLX_MPI_COPIES": "piped", "NCCLX_MPI_STORES": "plain"},
}
_FORCING = ("NCCLX_MPI_COPIES", "NCCLX_MPI_STORES", "NCCLX_MPI_ALGO_")
"""How the variables begin that force a choice."""
_COLLECTIVES = {
    "reduce_scatter_block": "reduce_scatter",
    "exscan": "scan",
    **{f"{name}v": name for name in ("scatter", "gather", "allgather", "alltoall")},
    "alltoallw": "alltoall",
}
"""The collective of the table of algorithms to which a case belongs that has another name."""


def sides(points: Sequence[Point]) -> Iterator[Side]:
    """Yield the automatic side, then one for each choice that can be forced for one of the points."""
    automatic = ours()
    yield _forced(automatic, automatic.name, {})
    for name, settings in _COPIES.items():
        yield _forced(automatic, name, settings)
    for collective in dict.fromkeys(collective_of(point) for point in points):
        for row in rows_of(collective):
            is_for = functools.partial(_is_served, collective, row.name)
            if any(map(is_for, points)):
                yield _forced(automatic, row.name, {variable(collective): row.name})._replace(is_for=is_for)


def group(points: Iterable[Point]) -> list[list[Point]]:
    """Return the points of each run: all sizes of one case, so that those that precede a point in its process are the same on all sides.

    What the program allocated before decides how a buffer lies in memory: in a process of its own a bcast of 16 MiB by direct copies took
    490 us, behind three other points 880.
    """
    ordered = sorted(points, key=lambda point: (point.nranks, point.case, point.nbytes))
    return [list(found) for _, found in itertools.groupby(ordered, key=lambda point: (point.nranks, point.case))]


def collective_of(point: Point) -> str:
    """Return the collective of the table of algorithms that a case calls; of a message, a name that is not in the table."""
    return _COLLECTIVES.get(point.operation, point.operation)


def _forced(automatic: Side, name: str, settings: dict[str, str]) -> Side:
    free = {key: value for key, value in automatic.environment.items() if not key.startswith(_FORCING)}
    return automatic._replace(name=name, environment=free | settings)


def _is_served(collective: str, name: str, point: Point) -> bool:
    """Whether a point can go by an algorithm."""
    if collective_of(point) != collective:
        return False
    given = point.nbytes * point.nranks if point.operation.startswith((*EXCHANGED, *SCATTERED)) else point.nbytes
    case = Case(point.nranks, given, itemsize=4, has_counts=point.operation.endswith(("v", "w")), has_slot=True)
    return not next(row for row in rows_of(collective) if row.name == name).why_not(case)


def verdict(row: Row) -> str:
    """``pass``, ``FAIL``, or nothing where the cores were moved."""
    return "" if row.ratio is None else "pass" if row.ratio <= LIMIT else "FAIL"


def to_json(row: Row) -> dict[str, Any]:
    """Return what the results file keeps of a row."""
    return {**row.to_json(), "goal": LIMIT, "verdict": verdict(row)}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each point: the automatic time, the best forced choice and its time, the regret; and how many are above the limit."""
    yield f"{'point':<36} {'cores':<7}{'automatic':>12}  {'best choice':<26}{'its time':>12}{'regret':>8}"
    for row in rows:
        best, time = row.fastest or ("-", None)
        regret = f"{row.ratio:.2f}" if row.ratio is not None else "-"
        yield f"{row.point!s:<36} {row.placement:<7}{_us(row.ours):>12}  {best:<26}{_us(time):>12}{regret:>8} {verdict(row)}".rstrip()
    yield from _conclusion(rows)


def _conclusion(rows: Iterable[Row]) -> Iterator[str]:
    compared = sorted((row for row in rows if row.ratio is not None), key=lambda row: -(row.ratio or 0))
    above = [row for row in compared if verdict(row) == "FAIL"]
    yield f"# regret at most {LIMIT} in {len(compared) - len(above)} of {len(compared)} rows"
    if above:
        yield f"# worst: {above[0].point}, cores {above[0].placement}: {above[0].ratio:.2f}, set {(above[0].fastest or ('-',))[0]}"


def _us(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f}"

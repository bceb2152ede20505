"""Regret: what the automatic choices of stores, copies and algorithms cost, against each of them forced, in turn in the same rounds.

The automatic side has the name of our own in every other comparison, and the forced ones stand for the peers: so a row's ratio
(:class:`ncclx_mpi.bench.summary.Row`) would be its regret, if the best of several noisy times were not too good: where all choices are alike,
that is above 1. So no round has a say in which choice was the best one in it (:func:`regret`, design/053).
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ncclx_mpi.algorithms import Case, rows_of, variable
from ncclx_mpi.bench.points import EXCHANGED, KIB, MIB, SCATTERED, Point
from ncclx_mpi.bench.rounds import Effort
from ncclx_mpi.bench.sides import Side, ours
from ncclx_mpi.bench.summary import OURS, Row

LIMIT = 1.15
"""What a regret may be, at most."""
LEAST = 3
"""Rounds of one placement from which on there is a verdict."""
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


def regret(row: Row) -> float | None:
    """Return the automatic time over that of the best choice; None where nothing is compared.

    Which choice is the best one in a round, the others say; the median of what the best ones took counts. Where one is best by far, that is
    its median.
    """
    if row.ratio is None or row.ours is None:
        return None
    choices = _judged(row)
    if not choices:
        return row.ratio
    times = [min(choices, key=lambda each: _median_without(each, k))[k] for k in range(min(map(len, choices)))]
    return row.ours / statistics.median(times)


def _judged(row: Row) -> list[list[float]]:
    """The times of choices with so many rounds that they can be judged; none if the automatic side has fewer."""
    enough = {side: times for side, times in row.times.items() if len(times) >= LEAST}
    return [times for side, times in enough.items() if side != OURS] if OURS in enough else []


def _median_without(times: Sequence[float], k: int) -> float:
    return statistics.median([*times[:k], *times[k + 1 :]])


def verdict(row: Row) -> str:
    """``pass``, ``FAIL``, ``few`` rounds to judge by, or nothing where the cores were moved."""
    found = regret(row)
    if found is None or not _judged(row):
        return "" if found is None else "few"
    return "pass" if found <= LIMIT else "FAIL"


def to_json(row: Row) -> dict[str, Any]:
    """Return what the results file keeps of a row."""
    return {**row.to_json(), "ratio": regret(row), "goal": LIMIT, "verdict": verdict(row)}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each point: the automatic time, the best forced choice and its time, the regret; and how many are above the limit."""
    yield f"{'point':<36} {'cores':<7}{'automatic':>12}  {'best choice':<26}{'its time':>12}{'regret':>8}"
    for row in rows:
        best, time = row.fastest or ("-", None)
        text = f"{row.point!s:<36} {row.placement:<7}{_us(row.ours):>12}  {best:<26}{_us(time):>12}{_us(regret(row)):>8} {verdict(row)}"
        yield text.rstrip()
    yield from _conclusion(rows)


def _conclusion(rows: Iterable[Row]) -> Iterator[str]:
    judged = sorted((row for row in rows if verdict(row) in ("pass", "FAIL")), key=lambda row: -(regret(row) or 0))
    above = [row for row in judged if verdict(row) == "FAIL"]
    yield f"# regret at most {LIMIT} in {len(judged) - len(above)} of {len(judged)} rows"
    if above:
        yield f"# worst: {above[0].point}, cores {above[0].placement}: {regret(above[0]):.2f}, set {(above[0].fastest or ('-',))[0]}"


def _us(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f}"

"""From runs to figures: medians over rounds, ratios to the fastest peer in the same placement, verdicts."""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ncclx_mpi.bench.placement import MIXED
from ncclx_mpi.bench.points import GOALS, TOLERANCE, Goal, Point

OURS = "ncclx_mpi"
STARTUP_LIMIT_US = {2: 1_000_000.0}
"""Start-ups that must stay below an absolute time."""


@dataclass
class Row:
    """One point in one placement.

    Attributes
    ----------
    times
        Microseconds of each side in each of its rounds in this placement.
    """

    point: Point
    placement: str
    times: dict[str, list[float]]

    @functools.cached_property
    def medians(self) -> dict[str, float]:
        """Microseconds of each side, median over its rounds."""
        return {side: statistics.median(values) for side, values in self.times.items()}

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds each side had."""
        return {side: len(values) for side, values in self.times.items()}

    @property
    def ours(self) -> float | None:
        """Our time."""
        return self.medians.get(OURS)

    @property
    def fastest(self) -> tuple[str, float] | None:
        """Name and time of the fastest peer."""
        peers = [(time, name) for name, time in self.medians.items() if name != OURS]
        return (min(peers)[1], min(peers)[0]) if peers else None

    @property
    def ratio(self) -> float | None:
        """Our time over the fastest peer's; None where a side is missing or the cores were moved, which compares nothing."""
        if self.ours is None or self.fastest is None or self.placement == MIXED:
            return None
        return self.ours / self.fastest[1]

    @property
    def goal(self) -> float | None:
        """What the ratio may be, at most; None where nothing or an absolute time is asked for."""
        goal: Goal | None = None if self._limit_us or self.placement == MIXED else GOALS.get(self.point)
        return None if goal is None else goal.near if self.placement == "near" else goal.far

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL`` or nothing where there is no goal or no peer."""
        if self._limit_us and self.ours is not None:
            return "pass" if self.ours <= self._limit_us else "FAIL"
        if self.goal is None or self.ratio is None:
            return ""
        return "pass" if self.ratio <= self.goal else "FAIL"

    @property
    def _limit_us(self) -> float:
        return STARTUP_LIMIT_US.get(self.point.nranks, 0.0) if self.point.case == "startup" else 0.0

    @property
    def is_cliff(self) -> bool:
        """Is a point of the sweep out of its tolerance?"""
        if self.ratio is None or self.ours is None or self.fastest is None:
            return False
        theirs = self.fastest[1]
        return self.ours > max(TOLERANCE.factor * theirs, theirs + TOLERANCE.slack_us)

    def to_json(self) -> dict[str, Any]:
        """Return what the results file keeps."""
        fastest = self.fastest or (None, None)
        return {
            "case": self.point.case,
            "bytes": self.point.nbytes,
            "ranks": self.point.nranks,
            "placement": self.placement,
            "us": self.medians,
            "rounds": self.rounds,
            "fastest": fastest[0],
            "ratio": self.ratio,
            "goal": self.goal,
            "verdict": self.verdict,
        }


def summarize(runs: Iterable[dict[str, Any]]) -> list[Row]:
    """Return one row for each point and placement that came, in the order of the points' first appearance.

    Rounds during which the cores were moved compare nothing: they are left out, unless a point has no other, and then
    its row has times and no ratio. Where ranks outnumber cores, and for start-up, the placement says nothing: all
    rounds count.
    """
    times: dict[tuple[Point, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for result in run["results"]:
            point = Point(result["case"], result["bytes"], result["ranks"])
            placement = run["placement"] if point.has_placement else "any"
            times[point, placement][run["side"]].append(result["us"])
    steady = {point for point, placement in times if placement != MIXED}
    rows = []
    for (point, placement), sides in times.items():
        if placement == MIXED and point in steady:
            continue
        rows.append(Row(point, placement, dict(sides)))
    return sorted(rows, key=lambda row: (row.point.nranks, row.point.nbytes, row.point.case, row.placement))


def cliffs(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """Return the rows out of tolerance, worst first, and how many may be."""
    compared = [row for row in rows if row.ratio is not None]
    out = sorted((row for row in compared if row.is_cliff), key=lambda row: -(row.ratio or 0))
    return out, int(TOLERANCE.excepted * len(compared))


def missing(rows: Iterable[Row]) -> list[str]:
    """Say which goals have no figure, because a placement never came or a side has none."""
    seen = {(row.point, row.placement) for row in rows if row.ratio is not None}
    lines = []
    for point in GOALS:
        placements = ("far", "near") if point.nranks == 2 and point.case != "startup" else ("any",)
        absent = [placement for placement in placements if (point, placement) not in seen]
        if absent:
            lines.append(f"{point}: not measured on both sides in placement {' and '.join(absent)}")
    return lines

"""What others have published of the algorithms here, for the page on plans: how many rounds and bytes one needs, and how long one took.

Formulas are Python, so that the tests hold them against what is counted in the plans.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from ncclx_mpi.algorithms import PLAN, ROWS, row_of
from ncclx_mpi.costs import Figures
from ncclx_mpi.simulate import network
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.price import price

SNIPPETS = Path(__file__).parent / "snippets"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
COUNTED = (12, 64)
"""Numbers of ranks for which the page says what is counted."""


class Formulas(NamedTuple):
    """Rounds, bytes moved and bytes reduced by the rank that needs most, from `n` ranks and `m` bytes that each gives."""

    rounds: str
    moved: str
    reduced: str = "0"

    def values(self, n: int, m: int) -> tuple[float, float, float]:
        """What they say."""
        names = {"__builtins__": {}, "n": n, "m": m, "log2": math.log2, "ceil": math.ceil, "floor": math.floor}
        rounds, moved, reduced = (float(eval(formula, names)) for formula in self)
        return rounds, moved, reduced


class Needs(NamedTuple):
    """Of one algorithm: who describes it, and what it needs; where n is no power of two perhaps something else, bytes then being a bound."""

    source: str
    formulas: Formulas
    otherwise: Formulas | None = None

    def of(self, n: int) -> Formulas:
        """Those for a number of ranks."""
        return self.otherwise if self.otherwise and n & (n - 1) else self.formulas


_MPICH = "Thakur, Rabenseifner, Gropp 2005"
_BRUCK = "Bruck et al. 1997"
_PLAIN = "one after the other"
_LANES = "Träff, Hunold 2020, on one node"
_LEADERS = "Karonis et al. 2000, on one node"
_BY_PARTS = Needs(_MPICH, Formulas("2 * (n - 1)", "2 * (n - 1) / n * m", "(n - 1) / n * m"))
NEEDS: dict[tuple[str, str], Needs] = {
    ("barrier", "dissemination"): Needs("Hensgen, Finkel, Manber 1988", Formulas("ceil(log2(n))", "0")),
    ("barrier", "leaders"): Needs(_LEADERS, Formulas("2 * ceil(log2(n))", "0")),
    ("bcast", "binomial"): Needs(_MPICH, Formulas("ceil(log2(n))", "ceil(log2(n)) * m")),
    ("bcast", "leaders"): Needs(_LEADERS, Formulas("ceil(log2(n))", "ceil(log2(n)) * m")),
    ("bcast", "full_lane"): Needs(_LANES, Formulas("2 * (n - 1)", "2 * (n - 1) / n * m")),
    ("bcast", "scatter_allgather"): Needs("Barnett et al. 1994", Formulas("ceil(log2(n)) + n - 1", "2 * (n - 1) / n * m")),
    ("bcast", "chain"): Needs("Pješivac-Grbović et al. 2007", Formulas("n - 1", "m")),
    ("reduce", "reduce_scatter_gather"): _BY_PARTS,
    ("reduce", "gather_reduce"): Needs(_PLAIN, Formulas("n - 1", "(n - 1) * m", "(n - 1) * m")),
    ("reduce", "leaders"): Needs(_LEADERS, Formulas("ceil(log2(n))", "ceil(log2(n)) * m", "ceil(log2(n)) * m")),
    ("reduce", "rabenseifner"): Needs(
        _MPICH,
        Formulas("2 * log2(n)", "2 * (n - 1) / n * m", "(n - 1) / n * m"),
        Formulas("2 * floor(log2(n)) + 1", "3 * m", "2 * m"),
    ),
    ("allreduce", "reduce_scatter_allgather"): _BY_PARTS,
    ("allreduce", "allgather_reduce"): Needs(_PLAIN, Formulas("n - 1", "(n - 1) * m", "(n - 1) * m")),
    ("allreduce", "recursive_doubling"): Needs(
        _MPICH,
        Formulas("log2(n)", "log2(n) * m", "log2(n) * m"),
        Formulas("floor(log2(n)) + 2", "(floor(log2(n)) + 1) * m", "(floor(log2(n)) + 1) * m"),
    ),
    ("allreduce", "ring"): Needs("Patarasuk, Yuan 2009", _BY_PARTS.formulas),
    ("allreduce", "full_lane"): Needs(_LANES, _BY_PARTS.formulas),
    ("allreduce", "leaders"): Needs(_LEADERS, Formulas("2 * ceil(log2(n))", "ceil(log2(n)) * m", "ceil(log2(n)) * m")),
    ("allreduce", "rabenseifner"): Needs(
        _MPICH,
        Formulas("2 * log2(n)", "2 * (n - 1) / n * m", "(n - 1) / n * m"),
        Formulas("2 * floor(log2(n)) + 2", "3 * m", "2 * m"),
    ),
    ("gather", "linear"): Needs(_PLAIN, Formulas("n - 1", "(n - 1) * m")),
    ("gather", "binomial"): Needs(_MPICH, Formulas("ceil(log2(n))", "(n - 1) * m")),
    ("scatter", "linear"): Needs(_PLAIN, Formulas("n - 1", "(n - 1) / n * m")),
    ("scatter", "binomial"): Needs(_MPICH, Formulas("ceil(log2(n))", "(n - 1) / n * m")),
    ("allgather", "ring"): Needs(_MPICH, Formulas("n - 1", "(n - 1) * m")),
    ("allgather", "bruck"): Needs(_BRUCK, Formulas("ceil(log2(n))", "(n - 1) * m")),
    ("allgather", "full_lane"): Needs(_LANES, Formulas("n - 1", "(n - 1) * m")),
    ("allgather", "recursive_doubling"): Needs(
        _MPICH, Formulas("log2(n)", "(n - 1) * m"), Formulas("floor(log2(n)) + 2", "(3 * n - 2 ** floor(log2(n))) * m")
    ),
    ("allgather", "neighbor_exchange"): Needs("Chen et al. 2005", Formulas("n - 1 if n % 2 else n / 2", "(n - 1) * m")),
    ("alltoall", "pairwise"): Needs(_MPICH, Formulas("n - 1", "(n - 1) / n * m")),
    ("alltoall", "bruck"): Needs(_BRUCK, Formulas("log2(n)", "log2(n) * m / 2"), Formulas("ceil(log2(n))", "log2(n) * m / 2")),
    ("alltoall", "full_lane"): Needs(_LANES, Formulas("n - 1", "(n - 1) / n * m")),
    ("reduce_scatter", "pairwise"): Needs(_MPICH, Formulas("n - 1", "(n - 1) / n * m", "(n - 1) / n * m")),
    ("reduce_scatter", "full_lane"): Needs(_LANES, Formulas("n - 1", "(n - 1) / n * m", "(n - 1) / n * m")),
    ("reduce_scatter", "recursive_halving"): Needs(
        _MPICH,
        Formulas("log2(n)", "(n - 1) / n * m", "(n - 1) / n * m"),
        Formulas("floor(log2(n)) + 2", "(3 - 2 ** floor(log2(n)) / n) * m", "(3 - 2 ** floor(log2(n)) / n) * m"),
    ),
    ("scan", "chain"): Needs(_PLAIN, Formulas("n - 1", "m", "m")),
    ("scan", "recursive_doubling"): Needs(
        "Hillis, Steele 1986",
        Formulas("ceil(log2(n))", "ceil(log2(n)) * m", "(2 * log2(n) - 1) * m"),
        Formulas("ceil(log2(n))", "ceil(log2(n)) * m", "2 * ceil(log2(n)) * m"),
    ),
}
"""Of every plan."""


class Published(NamedTuple):
    """A time that somebody has published: who, of what, how long; and the call here that comes next to it, on the network of a file."""

    source: str
    collective: str
    algorithm: str
    ranks: int
    nbytes: int
    us: float
    network: str

    def priced(self) -> float:
        """What the call costs here, in us."""
        lines = (SNIPPETS / self.network).read_text().splitlines()
        return price(row_of(self.collective, self.algorithm), Call(self.ranks, self.nbytes, _ITEMSIZE), network.read(lines)).us


_ITEMSIZE = 4
_TOKENS = 128 * 8
"""That a rank sends: 128, to 8 experts each."""
_DISPATCHED, _COMBINED = 7168 + 7168 // 128 * 4 + 16, 7168 * 2
"""Bytes of one: in 8 bits with scales and a header, and in 16 bits."""
_LATENCIES = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
PUBLISHED = [
    Published("LogGOPSim, its example", "barrier", "dissemination", 16, 0, 22.0, "loggopsim.txt"),
    Published("NCCLX, its formula", "alltoall", "pairwise", 64, 8_000_000, 63 * 1.0 + 8_000_000 / 50e3, "ncclx.txt"),
    *(
        Published(f"DeepEP, {name}", "alltoall", "pairwise", ranks, _TOKENS * nbytes, latencies[index], "deepep.txt")
        for index, (name, nbytes) in enumerate((("dispatch", _DISPATCHED), ("combine", _COMBINED)))
        for ranks, latencies in _LATENCIES.items()
    ),
]
SIMULATED = [
    Published("LogGOPSim", row["collective"], row["algorithm"], row["ranks"], row["bytes"], row["us"], "loggopsim.txt")
    for row in json.loads((RESULTS / "2026-11-25-loggopsim.json").read_text())
]
"""What another simulator says of the same plans, which it has read as GOAL text."""


def needs_table() -> list[str]:
    """Lines: what the literature says of each plan, and what is counted in it."""
    counted = "".join(f" {n} ranks: rounds | bytes | reduced | memory |" for n in COUNTED)
    lines = [
        f"| collective | algorithm | rounds | bytes | reduced | as described by |{counted}",
        "|---" * (6 + 4 * len(COUNTED)) + "|",
    ]
    for row in ROWS:
        if row.kind == PLAN:
            needs = NEEDS[row.collective, row.name]
            said = [" or ".join(dict.fromkeys(f"`{text}`" for text in pair)) for pair in zip(*_both(needs), strict=True)]
            found = [cell for n in COUNTED for cell in _cells(row.figures(n, _unit(row.collective, n)), _unit(row.collective, n))]
            lines.append(f"| {' | '.join([row.collective, f'`{row.name}`', *said, needs.source, *found])} |")
    return lines


def _both(needs: Needs) -> list[Formulas]:
    return [needs.formulas, needs.otherwise or needs.formulas]


def _unit(collective: str, n: int) -> int:
    """Bytes that are divided without a rest, and are so many that what is rounded up to a line of memory does not show."""
    return 0 if collective == "barrier" else 64 * n * 9


def _cells(figures: Figures, m: int) -> list[str]:
    return [str(figures.steps), *(f"{nbytes / m:.4g} m" if nbytes else "0" for nbytes in figures[1:])]


def published_table() -> list[str]:
    """Lines: what took how long, and what it costs here."""
    lines = ["| published | ranks | bytes of each | us | here | us | ratio |", "|---|---|---|---|---|---|---|"]
    for row in PUBLISHED:
        us = row.priced()
        here = f"{row.collective} by `{row.algorithm}`"
        lines.append(f"| {row.source} | {row.ranks} | {row.nbytes:,} | {row.us:g} | {here} | {us:.1f} | {us / row.us:.2f} |")
    return lines


def simulated_table() -> list[str]:
    """Lines: what each plan costs of 16 ranks there and here."""
    lines = ["| collective | algorithm | bytes of each | LogGOPSim, us | here, us | ratio |", "|---|---|---|---|---|---|"]
    for row in SIMULATED:
        if row.ranks == 16:
            us = row.priced()
            lines.append(
                f"| {row.collective} | `{row.algorithm}` | {row.nbytes:,} | {row.us:,.1f} | {us:,.1f} | {us / row.us:.2f} |"
            )
    return lines

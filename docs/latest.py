"""The table of what programs of their own in ``benchmarks`` measured: starts, forms of buffers, windows, communicators and halos."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

import plots

STARTS = {
    "import": "the import of `MPI`",
    "run2": "a barrier of 2 ranks, each side's own launcher",
    "run2numpy": "the same of a program that imports NumPy",
    "mpiexec2": "a barrier of 2 ranks below MPICH's `mpiexec`",
    "run64": "a barrier of 64 ranks, each side's own launcher",
}
KINDS = ("start", "forms", "windows", "halo")
"""Of the files that are shown."""
Measured = tuple[str, dict[str, float]]


def table() -> list[str]:
    """Return the lines of it: our time, and that of the fastest of the others, in us."""
    lines = ["| what | ranks | ours, us | the fastest of the others, us | | x |", "|---|---:|---:|---:|---|---:|"]
    for kind in KINDS:
        found = json.loads(plots.newest_file(kind).read_text())
        rows = _starts(found) if kind == "start" else found["rows"].items()
        for what, times in rows:
            others = {side: us for side, us in times.items() if side in plots.COLOURS}
            fastest = min(others, key=others.__getitem__)
            ranks = "" if kind == "start" else found["n"]
            ours, theirs = times["ours"], others[fastest]
            lines.append(f"| {what} | {ranks} | {_us(ours)} | {_us(theirs)} | {fastest} | {ours / theirs:.2f} |")
    return lines


def _starts(found: dict[str, dict[str, dict[str, list[float]]]]) -> Iterator[Measured]:
    for name, what in STARTS.items():
        yield what, {side: 1e3 * statistics.median(ms) for side, ms in found["ms"][name].items()}


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

"""Plots of what `ncclx bench` measured, from files in ``benchmarks/results``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from svg import ARROW, DOT, GREEN, LINE, VIOLET, picture, text

from ncclx_mpi.bench.points import size_text

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
COLOURS = {"ncclx_mpi": DOT, "mpich": ARROW, "openmpi": GREEN, "impi": VIOLET}
PLACED = {"near": DOT, "far": ARROW}
PLANS = {"ours": DOT, "flat plan": ARROW}
"""Of ranks on two hosts: as it is, and forced to an algorithm that knows nothing of hosts."""
RATIOS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8)
TIMES = (0.2, 0.5, 1, 2, 5, 10, 20)
RATES = (1, 2, 5, 10, 20, 50)
SWEPT = (("allreduce", 2), ("allreduce", 8), ("bcast", 2), ("alltoall", 2))
"""Which curves of the sweep are drawn: case and ranks."""
LEFT, WIDTH = 260, 420
Row = dict[str, Any]


def all_of_them() -> Iterator[tuple[str, str]]:
    """Name and text of each plot."""
    near_and_far, hosts = _newest("standard"), _newest("between-hosts")
    yield "speed.svg", ratios(near_and_far)
    yield "near-and-far.svg", placements(near_and_far)
    yield "between-hosts.svg", between_hosts(hosts)
    yield "latency.svg", pingpong(8, near_and_far, hosts)
    yield "bandwidth.svg", pingpong(16 << 20, near_and_far, hosts)
    sweep = _newest("sweep")
    for case, ranks in SWEPT:
        yield (
            f"sweep-{case}-{ranks}.svg",
            curves(case, ranks, [row for row in sweep if (row["case"], row["ranks"]) == (case, ranks)]),
        )


def _newest(kind: str) -> list[Row]:
    """The rows of the newest file of a kind; the names begin with the date."""
    found = json.loads(newest_file(kind).read_text())
    rows: list[Row] = found.get("summary") or found["rows"]
    return rows


def newest_file(kind: str) -> Path:
    """The newest file of a kind; those of one day are numbered from the second on."""
    pattern = re.compile(rf"(\d{{4}}-\d\d-\d\d)-{re.escape(kind)}(?:-(\d+))?\.json")
    found = [(match[1], int(match[2] or 1), path) for path in RESULTS.iterdir() if (match := pattern.fullmatch(path.name))]
    return max(found)[2]


def ratios(rows: list[Row]) -> str:
    """A line for each case; a dot for the time on each engine, in times of that on the fastest of the others."""
    rows = [row for row in rows if row["ratio"] is not None]
    times = [{side: row["us"][side] / row["us"][row["fastest"]] for side in COLOURS if row["us"].get(side)} for row in rows]
    names = [f"{_name(row)}, {row['placement']}" if row["placement"] in PLACED else _name(row) for row in rows]
    return _lines("times in those of the fastest of three MPIs", names, times, COLOURS)


def placements(rows: list[Row]) -> str:
    """A line for each case; a dot for each placement of the cores: our time in times of the fastest of the others, placed alike."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["ratio"] is not None and row["placement"] in PLACED:
            found.setdefault(_name(row), {})[row["placement"]] = row["ratio"]
    return _lines("near and far cores: our time in that of the fastest of three MPIs", list(found), list(found.values()), PLACED)


def between_hosts(rows: list[Row]) -> str:
    """A line for each case; dots for our times in those of MPICH, which ran beside them."""
    names, times = [], []
    for row in rows:
        case, nbytes = row["what"].removeprefix("mpi ").rsplit(" ", 1)
        names.append(_case(case, int(nbytes)))
        columns = {"ours": "ours", "flat plan": "flat"}
        times.append(
            {name: row["best"][column] / row["best"]["mpich"] for name, column in columns.items() if column in row["best"]}
        )
    return _lines("two hosts, two ranks on each: our time in that of MPICH", names, times, PLANS)


def pingpong(nbytes: int, placed: list[Row], hosts: list[Row]) -> str:
    """A line for near cores, far ones and two hosts; a dot for each engine: half a round trip in us, or GB/s of large messages."""
    is_rate = nbytes >= 1 << 20
    found = {
        row["placement"]: row["us"]
        for row in placed
        if (row["case"], row["bytes"]) == ("pingpong", nbytes) and row["placement"] in PLACED
    }
    (between,) = [row["best"] for row in hosts if row["what"] == f"mpi ping-pong {nbytes}"]
    found["hosts"] = {"ncclx_mpi": between["ours"], "mpich": between["mpich"]}
    names = {"near": "near cores", "far": "far cores", "hosts": "two hosts, over TCP"}
    values = [
        {side: nbytes / us / 1e3 if is_rate else us for side, us in found[place].items() if side in COLOURS and us}
        for place in names
    ]
    title = f"{size_text(nbytes)} to another rank, {'GB/s' if is_rate else 'half a round trip in us'}"
    return _lines(title, list(names.values()), values, COLOURS, RATES if is_rate else TIMES, bold=None)


def _name(row: Row) -> str:
    return f"{_case(row['case'], row['bytes'])}, {row['ranks']} ranks"


def _case(name: str, nbytes: int) -> str:
    return f"{name.replace('_', ' ')} {size_text(nbytes)}" if nbytes else name


def _lines(
    title: str,
    names: list[str],
    times: list[dict[str, float]],
    colours: dict[str, str],
    ticks: tuple[float, ...] = RATIOS,
    bold: float | None = 1,
) -> str:
    """A line for each name, with a dot for each of its times, in powers; the first colour's are the largest, and on top."""
    low, high = 0.8 * ticks[0], ticks[-1]
    height = 70 + 22 * len(names)

    def x(ratio: float) -> float:
        return LEFT + WIDTH * math.log(min(max(ratio, low), high) / low) / math.log(high / low)

    body = _legend(height - 14, colours)
    for tick in ticks:
        body += [_line(x(tick), 30, x(tick), height - 36, 2 if tick == bold else 0.7), text(x(tick), 22, f"{tick:g}", "middle")]
    for number, (name, found) in enumerate(zip(names, times, strict=True)):
        y = 44 + 22 * number
        body.append(text(LEFT - 12, y + 4, name, "end"))
        body += [_dot(x(found[kind]), y, kind, colours) for kind in reversed(colours) if kind in found]
    return picture(LEFT + WIDTH + 30, height, title, body)


def curves(case: str, ranks: int, rows: list[Row]) -> str:
    """Time over bytes, both in powers."""
    rows = sorted((row for row in rows if row["bytes"] and row["us"]), key=lambda row: row["bytes"])
    times = [time for row in rows for side, time in row["us"].items() if side in COLOURS and time]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    top, bottom, left = 40, 300, 80

    def x(nbytes: int) -> float:
        first, last = math.log2(rows[0]["bytes"]), math.log2(rows[-1]["bytes"])
        return left + 540 * (math.log2(nbytes) - first) / (last - first)

    def y(time: float) -> float:
        return bottom - (bottom - top) * (math.log10(time) - low) / (high - low)

    body = [text(20, 22, f"{case} on {ranks} ranks: us over bytes of one rank"), *_legend(bottom + 46, COLOURS)]
    for power in range(low, high + 1):
        body += [
            _line(left, y(10.0**power), left + 540, y(10.0**power), 0.7),
            text(left - 8, y(10.0**power) + 4, f"{10.0**power:,.10g}", "end"),
        ]
    for row in rows[::2]:
        body.append(text(x(row["bytes"]), bottom + 20, size_text(row["bytes"]), "middle"))
    for side, colour in reversed(COLOURS.items()):
        points = [(x(row["bytes"]), y(row["us"][side])) for row in rows if row["us"].get(side)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{2.5 if side == "ncclx_mpi" else 1.5}"/>'
        )
    return picture(left + 570, bottom + 62, f"{case} on {ranks} ranks", body)


def _legend(y: int, colours: dict[str, str]) -> list[str]:
    return [
        part
        for number, kind in enumerate(colours)
        for part in (_dot(100 + 130 * number, y - 4, kind, colours), text(110 + 130 * number, y, kind))
    ]


def _dot(x: float, y: float, kind: str, colours: dict[str, str]) -> str:
    radius = 5.5 if kind == next(iter(colours)) else 4
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colours[kind]}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, width: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{LINE}" stroke-width="{width}"/>'

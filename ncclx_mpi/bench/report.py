"""Tables: OSU style, nccl-tests style, the comparison on a terminal, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ncclx_mpi.bench.points import OBJECTS, Point, size_text
from ncclx_mpi.bench.summary import OURS, Row

_NCCL_NAMES = f"#{'size':>12} {'count':>12} {'type':>8} {'redop':>6} {'root':>5} {'time':>11} {'algbw':>8} {'busbw':>8}  #wrong"
_NCCL_UNITS = f"#{'(B)':>12} {'(elements)':>12} {'':>8} {'':>6} {'':>5} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}"
_REDUCTIONS = ("allreduce", "reduce", "scan", "exscan", "reduce_scatter", "reduce_scatter_block")


def bus_factor(point: Point) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    n = point.nranks
    if point.operation == "allreduce":
        return 2 * (n - 1) / n
    shared = ("reduce_scatter", "allgather", "alltoall", "gather", "scatter")
    return (n - 1) / n if point.operation.startswith(shared) else 1.0


def total_bytes(point: Point) -> int:
    """Return the size that nccl-tests would print: of the larger buffer."""
    alone = ("allreduce", "reduce", "scan", "exscan", "bcast", "pingpong", "ring", "barrier", *OBJECTS)
    return point.nbytes if point.operation in alone else point.nbytes * point.nranks


def osu(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one block for each case and rank count: sizes down, sides across."""
    for (case, nranks, placement), block in _blocks(rows):
        sides = _sides(block)
        yield f"# {case}, {nranks} ranks, cores {placement}: latency [us]"
        yield f"{'# Size [B]':<12}" + "".join(f"{side:>14}" for side in sides)
        for row in block:
            yield f"{row.point.nbytes:<12}" + "".join(f"{_number(row.medians.get(side)):>14}" for side in sides)
        yield ""


def nccl(rows: Sequence[Row], wrong: dict[Point, int] | None = None) -> Iterator[str]:
    """Yield our figures with bandwidths: GB are 1e9 bytes."""
    wrong = wrong or {}
    for (case, nranks, placement), block in _blocks(rows):
        yield f"# {case}, {nranks} ranks, cores {placement}"
        yield _NCCL_NAMES
        yield _NCCL_UNITS
        bandwidths = []
        for row in block:
            if row.ours is None:
                continue
            size = total_bytes(row.point)
            algorithm = size / row.ours / 1e3
            bandwidths.append(algorithm * bus_factor(row.point))
            operation = row.point.operation
            redop = "sum" if operation in _REDUCTIONS else "none"
            root = "0" if operation.startswith(("bcast", "reduce", "gather", "scatter")) and "_scatter" not in operation else "-1"
            yield (
                f" {size:>12} {size // 4:>12} {'float':>8} {redop:>6} {root:>5} {row.ours:>11.2f}"
                f" {algorithm:>8.2f} {bandwidths[-1]:>8.2f} {wrong.get(row.point, 0):>7}"
            )
        yield f"# Avg bus bandwidth : {sum(bandwidths) / max(1, len(bandwidths)):.3f}"
        yield ""


def comparison(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table against the peers, with the goals."""
    sides = _sides(rows)
    yield f"{'point':<36} {'cores':<7}" + "".join(f"{side:>12}" for side in sides) + f"{'x fastest':>11} {'goal':>5}"
    for row in rows:
        times = "".join(f"{_number(row.medians.get(side)):>12}" for side in sides)
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
        goal = f"{row.goal:.2f}" if row.goal is not None else ""
        yield f"{row.point!s:<36} {row.placement:<7}{times}{ratio:>11} {goal:>5} {row.verdict}".rstrip()


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the same for the README."""
    sides = _sides(rows)
    yield "| work | ranks | cores | " + " | ".join(f"{side}, us" for side in sides) + " | x fastest peer |"
    yield "|---|---|---|" + "---:|" * (len(sides) + 1)
    for row in rows:
        times = " | ".join(_number(row.medians.get(side)) for side in sides)
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
        yield f"| {_work(row.point)} | {row.point.nranks} | {row.placement} | {times} | {ratio} |"


def _work(point: Point) -> str:
    sizeless = point.operation in ("barrier", "startup")
    return point.case.replace("_", " ") if sizeless else f"{point.case.replace('_', ' ')} {size_text(point.nbytes)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _sides(rows: Iterable[Row]) -> list[str]:
    """Return us first, then the peers in the order in which they appear."""
    names = {side: None for row in rows for side in row.medians}
    return ([OURS] if OURS in names else []) + [name for name in names if name != OURS]


def _blocks(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, int, str], list[Row]]]:
    blocks: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row.point.case, row.point.nranks, row.placement), []).append(row)
    yield from blocks.items()

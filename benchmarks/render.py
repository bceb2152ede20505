"""Write the README's table from a results file of ``ncclx bench --against ... --json FILE``, and from those of ``ring_floor.py``.

python benchmarks/render.py benchmarks/results/FILE.json [benchmarks/results/FLOOR.json ...] [--print]
"""

import json
import re
import sys
from pathlib import Path

from ncclx_mpi.bench import report, summary
from ncclx_mpi.bench.placement import FAR, NEAR

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"(<!-- bench: begin -->\n).*?(<!-- bench: end -->)", re.DOTALL)


_Floors = dict[tuple[str, int, str], float]
"""Microseconds by case, bytes and placement."""
_FAR_FLAG_US = 0.06
"""Between what a flag takes one way in ``ring_floor.py``: 0.03 us near, 0.08 far."""


def section(path: Path, floors: _Floors) -> str:
    """Return the README's section on speed, with the floors."""
    results = json.loads(path.read_text())
    measured = [row for row in summary.summarize(results["runs"]) if row.ratio is not None]
    rows = [row for row in measured if not _is_left_out(row)]
    better = [row.ratio or 0 for row in measured if _is_left_out(row)]
    libraries = {run["side"]: short(run["library"]) for run in results["runs"] if run["library"]}
    peers = ", ".join(text for side, text in sorted(libraries.items()) if side != summary.OURS)
    came = sorted({row.placement for row in rows} - {"any"})
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "ncclx_mpi")
    lines = [
        "## Speed",
        "",
        f"One mpi4py program, timed on this engine and on mpi4py over {peers}, in turn: medians of {results['effort']['rounds']} "
        f"rounds, {results['date'][:10]}, {results['machine']}, {versions}. Sizes are what one rank contributes to one destination "
        "(float32); ping-pong is half a round trip; startup is the wall time of a program that meets in one barrier. The last column "
        "is a floor: what two processes take that hand as many bytes over through a ring in shared memory, and do nothing else "
        "(`benchmarks/ring_floor.py`); the one before is our time over that of the fastest peer. *Near* and *far* are the two "
        "placements of the cores under the hypervisor (a flag's round trip below 0.2 us, above 0.25 us); in this run "
        f"{' and '.join(came) or 'neither'} came up.",
        "",
        *with_floors(list(report.markdown(rows)), rows, floors),
        "",
        f"The table comes from [`{path.relative_to(ROOT)}`]({path.relative_to(ROOT)}) by `benchmarks/render.py`, without the file's "
        f"reduce-scatters and bcasts of 8 KiB ({min(better):.2f} to {max(better):.2f} times the fastest); how it is measured: "
        "[docs/how_to/tuning.md](docs/how_to/tuning.md).",
    ]
    return "\n".join(lines) + "\n"


def _is_left_out(row: summary.Row) -> bool:
    """Whether the README, which is to be short, goes without a row; below its table stands what ratios these have."""
    return row.point.case == "reduce_scatter_block" or (row.point.case == "bcast" and row.point.nbytes > 8)


def with_floors(lines: list[str], rows: list[summary.Row], floors: _Floors) -> list[str]:
    """Return the lines of a table with another column."""
    cells = [floors.get((row.point.case, row.point.nbytes, row.placement)) if row.point.nranks == 2 else None for row in rows]
    more = [" floor, us |", "---:|", *(" - |" if cell is None else f" {cell:.2f} |" for cell in cells)]
    return [line + end for line, end in zip(lines, more, strict=True)]


def floor(path: Path) -> _Floors:
    """Return the least time of a file of ``ring_floor.py``, for the cases that copy as much. The cores stayed where they were."""
    found = json.loads(path.read_text())
    least = min(row["us"] for row in found["rows"] if "ring KiB" in row)
    (placement,) = {FAR if row["us"] > _FAR_FLAG_US else NEAR for row in found["rows"] if row["what"] == "flag"}
    return {(case, found["bytes"], placement): least for case in (("allgather", "alltoall") if found["swap"] else ("pingpong",))}


def short(library: str) -> str:
    """Return name and version out of what ``MPI.Get_library_version`` says."""
    found = re.search(r"(MPICH|Open MPI|Intel\(R\) MPI)\D*([\d.]+)", library)
    return f"{found[1].replace('(R)', '')} {found[2]}" if found else library


def main(arguments: list[str]) -> None:
    files = [Path(name).resolve() for name in arguments if not name.startswith("-")]
    text = section(files[0], {case: us for path in files[1:] for case, us in floor(path).items()})
    if "--print" in arguments:
        print(text)
        return
    readme = ROOT / "README.md"
    readme.write_text(TABLE.sub(lambda match: match[1] + text + match[2], readme.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])

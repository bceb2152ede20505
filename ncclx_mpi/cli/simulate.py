"""``ncclx simulate``: what the plans of a collective cost on a modelled network, whether they are right, and the plans as GOAL text.

No rank is started: the plans that ranks would run are looked at, of up to 131,072 of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncclx_mpi.algorithms import ALGORITHMS, PLAN, Algorithm, Case, choose, rows_of
from ncclx_mpi.bench.points import parse_size, size_text
from ncclx_mpi.cli.main import program_name
from ncclx_mpi.locality.keys import LEVELS
from ncclx_mpi.nodes import nodes_of
from ncclx_mpi.simulate import goal, network, proof
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.network import Network
from ncclx_mpi.simulate.price import estimate, price

_ITEMSIZE = 4
"""Bytes of an element of a reduction: a float32."""
_MOST_FAULTS = 20


def main(args: list[str]) -> int:
    """Print prices, faults or a file's proof."""
    parser = argparse.ArgumentParser(
        prog=f"{program_name()} simulate",
        description=__doc__,
        epilog=network.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("collective", nargs="?", choices=ALGORITHMS, help="whose plans")
    parser.add_argument("--ranks", type=int, default=8, help="ranks (default: 8)")
    parser.add_argument("--bytes", default="1M", help="what each rank gives, such as 8, 64K (default: 1M)")
    parser.add_argument("--topology", metavar="FILE", type=Path, help="the network, in lines of key = value; see below")
    parser.add_argument("--algorithm", metavar="NAME", help="this one only")
    parser.add_argument("--prove", action="store_true", help="prove the plans, too; for up to a few hundred ranks")
    parser.add_argument("--goal", metavar="FILE", type=Path, help="write the plans of --algorithm as GOAL text")
    parser.add_argument("--read", metavar="FILE", type=Path, help="instead: read plans that --goal has written, and prove them")
    options = parser.parse_args(args)
    try:
        return _read(options.read) if options.read else _simulate(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def _simulate(options: argparse.Namespace) -> int:
    rows = [row for row in rows_of(options.collective or "") if row.kind == PLAN and options.algorithm in (None, row.name)]
    if not rows:
        raise ValueError(f"{options.collective} has no plan {options.algorithm}" if options.collective else "which collective?")
    if options.ranks < 1:
        raise ValueError(f"--ranks {options.ranks}: there is at least one rank")
    if options.goal and len(rows) > 1:
        raise ValueError(f"--goal writes one algorithm: say --algorithm {', or '.join(row.name for row in rows)}")
    modelled = network.read(options.topology.read_text().splitlines() if options.topology else ())
    nbytes = 0 if options.collective == "barrier" else parse_size(options.bytes)
    call = Call(options.ranks, nbytes, _ITEMSIZE, nodes=modelled.nodes(options.ranks))
    print("\n".join(_prices(rows, call, modelled)))
    if options.goal:
        plans = proof.plans_of(rows[0], call)
        with options.goal.open("w") as file:
            file.writelines(f"{line}\n" for line in goal.text(goal.Schedule(rows[0], call, plans), modelled))
    return max(_proved(row, call, None) for row in rows) if options.prove else 0


def _prices(rows: list[Algorithm], call: Call, modelled: Network) -> list[str]:
    """A line for each algorithm."""
    nodes = nodes_of(call.nodes) if call.nodes else None
    chosen = choose(rows[0].collective, Case(call.size, call.nbytes, call.itemsize, nodes=nodes))
    lines = [f"{rows[0].collective} of {size_text(call.nbytes)} from each of {call.size} ranks; + runs where there is no slot", ""]
    levels = LEVELS[: modelled.level(0, call.size - 1) + 1]
    columns = "".join(f"{'GB, ' + level:>14}" for level in levels)
    lines.append(f"{'':2}{'algorithm':26}{'us':>14}{'messages':>14}{columns}  ranks looked at")
    for row in rows:
        mark = "+" if row is chosen else ""
        try:
            found = price(row, call, modelled)
        except ValueError as error:
            about = f"~ {estimate(row, call, modelled):,.1f}"
            lines.append(f"{mark:2}{row.name:26}{about:>14}  as formulas have it: {error}")
            continue
        far = "".join(f"{nbytes / 1e9:>14.6g}" for nbytes in found.nbytes[: len(levels)])
        lines.append(f"{mark:2}{row.name:26}{found.us:>14,.1f}{found.messages:>14,}{far}  {found.looked_at:,}")
    return lines


def _read(path: Path) -> int:
    with path.open() as file:
        schedule = goal.read(file)
    print(f"{schedule.row.collective} by {schedule.row.name}, {schedule.call.size} ranks:")
    return _proved(schedule.row, schedule.call, schedule)


def _proved(row: Algorithm, call: Call, schedule: goal.Schedule | None) -> int:
    """Print what is wrong with plans; 1 if anything is."""
    found = proof.faults(row, call, schedule.plans if schedule else None)
    print(f"{row.name}: {len(found)} faults" if found else f"{row.name}: proved")
    for fault in found[:_MOST_FAULTS]:
        print(f"  {fault}")
    return int(bool(found))

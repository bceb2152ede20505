"""``ncclx info --topo``: the machines of a job drawn, where they are in the network, and where its ranks are in them."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclx_mpi.locality import machine, placement
from ncclx_mpi.locality.cpu_lists import ranges
from ncclx_mpi.locality.levels import CLASSES, NETWORK, SAME_RANK, Row, distance
from ncclx_mpi.locality.machine import Part

_WORDS = {
    "dc": "data centre",
    "zone": "zone",
    "rack": "rack",
    "package": "package",
    "numa": "NUMA node",
    "l3": "L3 cache",
    "core": "core",
}
_MOST_COLUMNS = 32
_MOST_IN_DATA = 1024
"""Ranks up to which all distances are given, and grids placed."""
_INDENT = "  "


@dataclass
class Standing:
    """What one rank says.

    Attributes
    ----------
    rank
        Of the world.
    host
        The name of its machine.
    node
        The first rank of its node.
    names, source
        Of the rack, zone and data centre, and who says so.
    cpus
        The processors that it may run on.
    row
        What it is in, by levels.
    parts
        The machine; said by the first rank of a node.
    sizes
        Of last-level caches, by the first processor of each.
    fault
        Why it cannot say where it is.
    """

    rank: int
    host: str
    node: int
    names: dict[str, str] = field(default_factory=dict)
    source: str = ""
    cpus: frozenset[int] = frozenset()
    row: Row = ()
    parts: tuple[Part, ...] = ()
    sizes: dict[int, str] = field(default_factory=dict)
    fault: str = ""


def show(is_json: bool) -> int:
    """Draw the job that this process was started in; rank 0 does."""
    from ncclx_mpi import runtime

    comm: Any = importlib.import_module("ncclx_mpi.MPI").COMM_WORLD
    standings = comm.gather(_own(comm.rank, runtime.engine()), root=0)
    if standings is None:
        return 0
    faults = [f"rank {standing.rank} on {standing.host}: {standing.fault}" for standing in standings if standing.fault]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    lines = [*drawing(standings), *distances(standings), *neighbours(standings)]
    print(json.dumps(as_data(standings), indent=1) if is_json else "\n".join(lines))
    return 0


def _own(rank: int, engine: Any) -> Standing:
    from ncclx_mpi.api import localities

    host, node = socket.gethostname(), engine.near[0]
    try:
        found = localities.of_this_rank(engine)
    except (ValueError, OSError) as error:
        return Standing(rank, host, node, fault=str(error))
    parts = machine.tree(machine.all_cpus()) if rank == node else ()
    sizes = {min(part.cpus): machine.cache_size(min(part.cpus), part.kind) for part in _every(parts) if part.kind == "l3"}
    return Standing(rank, host, node, found.host.names, found.host.source, found.cpus, found.row, parts, sizes)


def _every(parts: Sequence[Part]) -> list[Part]:
    return [each for part in parts for each in (part, *_every(part.inside))]


# As text ----------------------------------------------------------------------------------------------------------


def drawing(standings: Sequence[Standing]) -> list[str]:
    """Lines, each below what it is in, with the ranks that may run on all of it and on nothing else."""
    lines: list[str] = []
    above: list[str] = []
    firsts = [standing for standing in standings if standing.rank == standing.node]
    for first in sorted(firsts, key=lambda standing: [standing.names.get(level, "") for level in NETWORK]):
        path = [f"{_WORDS[level]} {first.names[level]}" for level in NETWORK if level in first.names]
        kept = next((index for index, words in enumerate(path) if above[index : index + 1] != [words]), len(path))
        lines += [f"{_INDENT * index}{words}" for index, words in enumerate(path) if index >= kept]
        above = path
        lines += [_INDENT * len(path) + line for line in _node(first, [each for each in standings if each.node == first.node])]
    sources = dict.fromkeys(standing.source for standing in firsts)
    return [*lines, "", *(f"network: {source}" for source in sources)]


def _node(first: Standing, ranks: Sequence[Standing]) -> list[str]:
    left = {standing.rank: standing.cpus for standing in ranks}
    below = _parts(first.parts, left, first.sizes)
    return [f"node {first.host}{_ranks(left)}", *(_INDENT + line for line in below)]


def _parts(parts: Sequence[Part], left: dict[int, frozenset[int]], sizes: dict[int, str]) -> list[str]:
    """Lines for parts and what is in them; the ranks that are in one are taken from those that are left."""
    lines: list[str] = []
    empty: list[Part] = []
    for part in parts:
        own = {rank: cpus for rank, cpus in left.items() if cpus <= part.cpus}
        if part.kind == "core" and not own:
            empty.append(part)
            continue
        lines += _cores(empty)
        empty = []
        for rank in own:
            del left[rank]
        below = _parts(part.inside, own, sizes)
        size = sizes.get(min(part.cpus), "") if part.kind == "l3" else ""
        about = f", processors {ranges(part.cpus)}" if part.kind == "core" else f", {size}" if size else ""
        lines += [f"{_WORDS[part.kind]} {part.number}{about}{_ranks(own)}", *(_INDENT + line for line in below)]
    return lines + _cores(empty)


def _cores(parts: Sequence[Part]) -> list[str]:
    """One line for cores that nobody is bound to."""
    if not parts:
        return []
    numbers, cpus = ranges(part.number for part in parts), ranges(cpu for part in parts for cpu in part.cpus)
    return [f"core{'s' * (len(parts) > 1)} {numbers}, processors {cpus}"]


def _ranks(found: dict[int, frozenset[int]]) -> str:
    return f": rank{'s' * (len(found) > 1)} {ranges(found)}" if found else ""


def distances(standings: Sequence[Standing]) -> list[str]:
    """How far each rank is from each other one; nothing where there is one rank, or many."""
    if not 1 < len(standings) <= _MOST_COLUMNS:
        return []
    table = _table(standings)
    seen = sorted({number for row in table for number in row})
    head = "distances: " + ", ".join(f"{number} {CLASSES[number]}" for number in seen)
    lines = [f"rank{''.join(f'{standing.rank:4}' for standing in standings)}"]
    lines += [
        f"{standing.rank:4}{''.join(f'{number:4}' for number in row)}" for standing, row in zip(standings, table, strict=True)
    ]
    return ["", head, *lines]


def _table(standings: Sequence[Standing]) -> list[list[int]]:
    return [[SAME_RANK if one is other else distance(one.row, other.row) for other in standings] for one in standings]


def neighbours(standings: Sequence[Standing]) -> list[str]:
    """How many pairs of neighbours of a grid are on two nodes; nothing where there is one node."""
    lines = [
        f"{_INDENT}grid of {' x '.join(map(str, grid['dims']))}: {grid['as_ranks_come']}, reordered {grid['reordered']}"
        for grid in _grids(standings)
    ]
    return ["", "neighbours on two nodes:", *lines] if lines else []


def _grids(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Grids of all ranks in two and three dimensions, and how many pairs of neighbours in them are on two nodes."""
    from ncclx_mpi.api.topology import Compute_dims

    if len({standing.node for standing in standings}) < 2 or len(standings) > _MOST_IN_DATA:
        return []
    rows = [standing.row for standing in standings]
    found = []
    for dims in (Compute_dims(len(rows), count) for count in (2, 3)):
        if min(dims) > 1:
            kept, placed = placement.gain(dims, rows)
            found.append({"dims": dims, "as_ranks_come": kept, "reordered": placed})
    return found


# As data ----------------------------------------------------------------------------------------------------------


def as_data(standings: Sequence[Standing]) -> dict[str, Any]:
    """The same for programs."""
    firsts = [standing for standing in standings if standing.rank == standing.node]
    nodes = [
        {
            "host": first.host,
            **first.names,
            "source": first.source,
            "machine": _as_data(first.parts),
            "ranks": {str(each.rank): ranges(each.cpus) for each in standings if each.node == first.node},
        }
        for first in firsts
    ]
    table = _table(standings) if len(standings) <= _MOST_IN_DATA else None
    return {"nodes": nodes, "classes": CLASSES, "distances": table, "grids": _grids(standings)}


def _as_data(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [
        {"kind": part.kind, "number": part.number, "processors": ranges(part.cpus), "inside": _as_data(part.inside)}
        for part in parts
    ]

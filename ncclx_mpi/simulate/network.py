"""A modelled network: nodes in racks in zones in data centres, and what a message costs by how far it goes.

The file is lines of ``key = value``, with ``#`` before comments. Ranks fill nodes in their order, nodes racks, and so on::

    node.ranks = 8            # 0, as for all four: there is one that holds everything
    rack.nodes = 16
    zone.racks = 32
    dc.zones = 4
    node.latency = 0.5        # us, within a node; also rack, zone, dc and world: between nodes, racks, zones and data centres
    node.bandwidth = 20       # GB/s of one message; also rack, zone, dc and world
    node.uplink = 50          # GB/s that all ranks of a node share, each way; also rack, zone and dc; 0: no limit
    rack.core = 3             # GB/s at which a core sends and receives, if it does it itself; also node, zone, dc and world
    core.ranks = 2            # ranks that share a core
    message = 1               # us that a message takes from the rank that sends it, and from the one that receives it
    eager = 8K                # bytes up to which a message does not wait for its receive
    copy = 10                 # GB/s of a rank that copies
    reduce = 20               # GB/s of a rank that reduces

What such a file says of the host that has it (``rack``, ``zone``, ``dc``; see :mod:`ncclx_mpi.locality.whereabouts`) is of no matter here.
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclx_mpi.locality.keys import LEVELS, PARTS, Line, lines_of, whole_number
from numba_kernels.rows import NamedTuple

_SIZES = (*PARTS, "core.ranks", "eager")
_DEFAULTS = {
    **dict.fromkeys(PARTS, 0.0),
    **{f"{level}.latency": 0.0 for level in LEVELS},
    **{f"{level}.bandwidth": 10.0 for level in LEVELS},
    **{f"{level}.uplink": 0.0 for level in LEVELS[:-1]},
    **{f"{level}.core": 0.0 for level in LEVELS},
    "core.ranks": 1.0,
    "message": 1.0,
    "eager": 8192.0,
    "copy": 10.0,
    "reduce": 20.0,
}
"""Without a file: ranks of one machine, as the costs of :data:`ncclx_mpi.costs.SHARED_MEMORY` have it."""
_BYTES_PER_US = 1e3
"""Of a GB/s."""


class Network(NamedTuple):
    """What a network costs, in us and bytes.

    Attributes
    ----------
    ranks
        Of a node, a rack, a zone and a data centre; 0 where it holds all.
    latency, byte
        Of a message by how far it goes: us until it arrives, and us a byte.
    uplink
        us a byte out of each of them, and into it; 0 where there is no limit.
    core
        us a byte of a core that sends a message, and of one that receives it, by how far it goes; 0 where it is no work of a core.
    core_ranks
        That share a core.
    message, eager, copy, reduce
        us of a rank for a message; bytes up to which one is eager; us a byte that is copied, and reduced.
    """

    ranks: tuple[int, ...]
    latency: tuple[float, ...]
    byte: tuple[float, ...]
    uplink: tuple[float, ...]
    core: tuple[float, ...]
    core_ranks: int
    message: float
    eager: int
    copy: float
    reduce: float

    def nodes(self, size: int) -> tuple[int, ...]:
        """The number of the node of each of so many ranks; empty if they share one."""
        held = self.ranks[0]
        return tuple(rank // held for rank in range(size)) if 0 < held < size else ()

    def level(self, one: int, other: int) -> int:
        """How far it is between two ranks, as an index of `LEVELS`."""
        for level, ranks in enumerate(self.ranks):
            if not ranks or one // ranks == other // ranks:
                return level
        return len(self.ranks)


def read(lines: Iterable[str] = ()) -> Network:
    """Read a network from the lines of a file; all that they do not say is as on one machine.

    Raises
    ------
    ValueError
        A line says nothing about a network.
    """
    found = dict(_DEFAULTS)
    for line in lines_of(lines):
        if line.key in found:
            found[line.key] = float(whole_number(line)) if line.key in _SIZES else _value(line)
    sizes: list[int] = []
    for part in PARTS:
        inner = sizes[-1] if sizes else 1
        sizes.append(int(found[part]) * inner)
    return Network(
        tuple(sizes),
        tuple(found[f"{level}.latency"] for level in LEVELS),
        tuple(_us(found[f"{level}.bandwidth"]) for level in LEVELS),
        tuple(_us(found[f"{level}.uplink"]) for level in LEVELS[:-1]),
        tuple(_us(found[f"{level}.core"]) for level in LEVELS),
        max(1, int(found["core.ranks"])),
        found["message"],
        int(found["eager"]),
        _us(found["copy"]),
        _us(found["reduce"]),
    )


def _us(gigabytes: float) -> float:
    return 1 / (gigabytes * _BYTES_PER_US) if gigabytes else 0.0


def _value(line: Line) -> float:
    """A number that is not negative. Bandwidths, and rates, are more than 0."""
    try:
        value = float(line.value)
    except ValueError:
        value = -1
    has_to_be = line.key.endswith("bandwidth") or line.key in ("copy", "reduce")
    if not 0 <= value < float("inf") or (has_to_be and not value):
        kind = "number above 0" if has_to_be else "number from 0 on"
        raise ValueError(f"line {line.number}: {line.key} has to be a {kind}, not {line.value!r}")
    return value

"""``ncclx info --peers``: by what each rank of a job reaches each other one, and why."""

from __future__ import annotations

import importlib
import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

_SELF = ("self", "a rank itself")
_MOST_COLUMNS = 32


@dataclass
class Row:
    """What one rank says.

    Attributes
    ----------
    rank
        Of the world.
    host
        Where it runs.
    transports, reasons
        By peer.
    """

    rank: int
    host: str
    transports: list[str]
    reasons: list[str]


def show(is_json: bool) -> int:
    """Print the matrix of the job that this process was started in; rank 0 does. Each rank sends to each other one before."""
    from ncclx_mpi import runtime

    comm: Any = importlib.import_module("ncclx_mpi.MPI").COMM_WORLD
    comm.alltoall(range(comm.size))
    engine = runtime.engine()
    ways = [way_to(engine, peer) for peer in range(comm.size)]
    own = Row(comm.rank, socket.gethostname(), [name for name, _ in ways], [reason for _, reason in ways])
    rows = comm.gather(own, root=0)
    if rows is not None:
        print(json.dumps([asdict(row) for row in rows], indent=1) if is_json else "\n".join([*matrix(rows), "", *reasons(rows)]))
    return 0


def way_to(engine: Any, peer: int) -> tuple[str, str]:
    """The transport by which this rank reaches a peer, and why."""
    if peer == engine.rank:
        return _SELF
    transport = engine.way_to(peer)
    return transport.name, transport.why(peer)


def matrix(rows: list[Row]) -> list[str]:
    """A line for each rank, with a column for each peer; of many ranks, with the ranges of peers that each transport reaches."""
    hosts = max(4, *(len(row.host) for row in rows))
    if len(rows) > _MOST_COLUMNS:
        return [f"rank {row.rank:4} on {row.host:{hosts}}: {'; '.join(_runs(row.transports))}" for row in rows]
    width = max(len(name) for row in rows for name in [*row.transports, str(len(rows))]) + 2
    head = f"rank  {'host':{hosts}}" + "".join(f"{peer:{width}}" for peer in range(len(rows)))
    return [head, *(f"{row.rank:4}  {row.host:{hosts}}" + "".join(f"{name:>{width}}" for name in row.transports) for row in rows)]


def reasons(rows: list[Row]) -> list[str]:
    """Why it is so: each reason once, with the pairs of ranks where not all of a transport have the same."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for peer, way in enumerate(zip(row.transports, row.reasons, strict=True)):
            pairs.setdefault(way, []).append(f"{row.rank}-{peer}")
    names = [name for name, _ in pairs]
    return [
        f"{name}: {reason}" + (f" ({_some(found)})" if names.count(name) > 1 else "")
        for (name, reason), found in sorted(pairs.items())
    ]


def _runs(names: list[str]) -> list[str]:
    """``shm 0-3`` for four peers in a row that are reached by the same."""
    found: list[str] = []
    first = 0
    for peer in range(1, len(names) + 1):
        if peer == len(names) or names[peer] != names[first]:
            found.append(f"{names[first]} {first}-{peer - 1}" if peer - 1 > first else f"{names[first]} {first}")
            first = peer
    return found


def _some(pairs: list[str], most: int = 8) -> str:
    return ", ".join(pairs[:most]) + (f" and {len(pairs) - most} more" if len(pairs) > most else "")

"""What this rank is in, of all levels."""

from __future__ import annotations

from ncclx_mpi.locality import machine, whereabouts
from ncclx_mpi.locality.levels import LEVELS, MACHINE, NETWORK, NOWHERE, number
from ncclx_mpi.locality.whereabouts import Whereabouts
from numba_kernels.rows import NamedTuple


class Locality(NamedTuple):
    """Of one rank.

    Attributes
    ----------
    host
        Where its host is.
    cpus
        The processors that it may run on.
    parts
        The parts of the machine that hold all of these, each by its first processor.
    row
        A number for each of ``levels.LEVELS``.
    """

    host: Whereabouts
    cpus: frozenset[int]
    parts: dict[str, int]
    row: tuple[int, ...]


def find(job: int, first_rank: int, system: str = machine.SYSTEM) -> Locality:
    """Where the calling thread is: on the node of a job that has this rank first.

    Raises
    ------
    ValueError, OSError
        What is said of the network cannot be read or understood; see :func:`whereabouts.find`.
    """
    host, cpus = whereabouts.find(first_rank), machine.allowed_cpus()
    parts = machine.bound_to(cpus, system)
    node = number("node", job, first_rank)
    numbers = {"node": node, **{kind: number(node, kind, parts[kind]) for kind in MACHINE if kind in parts}}
    cache = machine.last_cache(min(cpus), system)
    if cache in numbers:
        numbers["cache"] = numbers[cache]
    numbers.update(zip(NETWORK, in_network(host), strict=True))
    return Locality(host, cpus, parts, tuple(numbers.get(level, NOWHERE) for level in LEVELS))


def in_network(host: Whereabouts) -> tuple[int, ...]:
    """The numbers of ``levels.NETWORK`` that a host is in."""
    found: list[int] = []
    above: tuple[str, ...] = ()
    for level in NETWORK:  # racks of two zones may have the same name
        is_known = level in host.names
        above = (*above, host.names[level]) if is_known else above
        found.append(number(level, *above) if is_known else NOWHERE)
    return tuple(found)

"""``ncclx run --bind``: which processors each rank of this host may run on, and how many threads it should have then."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.locality import machine
from ncclx_mpi.locality.cpu_lists import ranges
from numba_kernels.rows import NamedTuple

KINDS = ("none", "core", "l3", "numa")
THREADS = "OMP_NUM_THREADS"


class Binding(NamedTuple):
    """Of one rank.

    Attributes
    ----------
    cpus
        Processors, as Linux numbers them.
    ncores
        Cores that this rank has for itself, if those who share them share them out.
    where
        In words, such as ``core 3``.
    """

    cpus: frozenset[int]
    ncores: int
    where: str

    def __str__(self) -> str:
        return f"{self.where} (processor{'s' * (len(self.cpus) > 1)} {ranges(self.cpus)})"


def bindings(kind: str, nranks: int, system: str = machine.SYSTEM) -> list[Binding]:
    """The binding of each rank of this host: cores one after the other, larger parts filled evenly, neighbours together.

    Parameters
    ----------
    kind
        ``core``, ``l3`` (cores that share a last-level cache) or ``numa`` (that share a memory); nothing for ``none``.
    nranks
        Ranks of this host.
    system
        Where Linux describes the machine.

    Raises
    ------
    ValueError
        There are not as many cores as ranks, or Linux does not say which processors belong together.
    """
    if kind == "none":
        return []
    allowed = machine.allowed_cpus()
    cores = _parts("core", allowed, system)
    parts = cores if kind == "core" else _parts(kind, allowed, system)
    if kind == "core" and nranks > len(cores):
        raise ValueError(
            f"--bind core: {nranks} ranks do not fit on {len(cores)} cores; start fewer, or let them share with --bind numa"
        )
    homes = [rank if kind == "core" else rank * len(parts) // nranks for rank in range(nranks)]
    found = []
    for home in homes:
        ncores = sum(core <= parts[home] for core in cores)
        found.append(Binding(parts[home], max(1, ncores // homes.count(home)), f"{kind} {home}"))
    return found


def threads(found: Sequence[Binding]) -> int:
    """How many threads a rank should have, so that no two share a core: the same number for all."""
    return min(binding.ncores for binding in found)


def _parts(kind: str, allowed: frozenset[int], system: str) -> list[frozenset[int]]:
    """Which of the processors that we may use belong together, in the order of the first of each."""
    found = {_part_of(cpu, kind, system) & allowed for cpu in allowed}
    return sorted(found, key=min)


def _part_of(cpu: int, kind: str, system: str) -> frozenset[int]:
    found = machine.part_of(cpu, kind, system)
    if found is None:
        raise ValueError(f"--bind {kind}: Linux does not say here which processors are of one {kind} with {cpu}; use another kind")
    return found

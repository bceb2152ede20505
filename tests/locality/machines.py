"""Machines as Linux describes them, in a folder, for tests of what is read there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclx_mpi.locality.cpu_lists import ranges


def write(root: Path, parts: Mapping[str, Sequence[Sequence[int]]]) -> Path:
    """Describe a machine by the processors of each core, package, NUMA node and cache; returns what stands for ``/sys/devices/system``."""
    cpus = {cpu for groups in parts.values() for group in groups for cpu in group}
    for cpu in cpus:
        (root / "cpu" / f"cpu{cpu}" / "topology").mkdir(parents=True)
    (root / "cpu" / "online").write_text(f"{ranges(cpus)}\n")
    for kind, groups in parts.items():
        for number, group in enumerate(groups):
            for cpu in group:
                _describe(root, root / "cpu" / f"cpu{cpu}", kind, number, f"{ranges(group)}\n")
    return root


def _describe(root: Path, folder: Path, kind: str, number: int, cpus: str) -> None:
    if kind == "core":
        (folder / "topology" / "thread_siblings_list").write_text(cpus)
    elif kind == "package":
        (folder / "topology" / "package_cpus_list").write_text(cpus)
        (folder / "topology" / "physical_package_id").write_text(f"{number}\n")
    elif kind == "numa":
        (folder / f"node{number}").mkdir()
        (root / "node" / f"node{number}").mkdir(parents=True, exist_ok=True)
        (root / "node" / f"node{number}" / "cpulist").write_text(cpus)
    else:
        _cache(folder / "cache" / f"index{kind[1]}", kind[1], "Unified", cpus)
        if kind == "l1":
            _cache(folder / "cache" / "index0", "1", "Instruction", "0\n")


def _cache(folder: Path, level: str, kind: str, cpus: str) -> None:
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("shared_cpu_list", cpus), ("size", f"{1 << 5 * int(level)}K")):
        (folder / name).write_text(text)


TWO_PACKAGES = {
    "core": [(cpu, cpu + 16) for cpu in range(16)],
    "l1": [(cpu, cpu + 16) for cpu in range(16)],
    "l2": [(cpu, cpu + 16) for cpu in range(16)],
    "l3": [tuple(cpu + half for cpu in range(first, first + 4) for half in (0, 16)) for first in (0, 4, 8, 12)],
    "numa": [tuple(cpu + half for cpu in range(first, first + 8) for half in (0, 16)) for first in (0, 8)],
    "package": [tuple(cpu + half for cpu in range(first, first + 8) for half in (0, 16)) for first in (0, 8)],
}
"""Two packages of eight cores of two threads, each a NUMA node with two caches."""
CACHE_OF_TWO_NODES = {
    "core": [(cpu,) for cpu in range(8)],
    "l3": [tuple(range(8))],
    "numa": [tuple(range(4)), tuple(range(4, 8))],
    "package": [tuple(range(8))],
}
"""One package, whose cache two NUMA nodes share."""
NOT_DESCRIBED: dict[str, list[tuple[int, ...]]] = {"core": [(0,), (1,)]}
"""As in some containers."""

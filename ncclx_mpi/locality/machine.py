"""Which processors of this machine share a core, a cache, a memory or a package, as Linux describes them in ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ncclx_mpi import late
from ncclx_mpi.locality.cpu_lists import numbers
from ncclx_mpi.locality.levels import MACHINE
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    import pathlib
else:
    pathlib = late.module("pathlib")  # few programs ask for anything here

SYSTEM = "/sys/devices/system"
_CACHES = {"l1": "1", "l2": "2", "l3": "3"}
_LISTS = {"core": ("thread_siblings_list",), "package": ("package_cpus_list", "core_siblings_list")}
"""Files with the processors of a part; newer kernels have the first one."""


def part_of(cpu: int, kind: str, system: str = SYSTEM) -> frozenset[int] | None:
    """The processors of the part (one of ``levels.MACHINE``) that has this one; None where Linux does not say."""
    folder = pathlib.Path(system, "cpu", f"cpu{cpu}")
    try:
        if kind == "pu":
            return frozenset({cpu})
        if kind == "numa":
            (node,) = sorted(folder.glob("node[0-9]*"))
            return numbers(pathlib.Path(system, "node", node.name, "cpulist").read_text())
        if kind in _CACHES:
            return numbers((_cache(folder, _CACHES[kind]) / "shared_cpu_list").read_text())
        found = (folder / "topology" / name for name in _LISTS[kind])
        return numbers(next(path for path in found if path.exists()).read_text())
    except (OSError, ValueError, StopIteration):
        return None


def _cache(folder: pathlib.Path, level: str) -> pathlib.Path:
    """The folder of a cache that data go through."""
    return next(
        path
        for path in sorted(folder.glob("cache/index*"))
        if (path / "level").read_text().strip() == level and _text(path / "type") != "Instruction"
    )


def cache_size(cpu: int, kind: str, system: str = SYSTEM) -> str:
    """The size of a processor's cache, such as ``32 MiB``; empty where Linux does not say."""
    try:
        text = _text(_cache(pathlib.Path(system, "cpu", f"cpu{cpu}"), _CACHES[kind]) / "size")
        kibibytes = int(text.removesuffix("K"))
    except (OSError, ValueError, StopIteration):
        return ""
    return f"{kibibytes} KiB" if kibibytes % 1024 else f"{kibibytes >> 10} MiB"


def _text(path: pathlib.Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def bound_to(cpus: frozenset[int], system: str = SYSTEM) -> dict[str, int]:
    """The parts that hold all of some processors, each by its first processor."""
    first = min(cpus)
    found = ((kind, part_of(first, kind, system)) for kind in MACHINE)
    return {kind: min(part) for kind, part in found if part is not None and cpus <= part}


def last_cache(cpu: int, system: str = SYSTEM) -> str:
    """The last level of cache of a processor; empty where Linux names none."""
    return next((kind for kind in ("l3", "l2", "l1") if part_of(cpu, kind, system) is not None), "")


class Part(NamedTuple):
    """A part of the machine.

    Attributes
    ----------
    kind
        One of ``levels.MACHINE``.
    number
        Among those of its kind, in the order of their first processors; of a NUMA node, a package and a processor as Linux counts them.
    cpus
        Its processors.
    inside
        What it consists of.
    """

    kind: str
    number: int
    cpus: frozenset[int]
    inside: tuple[Part, ...]


_DRAWN = ("package", "numa", "l3", "core")


def tree(cpus: Iterable[int], system: str = SYSTEM) -> tuple[Part, ...]:
    """The packages of these processors, with what is in them, down to cores. What Linux does not describe is left out.

    Of parts that are not within each other, as a cache of several NUMA nodes is, those that are larger have the others inside.
    """
    allowed = frozenset(cpus)
    parts: dict[str, list[frozenset[int]]] = {}
    for kind in _DRAWN:
        found = {part & allowed for cpu in allowed if (part := part_of(cpu, kind, system)) is not None}
        parts[kind] = sorted(found, key=min)
    kinds = sorted((kind for kind in _DRAWN if parts[kind]), key=lambda kind: -max(map(len, parts[kind])))
    return _inside(allowed, kinds, parts, system)


def _inside(cpus: frozenset[int], kinds: list[str], parts: dict[str, list[frozenset[int]]], system: str) -> tuple[Part, ...]:
    if not kinds:
        return ()
    kind, *rest = kinds
    found = [(index, part) for index, part in enumerate(parts[kind]) if part <= cpus]
    if frozenset().union(*(part for _, part in found)) != cpus:
        return _inside(cpus, rest, parts, system)
    return tuple(Part(kind, _number(kind, index, part, system), part, _inside(part, rest, parts, system)) for index, part in found)


def _number(kind: str, index: int, part: frozenset[int], system: str) -> int:
    folder = pathlib.Path(system, "cpu", f"cpu{min(part)}")
    try:
        if kind == "numa":
            return int(next(folder.glob("node[0-9]*")).name.removeprefix("node"))
        if kind == "package":
            return int((folder / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError, StopIteration):
        return index
    return index


def allowed_cpus() -> frozenset[int]:
    """The processors that the calling thread may run on."""
    return frozenset(os.sched_getaffinity(0))


def all_cpus(system: str = SYSTEM) -> frozenset[int]:
    """The processors of the machine; those that the calling thread may run on where Linux does not say."""
    try:
        return numbers(pathlib.Path(system, "cpu", "online").read_text())
    except (OSError, ValueError):
        return allowed_cpus()

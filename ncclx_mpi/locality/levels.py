"""What a rank can be in, by what names it is asked for, and how far two ranks are apart.

A rank's *row* has a number for each level: equal numbers are the same rack, machine or cache. ``NOWHERE`` stands for a level of which
nothing is known, and for one of which the rank may use several: a rank that is bound to no NUMA node is in none, unless there is one only.
"""

from __future__ import annotations

from collections.abc import Sequence

NETWORK = ("dc", "zone", "rack")
"""What hosts are in, largest first."""
MACHINE = ("package", "numa", "l3", "l2", "l1", "core", "pu")
"""What processors are in, largest first as a rule."""
LEVELS = (*NETWORK, "node", *MACHINE, "cache")
"""The order of a row; the last one is the machine's last level of cache, whichever that is."""
NOWHERE = -1
_NUMBER_BITS = 62

RESOURCES = {
    "mpi_shared_memory": "node",
    "hwloc://Package": "package",
    "hwloc://NUMANode": "numa",
    "hwloc://L3Cache": "l3",
    "hwloc://L2Cache": "l2",
    "hwloc://L1Cache": "l1",
    "hwloc://Core": "core",
    "hwloc://PU": "pu",
    "rack": "rack",
    "zone": "zone",
    "datacenter": "dc",
}
"""The level of each value of the hint ``mpi_hw_resource_type``."""

CLASSES = ("same rank", "same cache", "same NUMA node", "same node", "same rack", "same zone", "same data centre", "further")
"""How far two ranks are apart."""
SAME_RANK, SAME_CACHE, SAME_NUMA, SAME_NODE, SAME_RACK, SAME_ZONE, SAME_DC, FURTHER = range(len(CLASSES))
_OF_CLASS = tuple(LEVELS.index(level) for level in ("cache", "numa", "node", "rack", "zone", "dc"))

Row = Sequence[int]


def number(*words: object) -> int:
    """The number that stands for these words, on all hosts."""
    import hashlib

    text = "\0".join(map(str, words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 64 - _NUMBER_BITS


def distance(one: Row, other: Row) -> int:
    """How far two different ranks are apart, as an index of `CLASSES`: by the nearest level that both are in."""
    for index, level in enumerate(_OF_CLASS, SAME_CACHE):
        if one[level] == other[level] != NOWHERE:
            return index
    return FURTHER


def members(rows: Sequence[Row], level: str) -> dict[int, list[int]]:
    """The ranks of each instance of a level, in their order."""
    found: dict[int, list[int]] = {}
    index = LEVELS.index(level)
    for rank, row in enumerate(rows):
        if row[index] != NOWHERE:
            found.setdefault(row[index], []).append(rank)
    return found


def strict_parts(rows: Sequence[Row]) -> list[tuple[str, int] | None]:
    """For each rank the largest resource that some ranks are in, and not all of them: its name, and the number of its instance.

    None for a rank that is in no such resource. All that are in one get the same.
    """
    found: list[tuple[str, int] | None] = [None] * len(rows)
    names = {level: name for name, level in RESOURCES.items()}
    for level in LEVELS:
        for instance, ranks in members(rows, level).items() if level in names else ():
            if len(ranks) < len(rows) and all(found[rank] is None for rank in ranks):
                for rank in ranks:
                    found[rank] = names[level], instance
    return found

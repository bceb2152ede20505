"""What ranks are in, how far they are apart, and the parts that a split by resources makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import CACHE_OF_TWO_NODES, TWO_PACKAGES, write

from ncclx_mpi.locality import levels, own
from ncclx_mpi.locality.levels import LEVELS, NOWHERE, distance, members, strict_parts

Row = tuple[int, ...]


def rank(monkeypatch: pytest.MonkeyPatch, system: Path, cpus: set[int], first: int = 0, job: int = 1) -> Row:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    return own.find(job, first, system).row


def test_distances_within_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(tmp_path, TWO_PACKAGES)
    of = {
        name: rank(monkeypatch, system, cpus)
        for name, cpus in (("0", {0, 16}), ("1", {1}), ("6", {6}), ("9", {9}), ("all", set(range(32))))
    }
    of["elsewhere"] = rank(monkeypatch, system, {0}, first=8)
    of["of another job"] = rank(monkeypatch, system, {0}, job=2)
    words = {name: levels.CLASSES[distance(of["0"], row)] for name, row in of.items() if name != "0"}
    assert words == {
        "1": "same cache", "6": "same NUMA node", "9": "same node", "all": "same node", "elsewhere": "further", "of another job": "further",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        ({"rack": "r1", "zone": "z1", "dc": "d"}, {"rack": "r1", "zone": "z1", "dc": "d"}, "same rack"),
        ({"rack": "r1", "zone": "z1", "dc": "d"}, {"rack": "r2", "zone": "z1", "dc": "d"}, "same zone"),
        ({"rack": "r1", "zone": "z1", "dc": "d"}, {"rack": "r1", "zone": "z2", "dc": "d"}, "same data centre"),
        ({"rack": "r1", "zone": "z1", "dc": "d"}, {"rack": "r1", "zone": "z1", "dc": "e"}, "further"),
        ({"zone": "z1"}, {"zone": "z1"}, "same zone"),
        ({"rack": "r1"}, {}, "further"),
        ({}, {}, "further"),
    ],
)
def test_distances_of_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: dict[str, str], other: dict[str, str], word: str
) -> None:
    """Racks and zones are told apart by what they are in, too: each zone may have its own first rack."""
    file = tmp_path / "file"
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY_FILE", str(file))
    rows = []
    for first, names in enumerate((one, other)):
        file.write_text("".join(f"{key} = {name}\n" for key, name in names.items()) or "message = 1\n")
        rows.append(rank(monkeypatch, tmp_path, {0}, first))
    assert levels.CLASSES[distance(*rows)] == word


def test_where_linux_says_nothing_a_rank_is_on_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rank(monkeypatch, tmp_path, {0, 1})
    assert [level for level, number in zip(LEVELS, row, strict=True) if number != NOWHERE] == ["node"]
    assert levels.CLASSES[distance(row, row)] == "same node"


def parts(rows: list[Row]) -> list[str | None]:
    return [None if found is None else found[0] for found in strict_parts(rows)]


def test_the_largest_part_that_is_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(tmp_path, TWO_PACKAGES)
    rows = [rank(monkeypatch, system, {cpu}) for cpu in range(16)]
    assert parts(rows) == ["hwloc://Package"] * 16
    assert parts(rows[:8]) == ["hwloc://L3Cache"] * 8
    assert parts(rows[:4]) == ["hwloc://L2Cache"] * 4
    assert parts(rows[:1]) == [None]
    everywhere = rank(monkeypatch, system, set(range(32)))
    assert parts([*rows[:2], everywhere]) == ["hwloc://Package"] * 2 + [None]
    assert parts([everywhere, everywhere]) == [None, None]
    other_node = [rank(monkeypatch, system, {cpu}, first=16) for cpu in range(2)]
    assert parts([*rows[:2], *other_node]) == ["mpi_shared_memory"] * 4


def test_parts_that_overlap_are_all_of_one_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(tmp_path, CACHE_OF_TWO_NODES)
    rows = [rank(monkeypatch, system, {cpu}) for cpu in range(8)]
    assert parts(rows) == ["hwloc://NUMANode"] * 8


@given(st.lists(st.lists(st.integers(-1, 2), min_size=len(LEVELS), max_size=len(LEVELS)), min_size=1, max_size=8))
def test_strict_parts_are_instances_of_one_resource_whoever_is_in_what(given_rows: list[list[int]]) -> None:
    rows = [tuple(number if number < 0 else 10 * level + number for level, number in enumerate(row)) for row in given_rows]
    found = strict_parts(rows)
    for rank, part in enumerate(found):
        if part is not None:
            level = levels.RESOURCES[part[0]]
            same = members(rows, level)[rows[rank][LEVELS.index(level)]]
            assert rank in same and len(same) < len(rows) and [found[other] for other in same] == [part] * len(same)

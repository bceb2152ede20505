"""Which processors share what: as Linux describes machines of several shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import CACHE_OF_TWO_NODES, NOT_DESCRIBED, TWO_PACKAGES, write

from ncclx_mpi.locality import machine
from ncclx_mpi.locality.cpu_lists import numbers, ranges
from ncclx_mpi.locality.machine import Part


@pytest.mark.parametrize(
    ("kind", "cpus"),
    [
        ("pu", "20"),
        ("core", "4,20"),
        ("l1", "4,20"),
        ("l2", "4,20"),
        ("l3", "4-7,20-23"),
        ("numa", "0-7,16-23"),
        ("package", "0-7,16-23"),
    ],
)
def test_parts_of_a_machine(tmp_path: Path, kind: str, cpus: str) -> None:
    found = machine.part_of(20, kind, write(tmp_path, TWO_PACKAGES))
    assert found is not None and ranges(found) == cpus


def test_all_processors(tmp_path: Path) -> None:
    assert machine.all_cpus(write(tmp_path, TWO_PACKAGES)) == set(range(32))
    assert machine.all_cpus(tmp_path / "nowhere") == machine.allowed_cpus()


def test_what_linux_does_not_say_is_no_part(tmp_path: Path) -> None:
    system = write(tmp_path, NOT_DESCRIBED)
    assert [machine.part_of(1, kind, system) for kind in ("package", "numa", "l3", "l2", "l1")] == [None] * 5
    assert machine.last_cache(1, system) == "" and machine.cache_size(1, "l3", system) == ""
    (system / "cpu" / "cpu1" / "topology" / "thread_siblings_list").write_text("one\n")
    assert machine.part_of(1, "core", system) is None


def test_a_name_that_older_kernels_have(tmp_path: Path) -> None:
    system = write(tmp_path, NOT_DESCRIBED)
    (system / "cpu" / "cpu1" / "topology" / "core_siblings_list").write_text("0-1\n")
    assert machine.part_of(1, "package", system) == {0, 1}


@pytest.mark.parametrize(
    ("cpus", "parts"),
    [
        ({5}, {"package": 0, "numa": 0, "l3": 4, "l2": 5, "l1": 5, "core": 5, "pu": 5}),
        ({5, 21}, {"package": 0, "numa": 0, "l3": 4, "l2": 5, "l1": 5, "core": 5}),
        ({12, 13}, {"package": 8, "numa": 8, "l3": 12}),
        ({3, 4}, {"package": 0, "numa": 0}),
        ({7, 8}, {}),
    ],
)
def test_what_holds_all_processors_of_a_rank(tmp_path: Path, cpus: set[int], parts: dict[str, int]) -> None:
    assert machine.bound_to(frozenset(cpus), write(tmp_path, TWO_PACKAGES)) == parts


def test_sizes_of_caches(tmp_path: Path) -> None:
    system = write(tmp_path, TWO_PACKAGES)
    assert [machine.cache_size(0, kind, system) for kind in ("l1", "l2", "l3")] == ["32 KiB", "1 MiB", "32 MiB"]
    assert machine.last_cache(0, system) == "l3"
    two_levels = {kind: groups for kind, groups in TWO_PACKAGES.items() if kind != "l3"}
    assert machine.last_cache(0, write(tmp_path / "other", two_levels)) == "l2"


def shape(parts: tuple[Part, ...]) -> list[object]:
    return [(part.kind, part.number, ranges(part.cpus), shape(part.inside)) for part in parts]


def test_a_machine_as_a_tree(tmp_path: Path) -> None:
    (first, second) = machine.tree(range(32), write(tmp_path, TWO_PACKAGES))
    assert (first.kind, first.number, second.number) == ("package", 0, 1)
    assert [(part.kind, part.number) for part in second.inside] == [("numa", 1)]
    caches = second.inside[0].inside
    assert [(part.kind, part.number, ranges(part.cpus)) for part in caches] == [
        ("l3", 2, "8-11,24-27"),
        ("l3", 3, "12-15,28-31"),
    ]
    assert shape(caches[1].inside)[0] == ("core", 12, "12,28", [])


def test_a_cache_that_several_numa_nodes_share(tmp_path: Path) -> None:
    found = shape(machine.tree(range(8), write(tmp_path, CACHE_OF_TWO_NODES)))
    cores = [[("core", cpu, str(cpu), []) for cpu in range(first, first + 4)] for first in (0, 4)]
    halves = [("numa", 0, "0-3", cores[0]), ("numa", 1, "4-7", cores[1])]
    assert found == [("package", 0, "0-7", [("l3", 0, "0-7", halves)])]


def test_a_tree_of_what_is_described(tmp_path: Path) -> None:
    assert shape(machine.tree(range(2), write(tmp_path, NOT_DESCRIBED))) == [("core", 0, "0", []), ("core", 1, "1", [])]
    assert machine.tree(range(2), tmp_path / "nowhere") == ()
    some = machine.tree({3, 12}, write(tmp_path / "some", TWO_PACKAGES))
    assert [ranges(part.cpus) for part in some] == ["3", "12"]


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_and_numbers_are_each_others_inverse(found: set[int]) -> None:
    assert numbers(ranges(found)) == found

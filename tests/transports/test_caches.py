"""Sizes of caches, read from folders like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transports.shm.arena import Arena
from transports.shm.caches import l2_bytes
from transports.shm.layout import HEADER


def make_cpus(folder: Path, sizes: dict[int, str]) -> Path:
    for cpu, size in sizes.items():
        index = folder / f"cpu{cpu}" / "cache" / "index2"
        index.mkdir(parents=True)
        (index / "size").write_text(size)
    return folder


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 3, 5})


@pytest.mark.usefixtures("three_cores")
def test_the_smallest_cache_of_the_cores_that_are_used_counts(tmp_path: Path) -> None:
    cpus = make_cpus(tmp_path, {0: "2048K\n", 1: "256K\n", 3: "1280K\n", 5: "2048K\n"})
    assert l2_bytes(cpus) == 1280 << 10


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize(
    "sizes",
    [{}, {0: "2048K", 3: "2048K"}, {0: "2048K", 3: "", 5: "2048K"}, {0: "2048K", 3: "2M", 5: "2048K"}, {0: "K", 3: "K", 5: "K"}],
)
def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path, sizes: dict[int, str]) -> None:
    assert l2_bytes(make_cpus(tmp_path, sizes)) == 0


def test_all_ranks_learn_it_from_the_arena() -> None:
    arena = Arena.create(2)
    assert Arena.attach(os.dup(arena.fd)).word(HEADER.l2_bytes) == l2_bytes()

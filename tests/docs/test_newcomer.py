"""A newcomer who does what the pages say, and nothing else, gets what they show; :mod:`tests.docs.newcomer` is that newcomer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from numba_kernels import cache_files
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.newcomer import NOT_HERE, TUTORIALS, Astray, Walk
from tests.launch.cluster import two_nodes, why_not

PROGRAMS = Path(sys.executable).parent
NOT_OF_A_CHECKOUT = (".*", "__pycache__", "build", "_build", "*.egg-info")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a walk has to know of a Slurm of two nodes, nothing where there is none; hosts of a busy machine may be silent for long."""
    if why_not():
        yield {}
    else:
        with two_nodes(tmp_path_factory.mktemp("slurm")) as cluster:
            yield {**cluster.variables, "NCCLX_MPI_HEARTBEAT": "0.5,60"}


def walk_of(programs: Path, folder: Path, **variables: str) -> Walk:
    folder.mkdir()
    return Walk(programs, folder, NCCLX_MPI_CACHE_DIR=str(cache_files.cache_root()), **variables)


def walk_through(walk: Walk) -> None:
    for page in TUTORIALS:
        walk.follow(page)
    typed = [re.sub(r"trace \d+", "trace PID", line.removeprefix("$ ")) for line in walk.transcript if line.startswith("$ ")]
    left_out = [line for line in walk.transcript if line.startswith("# not here")]
    said = [line for page in TUTORIALS for block in blocks_of(page) for line in block.commands]
    of_pages = [line for line in typed if line in said]  # the README's first command is before them
    assert [line for line in said if line in typed] == of_pages
    assert len(left_out) == len(set(said) & NOT_HERE.keys()) + (not walk.has_slurm) == len(said) - len(of_pages)


def test_tutorials(tmp_path: Path, slurm: dict[str, str]) -> None:
    walk_through(walk_of(PROGRAMS, tmp_path / "elsewhere", **slurm))


def test_tutorials_in_a_fresh_environment(tmp_path: Path, slurm: dict[str, str], full: bool) -> None:
    """From the README's first command on. That one alone CI does in every run, and then the tutorials that need no Slurm."""
    if not full:
        pytest.skip("downloads: --full")
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=shutil.ignore_patterns(*NOT_OF_A_CHECKOUT))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "fresh")], check=True)
    walk = walk_of(tmp_path / "fresh" / "bin", tmp_path / "elsewhere", **slurm)
    walk.install(ROOT / "README.md", tmp_path / "checkout")
    walk_through(walk)
    transcript = "\n".join(walk.transcript)
    print(transcript)
    assert "difference to one process 0.0e+00" in transcript
    assert f"{tmp_path}/fresh/lib" in transcript and f"{tmp_path}/checkout/ncclx_mpi/" not in transcript, "tracebacks name what ran"


@pytest.mark.parametrize(
    ("tutorial", "right", "wrong", "said"),
    [
        ("first_program", "rank 2 of 4\n", "rank 4 of 4\n", "not printed"),
        ("first_program", "ncclx run -n 4 hello.py", "ncclx rum -n 4 hello.py", "ended with"),
        ("first_program", "comm.gather(", "comm.collect(", "ended with"),
        ("debugging_a_hang", "if comm.rank < comm.size - 1:", "if comm.rank < comm.size:", "ncclx trace"),
        ("debugging_a_hang", "-x NCCLX_MPI_TIMEOUT=1 hang.py", "-x NCCLX_MPI_TIMEOUT=1 who.py", "ended with"),
    ],
)
def test_a_wrong_page_is_found(tmp_path: Path, tutorial: str, right: str, wrong: str, said: str) -> None:
    (page,) = (page for page in TUTORIALS if page.stem == tutorial)
    text = page.read_text()
    assert right in text
    changed = tmp_path / page.name
    changed.write_text(text.replace(right, wrong))
    with pytest.raises(Astray, match=said):
        walk_of(PROGRAMS, tmp_path / "elsewhere").follow(changed)

"""What a program calls and the cache lacks is compiled by another process, which has all cores for it; the rank imports no compiler."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import copy_cache, environment, run_code

from ncclx_mpi.compile_cache import on_demand
from numba_kernels import cache_files, jit

PROGRAM = """
import sys
from array import array
from mpi4py import MPI
kind = MPI.INT.Create_vector(2, 1, 2).Commit()
got = array("i", [9] * 4)
MPI.COMM_SELF.Sendrecv([array("i", range(4)), 1, kind], 0, recvbuf=[got, 1, kind], source=0)
assert got.tolist() == [0, 9, 2, 9]
print("numba" in sys.modules)
"""
MODULE, NAME = "numba_kernels.typemap", "numba_kernels.typemap.list_strided"
BROKEN = "import sys; sys.executable = '/nowhere/python'\n"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache without the function that a vector's making calls, though the program's others are in it."""
    run_code(1, PROGRAM)
    copy_cache(tmp_path / "cache")
    for image in images(tmp_path):
        image.unlink()
    return tmp_path


def images(folder: Path) -> list[Path]:
    return list(folder.glob(f"cache/*/{NAME.removeprefix('numba_kernels.')}-*.image"))


def run_in(cache: Path, code: str) -> str:
    done = run_code(2, code, **{cache_files.CACHE_VARIABLE: str(cache / "cache")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rank_links_what_another_process_has_compiled(cache: Path) -> None:
    assert not images(cache)
    assert run_in(cache, PROGRAM) == "False\n" * 2
    assert len(images(cache)) == 1


def test_modules_in_the_folder_of_the_program_do_not_hide_ours(cache: Path) -> None:
    (cache / "numba.py").write_text("raise RuntimeError('this is the program's')\n")
    assert run_in(cache, f"import os; os.chdir({str(cache)!r})\n{PROGRAM}") == "False\n" * 2
    assert len(images(cache)) == 1


def test_a_rank_compiles_for_itself_where_no_process_can_be_started(cache: Path) -> None:
    assert "True" in run_in(cache, BROKEN + PROGRAM)
    assert len(images(cache)) == 1


def test_a_rank_in_another_program_compiles_for_itself(cache: Path) -> None:
    assert "True" in run_in(cache, BROKEN.replace("'/nowhere/python'", "None") + PROGRAM)


def test_it_ends_with_the_rank_that_asked() -> None:
    words = ["-m", "ncclx_mpi", "warm", "--quiet", "--only", MODULE, NAME, "1"]
    done = subprocess.run([sys.executable, *words], env=environment(), timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGKILL


def test_what_goes_together_is_there() -> None:
    """A name that is not would be passed over in silence."""
    import ncclx_mpi.MPI
    import ncclx_mpi.p2p.object_requests  # noqa: F401  (the two declare them)

    known = {declared.name for declared in jit.entries()}
    for row in on_demand._TOGETHER:
        assert known.issuperset(row)
        assert len({*row}) == len(row)

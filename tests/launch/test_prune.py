"""The cache of compiled functions: what versions leave that nobody starts any more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclx_mpi.compile_cache import prune
from numba_kernels import digests, memory

DAY = 86_400


def folder(root: Path, digit: str, days: float) -> Path:
    """A folder as the compiler makes them, last written so many days ago."""
    made = root / f"cpython-311-{digit * 20}"
    made.mkdir()
    (made / "function.nbi").write_text("machine code")
    _age(made, days)
    return made


def mark(root: Path, name: str, folders: list[Path], days: float) -> Path:
    made = root / f"{prune.MARK}{name}"
    made.write_text("\n".join(each.name for each in folders))
    _age(made, days)
    return made


def _age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def test_what_no_version_uses_goes(tmp_path: Path) -> None:
    used, shared, old, orphan = (folder(tmp_path, digit, 50) for digit in "abcd")
    replaced, compiling = folder(tmp_path, "e", 2), folder(tmp_path, "f", 2)
    stranger = tmp_path / "cubins-12345"
    stranger.mkdir()
    _age(stranger, 50)
    recent, forgotten = mark(tmp_path, "1", [used, shared], 3), mark(tmp_path, "2", [shared, old, replaced], 31)
    prune.prune(str(tmp_path))
    assert recent.exists() and not forgotten.exists()
    assert used.exists() and shared.exists() and compiling.exists() and stranger.exists()
    assert not old.exists() and not orphan.exists() and not replaced.exists()
    assert len(list(tmp_path.iterdir())) == 5


def test_only_the_newest_versions_stay(tmp_path: Path) -> None:
    folders = [folder(tmp_path, digit, 29) for digit in "0123456789"]
    for age, each in enumerate(folders):
        mark(tmp_path, str(age), [each], age)
    prune.prune(str(tmp_path))
    assert [each.exists() for each in folders] == [True] * 8 + [False] * 2


def test_a_start_keeps_a_version_young(tmp_path: Path) -> None:
    young, old = mark(tmp_path, "1", [], 0.5), mark(tmp_path, "2", [], 20)
    before = young.stat().st_mtime
    for each in (young, old, tmp_path / "gone"):
        prune.note_use(str(each))
    assert young.stat().st_mtime == before and time.time() - old.stat().st_mtime < 60


def test_a_mark_lists_what_this_process_uses(tmp_path: Path) -> None:
    made = tmp_path / f"{prune.MARK}1"
    prune.write_mark(str(made))
    assert made.stat().st_mode & 0o777 == 0o600
    assert digests.folder_name(str(memory.__file__)) in made.read_text().split()


def test_a_folder_that_another_process_removes_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = folder(tmp_path, "a", 50)
    monkeypatch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
    monkeypatch.setattr(os, "rename", lambda *args: (_ for _ in ()).throw(FileNotFoundError()))
    prune.prune(str(tmp_path))
    assert doomed.exists()


def test_what_the_cache_is_known_by_does_not_depend_on_what_is_imported() -> None:
    """A program that goes to other hosts, and one that does not, find the same cache warm."""
    code = (
        "from ncclx_mpi.compile_cache import warm\nwarm.import_engine()\nbefore = [warm._mark(False), warm._mark(True)]\n"
        "import transports.tcp.transport, transports.ucx.transport\nassert before == [warm._mark(False), warm._mark(True)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

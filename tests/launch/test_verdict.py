"""What an earlier start found is good for as long as nothing has changed that it follows from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import environment

from ncclx_mpi.compile_cache import prune, verdict, warm
from numba_kernels import cache_files, digests, jit, processor


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mark of a complete cache, and a verdict that follows from two sources in a folder."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("kernels.py", "module.py"):
        (sources / name).write_text("first")
    monkeypatch.setattr(cache_files, "cache_root", lambda: str(tmp_path))
    monkeypatch.setattr(digests, "sources", lambda: [str(sources / "kernels.py")])
    monkeypatch.setattr(verdict, "_modules", lambda: {str(sources / "module.py")})
    found = tmp_path / f"{prune.MARK}0123"
    found.touch()
    verdict.keep(str(found))
    return found


def test_it_holds_while_nothing_changes(mark: Path) -> None:
    assert verdict.is_warm()
    mark.unlink()
    assert not verdict.is_warm()


def test_an_installation_with_images_needs_no_mark(mark: Path) -> None:
    verdict.keep(None)
    mark.unlink()
    assert verdict.is_warm()


@pytest.mark.parametrize("name", ["kernels.py", "module.py"])
def test_a_changed_source_ends_it(mark: Path, name: str) -> None:
    (mark.parent / "sources" / name).write_text("another")
    assert not verdict.is_warm()


def test_a_new_module_ends_it(mark: Path) -> None:
    folder = mark.parent / "sources"
    before = os.stat(folder)
    (folder / "new.py").touch()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # the clock of files may be coarse
    assert not verdict.is_warm()


def test_another_processor_ends_it(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "name", lambda: "another one")
    assert not verdict.is_warm()


@pytest.mark.parametrize("content, known", [("first", {"module.py": "digest"}), ("another", {})])
def test_digests_are_good_while_it_holds(mark: Path, monkeypatch: pytest.MonkeyPatch, content: str, known: dict[str, str]) -> None:
    monkeypatch.setattr(digests, "_digests", {"module.py": "digest"})
    verdict.keep(str(mark))
    monkeypatch.setattr(digests, "_digests", {})
    source = mark.parent / "sources" / "module.py"
    if content != source.read_text():
        source.write_text(content)
    assert verdict.is_warm() == bool(known)
    assert digests.known() == known


def test_a_warm_start_digests_no_source() -> None:
    code = "from ncclx_mpi import MPI; from numba_kernels import digests\n"
    code += "print(digests._known.cache_info().misses, len(digests._digests) > 1)"
    for words in started(code):
        if words == ["0", "True"]:
            break
    assert words == ["0", "True"]


@pytest.mark.parametrize("text", [b"", b"nothing that was written"])
def test_a_damaged_one_is_none(mark: Path, text: bytes) -> None:
    (kept,) = mark.parent.glob(f"{prune.VERDICT}*")
    kept.write_bytes(text)
    assert not verdict.is_warm()


def started(code: str) -> Iterator[list[str]]:
    """The words that a program prints, at each of some starts.

    The first may be the first since a source has changed, or a job of another kind has noted its verdict since the last.
    """
    for _ in range(5):
        command = [sys.executable, "-c", code]
        yield subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=True).stdout.split()


def test_a_start_imports_no_more_than_it_uses() -> None:
    unused = (
        "ncclx_mpi.device.",
        "ncclx_mpi.bench",
        "ncclx_mpi.simulate",
        "ncclx_mpi.extensions.alltoallv_dynamic.device",
        "numba.",
        "pathlib",
        "urllib",
    )
    for modules in started("import sys; before = {*sys.modules}; from ncclx_mpi import MPI; print(*{*sys.modules} - before)"):
        found = [name for name in modules if name.startswith(unused)]
        if not found:
            break
    assert not found


USED = """
from numba_kernels import jit
from ncclx_mpi import MPI
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
print(*(each.name for each in jit.entries() if each._point is not None))
"""


def test_launchers_load_what_every_rank_uses_and_little_else() -> None:
    """What they do not load, each rank links for itself; what nobody uses, all wait for."""
    for words in started(USED):
        used = set(words)
        others = [name for name in used if not name.startswith(warm._ALWAYS_USED)]
        if not others:
            break
    assert not others
    assert not [
        start for start in warm._ALWAYS_USED if "store_kind" not in start and not any(name.startswith(start) for name in used)
    ]
    loaded = [each.name for each in jit.entries() if each.name.startswith(warm._ALWAYS_USED)]
    assert len(loaded) <= len(used) + 20


def test_the_collector_leaves_alone_what_an_import_at_the_start_of_a_program_has_made() -> None:
    code = "import gc; from ncclx_mpi import MPI; print(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    late = "import gc; mine = [[] for _ in range(30_000)]; from ncclx_mpi import MPI; print(gc.isenabled(), gc.get_freeze_count())"
    off = "import gc; gc.disable(); from ncclx_mpi import MPI; print(gc.isenabled())"
    for program, expected in ((code, "True True"), (late, "True 0"), (off, "False")):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.strip() == expected

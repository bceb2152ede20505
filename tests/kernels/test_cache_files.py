"""What the cache holds is run: nobody but its user may have written it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numba_kernels import cache_files, jit

ROOT = Path(jit.__file__).parents[1]
WHERE = "from numba_kernels import cache_files; print(cache_files.cache_root())"
COMPILE = (
    "import os; os.umask({umask})\n"
    "from numba_kernels import jit, pack\n"
    "from numba_kernels.cuda import cache\n"
    "jit.entry(pack.pack)\n"
    "cache.keep('kernel', 'digest', (9, 0), b'code')\n"
    "with jit.one_at_a_time(): pass\n"
)


def python(code, **variables):
    settings = {**os.environ, "PYTHONPATH": str(ROOT), cache_files.CACHE_VARIABLE: "", **variables}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_not_taken(tmp_path, mode):
    named, xdg = tmp_path / "named", tmp_path / "xdg"
    named.mkdir()
    named.chmod(mode)
    assert python(WHERE, **{cache_files.CACHE_VARIABLE: str(named)}, XDG_CACHE_HOME=str(xdg)) == f"{xdg}/ncclx_mpi"
    assert not list(named.iterdir())
    assert f"can be written by others (mode {mode:04o})" in cache_files.why_not(named)


def test_a_folder_that_others_can_read_is_taken(tmp_path):
    tmp_path.chmod(0o755)
    assert python(WHERE, **{cache_files.CACHE_VARIABLE: str(tmp_path)}) == str(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_or_file_of_another_user_is_not_taken(tmp_path):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir(mode=0o700)
    cache_files.write(path, b"code")
    os.chown(path, 65534, -1)
    with pytest.raises(cache_files.UnusableFile, match="another user"):
        cache_files.read(path)
    os.chown(path.parent, 65534, -1)
    assert cache_files.why_not(path.parent) == "belongs to another user (65534)"
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    os.chown(link, 65534, -1, follow_symlinks=False)
    assert cache_files.why_not(link) == "belongs to another user (65534)"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_what_is_made_is_for_the_user_alone(tmp_path, umask):
    cache = tmp_path / "above" / "cache"
    python(COMPILE.format(umask=umask), **{cache_files.CACHE_VARIABLE: str(cache)})
    made = [cache.parent, cache, *cache.rglob("*")]
    kinds = {path.suffix for path in made if path.is_file()}
    assert {".nbi", ".nbc", ".image", ".cubin", ""} <= kinds
    for path in made:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "file"
    for content in (b"", b"x", os.urandom(100_000)):
        cache_files.write(path, content)
        assert bytes(cache_files.read(path)) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 50])
def test_what_is_cut_is_damaged(tmp_path, length):
    path = tmp_path / "file"
    cache_files.write(path, b"x" * 50)
    os.truncate(path, length)
    with pytest.raises(cache_files.UnusableFile, match="damaged"):
        cache_files.read(path)

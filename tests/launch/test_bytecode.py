"""Modules come from what was kept of their bytecode, for as long as their sources are what they were."""

from __future__ import annotations

import importlib
import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import environment

from ncclx_mpi.compile_cache import bytecode
from numba_kernels import cache_files

NAME = "ncclx_mpi.made_for_a_test"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of ours, in a folder of its own, whose bytecode is kept."""
    import ncclx_mpi

    path = tmp_path / "made_for_a_test.py"
    path.write_text("value = 'kept'\n")
    monkeypatch.setattr(ncclx_mpi, "__path__", [str(tmp_path)])
    monkeypatch.setattr(cache_files, "cache_root", lambda: str(tmp_path))
    monkeypatch.setattr(cache_files, "cache_candidates", lambda: iter([("this test", str(tmp_path))]))
    monkeypatch.setattr(bytecode, "_finder", bytecode._Finder())
    pythons_own = [
        finder for finder in sys.meta_path if isinstance(finder, type)
    ]  # pytest has one that loads our modules in its way
    monkeypatch.setattr(sys, "meta_path", pythons_own)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bytecode.keep([[NAME]])
    bytecode.install()
    return path


def found() -> Any:
    """The module, imported anew."""
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(NAME)
    finally:
        sys.modules.pop(NAME, None)


def is_kept(module: Any) -> bool:
    return isinstance(module.__loader__, bytecode._Loader)


def replace_value(source: Path) -> None:
    """Change the source behind its state, which shows where a module came from."""
    before = source.stat()
    source.write_text("value = 'read'\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_it_is_used_while_the_source_has_its_size_and_time(source: Path) -> None:
    replace_value(source)
    module = found()
    assert (module.value, is_kept(module)) == ("kept", True)
    assert (module.__file__, module.__spec__.origin, module.__package__) == (str(source), str(source), "ncclx_mpi")


def test_a_changed_source_is_read(source: Path) -> None:
    source.write_text("value = 'longer than before'\n")
    module = found()
    assert (module.value, is_kept(module)) == ("longer than before", False)


def test_a_source_of_another_time_is_read(source: Path) -> None:
    replace_value(source)
    os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))
    assert found().value == "read"


def test_what_is_kept_anew_is_what_the_source_says_then(source: Path) -> None:
    found()
    source.write_text("value = 'longer than before'\n")
    bytecode.keep([[NAME]])
    bytecode._finder.remember()
    module = found()
    assert (module.value, is_kept(module)) == ("longer than before", True)


def test_what_is_imported_late_is_looked_for_once_more(source: Path) -> None:
    bytecode.forget()
    replace_value(source)
    assert found().value == "read"
    assert bytecode.import_late(NAME).value == "kept"
    assert bytecode.import_late(NAME) is sys.modules.pop(NAME)
    assert found().value == "read"


def test_what_is_kept_together_is_imported_one_by_one(source: Path) -> None:
    """Each in its state: one whose source has changed since is read, the other one is not."""
    name = NAME + "_too"
    other = source.with_name(f"{source.stem}_too.py")
    other.write_text("value = 'other'\n")
    bytecode.keep([[NAME, name]])
    bytecode._finder.remember()
    source.write_text("value = 'longer than before'\n")
    try:
        too = importlib.import_module(name)
        assert (too.value, is_kept(too)) == ("other", True)
    finally:
        sys.modules.pop(name, None)
    assert (found().value, bytecode.state(str(other))) == ("longer than before", cache_files.stamp(str(other)))


def test_what_was_found_has_the_state_that_it_had_then_until_all_is_forgotten(source: Path) -> None:
    before = cache_files.stamp(str(source))
    assert found().value == "kept"
    source.write_text("value = 'longer than before'\n")
    assert bytecode.state(str(source)) == before
    bytecode.forget()
    assert bytecode.state(str(source)) == cache_files.stamp(str(source)) != before


def test_a_module_that_is_loaded_again_is_read(source: Path) -> None:
    module = importlib.import_module(NAME)
    try:
        replace_value(source)
        assert importlib.reload(module).value == "read"
    finally:
        sys.modules.pop(NAME, None)


def test_a_module_that_is_gone_is_not_found(source: Path) -> None:
    source.unlink()
    with pytest.raises(ModuleNotFoundError):
        found()


def test_another_folder_of_the_package_has_its_own_module(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ncclx_mpi

    other = source.parent / "other"
    other.mkdir()
    (other / source.name).write_text("value = 'other'\n")
    monkeypatch.setattr(ncclx_mpi, "__path__", [str(other)])
    assert found().value == "other"


def kept_file(source: Path) -> Path:
    (path,) = source.parent.glob(f"{bytecode.KIND}*")
    return path


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "endless", "long", "foreign", "writable", "gone"])
def test_a_damaged_file_is_not_used(source: Path, damage: str) -> None:
    replace_value(source)
    path = kept_file(source)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x10
    foreign = marshal.dumps("nothing of ours")
    changed = {"empty": b"", "cut": content[:-20], "flipped": bytes(flipped), "foreign": foreign + cache_files._trailer(foreign)}
    changed |= {"endless": b"\xff" * 8 + content[8:], "long": b"\xff" * 7 + b"\x0f" + content[8:]}
    path.write_bytes(changed.get(damage, content))
    if damage == "writable":
        path.chmod(0o620)
    if damage == "gone":
        path.unlink()
    assert found().value == "read"


def test_a_file_that_is_replaced_after_it_was_looked_at_is_not_mistaken_for_it(source: Path) -> None:
    """Another start may have kept other modules there, or it is gone: what is imported then is read."""
    name = NAME + "_too"
    source.with_name(f"{source.stem}_too.py").write_text("value = 'other'\n")
    for change in (lambda: bytecode.keep([[name]]), lambda: kept_file(source).unlink()):
        bytecode.keep([[NAME, name]])
        bytecode._finder.remember()
        bytecode._finder._pieces.clear()
        assert bytecode._finder.find_spec(NAME, [str(source.parent)]) is not None
        change()
        assert found().value == "kept"


def test_bytecode_of_another_python_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_value(source)
    monkeypatch.setattr(bytecode, "_key", lambda: (b"another", 0))
    assert found().value == "read"


def test_what_another_version_of_ours_has_kept_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may have been something else to it: the file that says what it is has another state."""
    replace_value(source)
    kept = bytecode.path(str(source.parent))
    monkeypatch.setattr(bytecode, "path", lambda root: kept)  # its name is of this file, too
    monkeypatch.setattr(bytecode, "__file__", str(source))
    assert found().value == "read"


def test_to_look_for_it_imports_nothing_that_could_be_kept() -> None:
    """A module would be there twice that is imported again while it is looked for."""
    code = """if True:
        import sys, ncclx_mpi
        from ncclx_mpi.compile_cache import bytecode
        before = {*sys.modules}
        bytecode._read()
        print({name for name in {*sys.modules} - before if name.startswith(bytecode._OURS)} <= {*bytecode._TAKEN})
    """
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n", done.stderr


def test_a_cache_that_is_named_later_is_the_one_that_is_used(tmp_path: Path) -> None:
    code = f"import os, ncclx_mpi.rc; os.environ[{cache_files.CACHE_VARIABLE!r}] = {str(tmp_path)!r}\n"
    code += "from numba_kernels import cache_files; print(cache_files.cache_root())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{tmp_path}\n", done.stderr


STARTED = """
import sys
from ncclx_mpi import MPI
ours = [module for name, module in sys.modules.items() if name.startswith(("ncclx_mpi.", "numba_kernels.", "transports."))]
from ncclx_mpi.compile_cache import bytecode
print(*(module.__name__ for module in ours if not isinstance(module.__loader__, bytecode._Loader)))
"""
OWN = {"ncclx_mpi.compile_cache", "ncclx_mpi.compile_cache.bytecode", *bytecode._TAKEN}
"""What looks for it."""


@pytest.mark.parametrize("words", [["-c"], ["-m", "ncclx_mpi", "run", "-n", "2", "-c"]], ids=["import", "run"])
def test_a_warm_start_takes_all_from_there(words: list[str]) -> None:
    for _ in range(5):  # as in test_verdict.py: the first may be the first since a source has changed
        done = subprocess.run(
            [sys.executable, *words, STARTED], env=environment(), capture_output=True, text=True, timeout=120, check=True
        )
        others = {*done.stdout.split()} - OWN
        if not others:
            break
    assert not others

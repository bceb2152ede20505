"""Images that come with the installation: which processor gets which, and that a start with them compiles nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi.compile_cache import ship, warm
from numba_kernels import cache_files, jit, linking, processor, reduce, shipped

pytestmark = pytest.mark.skipif(not linking.CAN_LINK, reason="images are for x86-64")

START = """
import sys
from pathlib import Path
from numba_kernels import cache_files, clock, jit, reduce, shipped
shipped.HOME = sys.argv[1]
from ncclx_mpi.compile_cache import warm
print(warm.warm_up(announce=False), reduce.address("sum", "f64") != 0, "numba" in sys.modules)
print(len(list(Path(cache_files.cache_root()).glob("*/*.image"))))
"""


@pytest.fixture
def levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chooses the instructions of the processor, with folders of images for both levels."""
    monkeypatch.setattr(shipped, "HOME", str(tmp_path))
    for level in shipped.LEVELS:
        os.mkdir(shipped.folder_of(str(tmp_path), level))
    for variable in processor.VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def choose(flags: str) -> list[str]:
        monkeypatch.setattr(processor, "_description", lambda: ["model name\t: any", f"flags\t\t: fpu {flags}"])
        shipped._folders.cache_clear()
        return [os.path.basename(folder) for folder in shipped._folders()]

    yield choose
    shipped._folders.cache_clear()


def test_a_processor_gets_the_best_level_that_it_has(levels: Any) -> None:
    tag = sys.implementation.cache_tag
    assert levels(shipped.LEVELS["x86-64-v4"]) == [f"{tag}-x86-64-v4", f"{tag}-x86-64-v3"]
    assert levels(shipped.LEVELS["x86-64-v3"]) == [f"{tag}-x86-64-v3"]
    assert levels(shipped.LEVELS["x86-64-v3"].replace("fma", "")) == []


def test_who_compiles_for_another_processor_gets_no_image(levels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "nehalem")
    assert levels(shipped.LEVELS["x86-64-v4"]) == []


def test_an_image_of_other_sources_is_not_found(levels: Any, tmp_path: Path) -> None:
    levels(shipped.LEVELS["x86-64-v3"])
    folder = Path(shipped.folder_of(str(tmp_path), "x86-64-v3"))
    Path(shipped.place(str(folder), "old", "f")).touch()
    assert shipped.find("new", "f") is None
    assert shipped.find("old", "f") == str(folder / "f-old.image")


def test_a_damaged_image_is_left_alone(levels: Any, tmp_path: Path) -> None:
    levels(shipped.LEVELS["x86-64-v3"])
    damaged = Path(shipped.place(shipped.folder_of(str(tmp_path), "x86-64-v3"), "sources", "f"))
    damaged.write_bytes(b"damaged")
    assert jit._link_shipped("sources", "f", "f") is None
    assert damaged.exists()


def test_a_start_with_images_compiles_nothing(tmp_path: Path) -> None:
    """The images are those of this machine's cache here, made for this very processor, which has the level's instructions or more."""
    level = next((level for level, flags in shipped.LEVELS.items() if processor.has(flags.split())), "")
    if not level:
        pytest.skip("this processor has no level that images are made for")
    warm.ensure()
    warm.import_engine()  # which a warm start does not
    reduce.warm()
    folder = Path(shipped.folder_of(str(tmp_path / "images"), level))
    folder.mkdir(parents=True)
    assert ship.put([*jit.entries(), *reduce.natives()], folder) > len(reduce.natives())
    settings = os.environ | {cache_files.CACHE_VARIABLE: str(tmp_path / "cache"), "PYTHONPATH": str(Path(jit.__file__).parents[1])}
    words = [sys.executable, "-c", START, str(tmp_path / "images")]
    done = subprocess.run(words, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0.0", "True", "False", "0"], done.stderr


def test_levels_are_compiled_by_processes_that_compile_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(ship.subprocess, "run", lambda words, env, check: started.append((words[3:], env["NUMBA_CPU_NAME"])))
    ship.make(tmp_path, ["x86-64-v3", "x86-64-v4"])
    assert started == [(["warm", "--collect", str(tmp_path), "--level", level], level) for level in ("x86-64-v3", "x86-64-v4")]


@pytest.mark.parametrize("words", [["--level", "x86-64-v3"], ["--first", "--output", "anywhere"]])
def test_options_that_do_not_go_together(words: list[str]) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "warm", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--output" in done.stderr

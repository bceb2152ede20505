"""Functions are linked from images in the cache; what cannot be is loaded by Numba, or compiled."""

import ctypes
import marshal
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_kernels import cache_files, compiling, elf, jit

ROOT = Path(jit.__file__).parents[1]

PROGRAM = """
import ctypes, sys, numpy as np
from numba_kernels import jit, memory, pack, reduce

source, target = np.arange(3, 9), np.zeros(3, dtype=np.int64)
blocks = np.array([[0, 8]])
jit.entry(pack.pack)(blocks.ctypes.data, 1, 16, source.ctypes.data, 3, target.ctypes.data)
assert target.tolist() == [3, 5, 7]
words = [ctypes.c_int64] * 4
ctypes.CFUNCTYPE(None, *words)(reduce.address("sum", "i64"))(*[target.ctypes.data] * 3, 3)
assert target.tolist() == [6, 10, 14]
print("compiler" if "numba" in sys.modules or "llvmlite" in sys.modules else "linked")
"""
"""Calls one function from Python and one by its address; says whether Numba was imported for that."""


OUTLIVED = """
import ctypes, gc
from numba_kernels import jit, linking, pack

point = jit.entry(pack.pack)
described = ctypes.c_void_p.from_address(id(point) + object.__basicsize__).value
before = ctypes.string_at(described, 32), point.__name__
vars(linking).clear()
gc.collect()
others = [ctypes.create_string_buffer(b"\\xff" * nbytes) for nbytes in range(1, 64) for _ in range(500)]
assert (ctypes.string_at(described, 32), point.__name__) == before
print("outlived")
"""
"""The interpreter takes modules apart first, then looks at what is left of functions."""


def run(cache: Path, program: str = PROGRAM) -> str:
    settings = os.environ | {"PYTHONPATH": str(ROOT), cache_files.CACHE_VARIABLE: str(cache)}
    result = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def images(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.image"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds what the program calls."""
    folder = tmp_path_factory.mktemp("cache")
    assert run(folder) == "compiler"
    return folder


def test_what_is_cached_needs_no_compiler(cache: Path) -> None:
    assert len(images(cache)) == 2
    assert run(cache) == "linked"


def test_functions_outlive_the_module_that_linked_them(cache: Path) -> None:
    assert run(cache, OUTLIVED) == "outlived"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[: len(content) // 2], id="cut"),
        pytest.param(lambda content: sealed(marshal.dumps((1, 2))), id="foreign"),
        pytest.param(
            lambda content: sealed(marshal.dumps((*marshal.loads(content)[:-1], {"nowhere_to_be_found": [0, 0]}))), id="unresolved"
        ),
        pytest.param(lambda content: sealed(marshal.dumps(None)), id="no code"),
    ],
)
def test_what_cannot_be_linked_is_loaded_by_numba(cache, damage) -> None:
    contents = {path: path.read_bytes() for path in images(cache)}
    try:
        for path, content in contents.items():
            path.write_bytes(damage(content))
        assert run(cache) == "compiler"
    finally:
        for path, content in contents.items():
            path.write_bytes(content)
    assert run(cache) == "linked"


def sealed(content: bytes) -> bytes:
    """As a file of the cache, with a checksum that fits."""
    return content + cache_files._trailer(content)


FLIPS = {"first": 0, "code": 600, "middle": None, "last": -1}


@pytest.mark.parametrize("flipped", FLIPS)
def test_an_image_with_a_flipped_bit_is_made_anew(cache, flipped) -> None:
    """What is made of it may be anything, the end of the process included."""
    for path in images(cache):
        content = bytearray(path.read_bytes())
        at = FLIPS[flipped]
        content[len(content) // 2 if at is None else at] ^= 0x10
        path.write_bytes(content)
    assert run(cache) == "compiler"
    assert run(cache) == "linked"


def test_flipped_bits_in_what_numba_keeps_are_no_harm(cache) -> None:
    for path in images(cache):
        path.unlink()
    for path in [*cache.glob("*/*.nbi"), *cache.glob("*/*.nbc")]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
    assert run(cache) == "compiler"
    assert run(cache) == "linked"


def test_an_image_that_others_can_write_is_not_run(cache) -> None:
    for path in images(cache):
        path.chmod(0o620)
    assert run(cache) == "compiler"
    assert run(cache) == "linked"
    assert {path.stat().st_mode & 0o777 for path in images(cache)} == {0o600}


def test_every_entry_can_be_linked() -> None:
    """Nothing of ours needs more than machine code, or refers to what only Numba's compiler brings in."""
    cached = [declared for declared in jit.entries() if declared.has_image()]
    refused = [declared.name for declared in cached if declared.link() is None]
    missing = [
        declared.name for declared in jit.entries() if declared not in cached and declared is not guarded and declared.is_cached()
    ]
    assert len(cached) > 50
    assert not refused
    assert not missing


def test_functions_are_a_few_mappings() -> None:
    """The kernel copies each mapping of a process with every fork; and none is ever written and executed at once."""
    maps = Path("/proc/self/maps")
    before = maps.read_text()
    linked = [declared.link() for declared in jit.entries() if declared.has_image()]
    after = maps.read_text()
    assert len(linked) > 50 and after.count("\n") - before.count("\n") < len(linked) / 5
    assert after.count("rwx") == before.count("rwx")  # ctypes has one


AND_THE_USERS = (
    PROGRAM
    + """
from numba_kernels import compiling  # tells LLVM what we know
import numba
@numba.njit
def guarded(value):
    if value < 0:
        raise ValueError("negative")
    return value
try:
    guarded(-1)
except ValueError:
    print("raised")
"""
)


def test_functions_of_the_user_may_raise(cache: Path) -> None:
    """What stands for Numba's helpers in images must not reach Numba."""
    run(cache)
    settings = os.environ | {"PYTHONPATH": str(ROOT), cache_files.CACHE_VARIABLE: str(cache)}
    done = subprocess.run([sys.executable, "-c", AND_THE_USERS], env=settings, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["linked", "raised"], done.stderr


@pytest.mark.parametrize("extra", ["constant", "initializer", "lifted", "globals"])
def test_more_than_machine_code_makes_no_image(extra) -> None:
    environment = SimpleNamespace(consts=[object()] if extra == "constant" else [])
    compiled = SimpleNamespace(
        library=SimpleNamespace(has_dynamic_globals=extra == "globals"),
        fndesc=None,
        environment=environment,
        reload_init=[print] if extra == "initializer" else [],
        lifted=[print] if extra == "lifted" else [],
        _find_referenced_environments=list,
    )
    assert compiling.code_of(compiled) is None


@jit.kernel("int64(int64)", is_entry=True)
def guarded(value):
    if value < 0:
        raise ValueError("negative")
    return value


def test_a_kernel_that_raises_has_no_image_and_raises() -> None:
    assert jit.entry(guarded)(3) == 3
    with pytest.raises(ValueError, match="negative"):
        jit.entry(guarded)(-1)
    assert not guarded.has_image()


@jit.kernel("int64(int64)", is_entry=True)
def twice(value):
    return 2 * value


def test_address_in_c() -> None:
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.c_address(twice))(21) == 42


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF" + bytes(100)])
def test_what_is_no_object_is_left_to_numba(code: bytes) -> None:
    assert elf.laid_out(code, "wrapper", "", "") is None

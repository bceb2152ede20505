"""Compiling and caching: what is declared is compiled, once, and found again by other processes."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_kernels import atomics, cache_files, digests, jit, memory
from numba_kernels.atomics import load64, store64
from numba_kernels.layout import WORD

ROOT = Path(jit.__file__).parents[1]
METH_FASTCALL = 0x80

SHARED = """
from numba_kernels import cache_files, digests, jit, reduce
from numba_kernels.reduce import native  # its functions have a callback once Numba has compiled them
assert reduce.address("sum", "u16") and reduce.address("maxloc", "i16,i32")
kernels = [native._compiled("sum", "u16"), native._compiled("maxloc", "i16,i32")]
print(sum(kernel.callback is not None for kernel in kernels))
"""

AT_ONCE = """
import os
from numba_kernels import compiling, reduce  # Numba is there already: nobody has a start on the others
from numba_kernels.reduce import native
come, go = os.pipe(), os.pipe()
def look():
    os.write(come[1], b"x"), os.close(go[1]), os.read(go[0], 1)
    assert reduce.address("sum", "u16")
    os._exit(7 if native._compiled("sum", "u16").callback is not None else 0)
pids = []
for _ in range(3):
    pids.append(os.fork())
    if not pids[-1]:
        look()
for _ in pids:
    os.read(come[0], 1)
os.close(go[1])
print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


@jit.kernel("int64(int64, int64)")
def scaled(value, factor):
    return value * factor


@jit.kernel("int64(int64)", is_entry=True)
def with_literals(value):
    return scaled(value, 2) + scaled(3, value) + scaled(4, 5)


@jit.kernel("void(int64, int64)", is_entry=True)
def add_to_word(address, value):
    store64(address, load64(address) + value)


def python(code, cache, **environment):
    """Run `code` in a new interpreter with its own cache folder; its output."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), cache_files.CACHE_VARIABLE: str(cache)} | environment
    result = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_literal_arguments_share_one_compiled_function():
    assert jit.entry(with_literals)(7) == 14 + 21 + 20
    assert len(scaled.dispatcher.overloads) <= 1  # none where the caller came from the disk cache


def test_what_only_kernels_call_has_no_machine_code_and_python_may_call_it_nevertheless():
    scaled.dispatcher.compile(())
    (kept,) = scaled.dispatcher.overloads.values()
    assert kept.library.get_pointer_to_function(kept.fndesc.llvm_func_name) == 0
    assert scaled(6, 7) == 42


SAYS = """
from says import said_twice
from numba_kernels import jit
point = jit.entry(said_twice)
point(4)
try:
    point(5)
except ValueError as error:
    print(error)
"""
SAYING = """
from numba_kernels import jit

@jit.kernel("void(int64)")
def say(value):
    if value > 4:
        raise ValueError("toomuch")
    print("value", value)

@jit.kernel("void(int64)", is_entry=True)
def said_twice(value):
    say(value)
    say(value - 1)
"""


def test_what_is_taken_in_may_print_and_raise(tmp_path):
    """Texts lie in an environment, which the machine code of the caller has to find; compiled here, and loaded by another process."""
    (tmp_path / "says.py").write_text(SAYING)
    for _ in range(2):
        assert python(SAYS, tmp_path / "cache", PYTHONPATH=f"{ROOT}:{tmp_path}") == ["value", "4", "value", "3", "toomuch"]


def test_entry_points_take_what_they_declare():
    words = np.array([40, 0])
    jit.entry(add_to_word)(words.ctypes.data, 2)
    assert words.tolist() == [42, 0]
    assert any(declared.name.endswith("test_jit.add_to_word") for declared in jit.entries())


def test_entry_points_refuse_what_is_no_row_of_so_many_arguments():
    point, words = jit.entry(add_to_word), np.array([40])
    address = words.ctypes.data
    for wrong in ((), (address,), (address, 1, 2), (address, "x"), (None, 1)):
        with pytest.raises((TypeError, ValueError)):
            point(*wrong)
    with pytest.raises(TypeError):
        point(address, value=1)
    assert words.tolist() == [40]


def test_entry_points_are_given_no_tuple():
    """Neither the one that was compiled here nor the one that is linked: that would take a third of the time of a short call."""
    point = jit.entry(add_to_word)
    described = ctypes.c_void_p.from_address(id(point) + object.__basicsize__).value
    assert point.__name__ == "add_to_word" and ctypes.c_int.from_address(described + 2 * WORD).value == METH_FASTCALL


def test_other_processes_find_what_one_compiled(tmp_path):
    cache = tmp_path / "cache"
    assert python(SHARED, cache) == ["2"]
    assert python(SHARED, cache) == ["0"]
    assert cache.stat().st_mode & 0o777 == 0o700


def test_what_processes_first_look_for_at_once_is_compiled_by_one(tmp_path):
    assert sorted(python(AT_ONCE, tmp_path)) == ["0", "0", "7"]


def test_users_numba_settings_do_not_reach_our_functions(tmp_path):
    disabled = {"NUMBA_DISABLE_JIT": "1", "NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0"}
    assert python(SHARED, tmp_path, **disabled) == ["2"]
    assert python(SHARED, tmp_path) == ["0"]


def test_a_home_that_cannot_be_written_still_starts(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    places = {"XDG_CACHE_HOME": str(blocked / "xdg"), "TMPDIR": str(tmp_path)}
    code = "from numba_kernels import cache_files; print(cache_files.cache_root())"
    assert python(code, blocked / "cache", **places) == [f"{tmp_path}/ncclx_mpi-{os.getuid()}"]


@pytest.mark.parametrize("changed", ["callee", "package"])
def test_a_changed_callee_changes_the_cache_folder(tmp_path, changed):
    package = tmp_path / "numba_kernels"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "caller.py").write_text("from numba_kernels import (other,\n    callee)\nimport numba_kernels.inner\n")
    (package / "callee.py").write_text("VALUE = 1\n")
    (package / "inner" / "__init__.py").write_text("")
    before = digests.module_digest(str(package / "caller.py"))
    edited = {"callee": package / "callee.py", "package": package / "inner" / "__init__.py"}[changed]
    edited.write_text("VALUE = 2\n")
    digests.forget()
    assert digests.module_digest(str(package / "caller.py")) != before


def test_what_a_module_that_is_none_of_ours_imports_of_ours_counts(tmp_path):
    """A transport of somebody else, a benchmark: what it has compiled holds code of ours, which changes with our version."""
    module = tmp_path / "loops.py"
    module.write_text("import numba_kernels.memory\nfrom numba_kernels.atomics import load64\n")
    assert {str(memory.__file__), str(atomics.__file__)} <= set(digests._scan(str(module), module.read_bytes()).imported)


@pytest.mark.parametrize(
    ("caller", "callee", "said"),
    [
        ("calls.py", "called.py", "from called import VALUE"),
        ("calls.py", "called.py", "import called"),
        ("theirs/calls.py", "theirs/called.py", "from theirs.called import (\n    VALUE,\n)"),
        ("theirs/calls.py", "theirs/called.py", "from .called import VALUE"),
        ("theirs/inner/calls.py", "theirs/called.py", "from .. import called"),
    ],
)
def test_what_a_module_that_is_none_of_ours_imports_from_beside_it_counts(tmp_path, caller, callee, said):
    """In a folder of a name of ours, and beside a package that is none of its own business."""
    home = tmp_path / "ncclx_mpi"
    for folder in ("theirs/inner", "elses"):
        (home / folder).mkdir(parents=True)
    for package in ("theirs", "theirs/inner", "elses"):
        (home / package / "__init__.py").write_text("VALUE = 1\n")
    (home / caller).write_text(f"{said}\nimport numba_kernels.memory\nimport elses\n")
    (home / callee).write_text("VALUE = 1\n")
    digest = digests.sources_digest(str(home / caller))
    assert str(memory.__file__) in digests._scan(str(home / caller), (home / caller).read_bytes()).imported
    for edited, is_another in (("elses/__init__.py", False), (callee, True)):
        (home / edited).write_text("VALUE = 22\n")
        digests.forget()
        assert (digests.sources_digest(str(home / caller)) != digest) is is_another


REMOVED = """
import shutil
from numba_kernels import cache_files, digests, jit, memory
from numba_kernels.atomics import load64
shutil.rmtree(cache_files.cache_root())
memory.write_shared.dispatcher.compile(())
print(len(memory.write_shared.dispatcher.overloads))
"""


def test_a_cache_that_is_removed_meanwhile_is_no_error(tmp_path):
    assert python(REMOVED, tmp_path) == ["1"]


TWO_OF_A_FACTORY = """
import sys
import numpy as np
from numba_kernels.cuda.pack import Typemap
typemap = Typemap(np.array([[0, 8]]), extent=16, count=3)
for way in sys.argv[1:]:
    memory, stream = np.arange(1, 7), np.full(3, -1)
    found = typemap.launch(memory.ctypes.data, stream.ctypes.data, unpacking=way == "unpack")
    found.kernel.on_cpu(1, *found.arguments)
    print(stream.sum())
"""


def test_functions_of_one_name_that_different_processes_compiled_stay_apart(tmp_path):
    """Each process compiles one kernel of a factory; a third one loads both."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), cache_files.CACHE_VARIABLE: str(tmp_path)}
    for ways in (["pack"], ["unpack"], ["pack", "unpack"]):
        command = [sys.executable, "-c", TWO_OF_A_FACTORY, *ways]
        result = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
        assert result.stdout.split() == [{"pack": "9", "unpack": "-3"}[way] for way in ways], result.stderr

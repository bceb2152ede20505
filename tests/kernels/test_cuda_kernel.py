"""Kernels for the GPU: the same body on the CPU, compiled without a GPU where numba-cuda is installed, cached on disk."""

import configparser
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_kernels.cuda import cache, kernel, ptx
from numba_kernels.cuda.intrinsics import load_f32, load_i64, load_u8, load_vector, store_f32, store_i64, store_u8, store_vector

ROOT = Path(__file__).parents[2]


@kernel.helper
def doubled(value):
    return value + value


def double_body(thread, threads, target, source, count):
    i = thread
    while i < count:
        store_i64(target + 8 * i, doubled(load_i64(source + 8 * i)))
        i += threads


def reverse_body(thread, threads, target, source, count):
    """Needs all of what the phase before stored."""
    i = thread
    while i < count // 2:
        low, high = load_i64(target + 8 * i), load_i64(target + 8 * (count - 1 - i))
        store_i64(target + 8 * i, high)
        store_i64(target + 8 * (count - 1 - i), low)
        i += threads


def every_access(thread, threads, target, source):
    store_vector(target, load_vector(source))
    store_u8(target + 16, load_u8(source + 16))
    store_f32(target + 20, load_f32(source) * load_f32(source + 4) + load_f32(source + 8))


DOUBLE = kernel.Kernel("test_double", double_body, parameters=3)
DOUBLE_AND_REVERSE = kernel.Kernel("test_double_and_reverse", double_body, phases=(reverse_body,), parameters=3)
ACCESS = kernel.Kernel("test_access", every_access, parameters=2)


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_every_thread_runs_on_the_cpu_phase_by_phase(threads):
    source, target = np.arange(37), np.zeros(37, np.int64)
    DOUBLE.on_cpu(threads, target.ctypes.data, source.ctypes.data, 37)
    assert target.tolist() == (2 * source).tolist()
    DOUBLE_AND_REVERSE.on_cpu(threads, target.ctypes.data, source.ctypes.data, 37)
    assert target.tolist() == (2 * source)[::-1].tolist()


def test_blocks_run_one_after_another_on_the_cpu():
    """Phases are in step inside of a block only: the first one reverses before the second has doubled its half."""
    source, target = np.arange(1024), np.zeros(1024, np.int64)
    DOUBLE_AND_REVERSE.on_cpu(1024, target.ctypes.data, source.ctypes.data, 1024)
    assert target.tolist() == [0] * 512 + (2 * source)[512:].tolist()


def test_what_a_kernel_may_be_launched_as():
    """Threads that wait for each other are those of one block, which bodies recognise by their numbers."""
    assert DOUBLE.fits(3, 7) and DOUBLE.fits(1, 512) and not DOUBLE.fits(1, 513) and not DOUBLE.fits(1, 0)
    assert DOUBLE_AND_REVERSE.fits(1, 7) and DOUBLE_AND_REVERSE.fits(3, 512) and not DOUBLE_AND_REVERSE.fits(3, 7)


def test_accesses_on_the_cpu():
    source = np.arange(6, dtype=np.float32) + 0.5
    target = np.zeros(24, np.uint8)
    ACCESS.on_cpu(1, target.ctypes.data, source.ctypes.data)
    assert target[:17].tobytes() == source.tobytes()[:17] and not target[17:20].any()
    assert target[20:].view(np.float32)[0] == np.float32(0.5 * 1.5 + 2.5)


def test_wrong_number_of_arguments():
    with pytest.raises(TypeError, match="test_double takes 3 arguments, got 2"):
        DOUBLE.on_cpu(1, 0, 0)


def test_compiled_for_the_cpu_once(tmp_path):
    """The second process loads it from the disk cache."""
    code = (
        "import numba.core.event as event, numpy as np, importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('own', sys.argv[1]); own = importlib.util.module_from_spec(spec)\n"
        "sys.modules['own'] = own; spec.loader.exec_module(own)\n"
        "a = np.ones(1, np.int64)\n"
        "with event.install_recorder('numba:compile') as compiled: own.DOUBLE.on_cpu(1, a.ctypes.data, a.ctypes.data, 1)\n"
        "print(a[0], len(compiled.buffer) > 0)"
    )
    environment = {"PYTHONPATH": str(ROOT), "NCCLX_MPI_CACHE_DIR": str(tmp_path), "PATH": ""}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True, env=environment
        ).stdout.split()
        for _ in range(2)
    ]
    assert runs == [["2", "True"], ["2", "False"]]


def test_machine_code_is_found_where_it_was_put(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel.Kernel, "compile", lambda self, arch: b"code for %d%d" % arch)
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "ahead"))
    monkeypatch.setattr(cache, "_user_folder", lambda: str(tmp_path / "user"))
    assert DOUBLE.cubin((9, 0)) == (b"code for 90", "test_double")
    stored = tmp_path / "user" / cache.file_name("test_double", DOUBLE.digest, (9, 0))
    assert [stored] == list((tmp_path / "user").iterdir()) and stored.read_bytes() == b"code for 90"
    stored.write_bytes(b"cached")
    assert DOUBLE.cubin((9, 0))[0] == b"cached"
    cache.write(str(tmp_path / "ahead"), "test_double", DOUBLE.digest, (9, 0), b"made ahead")
    assert DOUBLE.cubin((9, 0))[0] == b"made ahead"
    monkeypatch.delenv(cache.FOLDER_VARIABLE)
    assert DOUBLE.cubin((9, 0))[0] == b"cached"
    monkeypatch.setattr(cache, "_made_ahead", [])
    cache.use_folder(str(tmp_path / "ahead"))
    assert DOUBLE.cubin((9, 0))[0] == b"made ahead"
    cache.write(str(tmp_path / "ahead"), "test_double", "another digest", (8, 0), b"stale")
    assert DOUBLE.cubin((8, 0))[0] == b"code for 80"


def test_digest_tells_kernels_apart():
    renamed = kernel.Kernel("test_other", double_body, parameters=3)
    bounded = kernel.Kernel("test_double", double_body, parameters=3, launch_bounds=256)
    digests = {each.digest for each in (DOUBLE, renamed, bounded, DOUBLE_AND_REVERSE)}
    assert len(digests) == 4
    assert kernel.Kernel("test_double", double_body, parameters=3).digest == DOUBLE.digest


def test_a_missing_compiler_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wanted = r"test_double must be compiled for sm_90.*numba-cuda is not installed.*pip install 'ncclx-mpi\[cuda13\]'"
    with pytest.raises(ptx.CompilerMissing, match=wanted):
        DOUBLE.ptx((9, 0))


def test_nothing_of_cuda_is_imported_with_the_kernels():
    code = (
        "import sys, numba_kernels.cuda.kernel, numba_kernels.cuda.driver\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba_cuda', 'cupy') or m.startswith('numba.cuda')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.compiler
@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
def test_compiled_without_a_gpu(arch):
    text = ACCESS.ptx(arch)
    assert re.search(r"\.entry test_access\(", text)
    for instruction in ("ld.global.v4.u32", "st.global.v4.u32", "ld.global.u8", "mul.rn.f32", "add.rn.f32"):
        assert instruction in text
    assert "fma" not in text and ".extern" not in text
    code, usage = ptx.run_ptxas(text, arch)
    assert code.startswith(b"\x7fELF") and usage.stack == usage.spills == 0 < usage.registers


@pytest.mark.compiler
def test_compiled_for_several_at_once_as_for_each_alone():
    """With a function that bodies call, which Numba keeps: each time another one."""

    def made():
        twice = kernel.helper(doubled.py_func)

        def body(thread, threads, target, source):
            store_i64(target + 8 * thread, twice(load_i64(source + 8 * thread)))

        return kernel.Kernel("test_several", body, parameters=2)

    arches = [(8, 0), (9, 0), (10, 0)]
    texts = made().ptx_for_each(arches)
    assert [re.search(r"\.target sm_(\d+)", text)[1] for text in texts] == ["80", "90", "100"]
    instructions = [text.partition(".visible .entry")[2] for text in texts]  # what comes before numbers Numba's functions
    assert all(instructions)
    assert instructions == [made().ptx(arch).partition(".visible .entry")[2] for arch in arches]


@pytest.mark.compiler
def test_phases_are_separated_by_a_barrier():
    text = DOUBLE_AND_REVERSE.ptx((9, 0))
    assert text.count("bar.sync") == 1 and "bar.sync" not in DOUBLE.ptx((9, 0))
    assert ".maxntid 512" in text


@pytest.mark.compiler
def test_assembled_with_either_tool(monkeypatch):
    assert ptx.assemble(DOUBLE.ptx((9, 0)), (9, 0)).startswith(b"\x7fELF")
    monkeypatch.setattr(ptx, "_has_jit_linker", lambda: False)
    assert ptx.assemble(DOUBLE.ptx((9, 0)), (9, 0)).startswith(b"\x7fELF")
    monkeypatch.setattr(ptx, "find_ptxas", lambda: None)
    with pytest.raises(ptx.CompilerMissing, match="test_double must be compiled for sm_90.*neither nvJitLink nor ptxas"):
        ptx.assemble(DOUBLE.ptx((9, 0)), (9, 0))


@pytest.mark.compiler
def test_a_release_of_numba_cuda_that_cannot_be_used_counts_as_none(monkeypatch):
    """So that calls go another way, as without a compiler."""
    from numba.cuda import compiler

    monkeypatch.delattr(compiler, "_compile_pyfunc_with_fixup")
    with pytest.raises(
        ptx.CompilerMissing, match=r"test_double must be compiled.*numba-cuda 0\.\d+\S* is installed, and 0\.30 is needed"
    ):
        DOUBLE.ptx((9, 0))


@pytest.mark.compiler
def test_ptxas_says_what_is_wrong():
    with pytest.raises(ValueError, match="ptxas refuses kernel test_double for sm_90"):
        ptx.run_ptxas(DOUBLE.ptx((9, 0)).replace("ret;", "return;"), (9, 0))


def test_the_users_folder_is_one_that_is_pruned():
    """Old folders leave the cache by their names: letters, a number, 20 hexadecimal digits."""
    assert re.fullmatch(r"[a-z]+-\d+-[0-9a-f]{20}", os.path.basename(cache._user_folder()))


def test_machine_code_can_be_shipped(tmp_path, monkeypatch):
    """A wheel takes it along from where it is looked for."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    patterns = settings["options.package_data"]["numba_kernels"].split(", ")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "numba_kernels" / "cuda" / "cache.py"))
    monkeypatch.setattr(cache, "_user_folder", lambda: str(tmp_path / "user"))
    monkeypatch.delenv(cache.FOLDER_VARIABLE, raising=False)
    shipped = [folder for folder in cache._folders() if (tmp_path / "numba_kernels") in Path(folder).parents]
    path = Path(cache.write(shipped[0], "test_double", DOUBLE.digest, (9, 0), b"shipped"))
    assert any(path.relative_to(tmp_path / "numba_kernels").match(pattern) for pattern in patterns)
    assert DOUBLE.cubin((9, 0))[0] == b"shipped"


def test_another_compiler_has_a_folder_of_its_own(monkeypatch):
    folders = set()
    for release in ("1.0", "1.1"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, release=release: release)
        monkeypatch.setattr(cache, "_versions", getattr(cache._versions, "__wrapped__", cache._versions))
        folders.add(cache._user_folder())
    assert len(folders) == 2


def test_a_program_names_the_folder_of_kernels():
    code = (
        "import ncclx_mpi.rc; ncclx_mpi.rc.cubins = '/made/ahead'\n"
        "from ncclx_mpi import MPI\n"
        "from numba_kernels.cuda import cache\n"
        "print(cache._folders()[0])"
    )
    environment = {name: value for name, value in os.environ.items() if name != cache.FOLDER_VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout.strip() == "/made/ahead"

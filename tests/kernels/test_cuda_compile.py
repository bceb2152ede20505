"""The command that compiles kernels ahead and reports on them, and what it knows of loops."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from numba_kernels import compile as command
from numba_kernels.atomics import load64
from numba_kernels.cuda import cache, ptx, reduce
from numba_kernels.cuda.intrinsics import load_i64, store_i64
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.loops import Ending, endings

without_compiler = pytest.mark.skipif(bool(importlib.util.find_spec("numba_cuda")), reason="numba-cuda is installed")
COUNTS, POLLS, NEVER = Ending.COUNTS, Ending.POLLS, Ending.NEVER
ROOT = Path(__file__).parents[2]

COUNTED = "L1: add.s64 %rd1, %rd1, 8; setp.lt.s64 %p1, %rd1, %rd9; @%p1 bra L1;"
COUNTED_BY_A_COPY = "L1: mov.u64 %rd2, %rd3; add.s64 %rd3, %rd2, 1; setp.lt.s64 %p1, %rd3, %rd9; @%p1 bra L1;"
HOISTED = "ld.global.u64 %rd1, [%rd9]; setp.lt.s64 %p1, %rd1, %rd8; L1: @%p1 bra L1;"
HOISTED_BUT_RECOMPUTED = "ld.global.u64 %rd1, [%rd9]; L1: setp.lt.s64 %p1, %rd1, %rd8; @%p1 bra L1;"
POLLED = """L1:
    // begin inline asm
    ld.acquire.sys.global.u64 %rd1, [%rd9];
    // end inline asm
    setp.lt.s64 %p1, %rd1, %rd8; @%p1 bra L1;"""
POLLED_BY_EXCHANGE = "L1: atom.acq_rel.sys.global.exch.b64 %rd1, [%rd9], %rd8; setp.ne.s64 %p1, %rd1, 0; @%p1 bra L1;"
POLLED_CLOCK = "L1: mov.u64 %rd1, %globaltimer; setp.lt.s64 %p1, %rd1, %rd8; @%p1 bra L1;"
LOADS_WITHOUT_LOOKING = "L1: ld.global.u64 %rd1, [%rd9]; st.global.u64 [%rd7], %rd1; @%p1 bra L1;"
NO_EXIT = "L1: st.global.u64 [%rd7], %rd1; bra.uni L1;"
EXIT_IN_THE_MIDDLE = """L1: ld.global.u64 %rd1, [%rd9]; setp.eq.s64 %p1, %rd1, 0; @%p1 bra L2;
    st.u64 [%rd7], %rd1; bra.uni L1;
L2: mov.u64 %rd2, 0;"""
POLL_IN_A_COUNT = """L1: mov.u64 %rd2, 0;
L2: ld.global.u64 %rd1, [%rd9]; setp.eq.s64 %p1, %rd1, 0; @%p1 bra L2;
    add.s64 %rd3, %rd3, 1; setp.lt.s64 %p2, %rd3, %rd8; @%p2 bra L1;"""
BODY_OUT_OF_LINE = "bra.uni L2; L1: add.s64 %rd1, %rd1, 1; bra.uni L2; L2: setp.lt.s64 %p1, %rd1, %rd9; @%p1 bra L1;"
VECTOR_LOAD = "L1: ld.global.v2.u64 {%rd1, %rd2}, [%rd9]; setp.eq.s64 %p1, %rd2, 0; @%p1 bra L1;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mov.u64 %rd1, 0;", []),
        (COUNTED, [COUNTS]), (COUNTED_BY_A_COPY, [COUNTS]), (BODY_OUT_OF_LINE, [COUNTS]),
        (POLLED, [POLLS]), (POLLED_BY_EXCHANGE, [POLLS]), (POLLED_CLOCK, [POLLS]), (EXIT_IN_THE_MIDDLE, [POLLS]), (VECTOR_LOAD, [POLLS]),
        (HOISTED, [NEVER]), (HOISTED_BUT_RECOMPUTED, [NEVER]), (LOADS_WITHOUT_LOOKING, [NEVER]), (NO_EXIT, [NEVER]),
        (POLL_IN_A_COUNT, [COUNTS, POLLS]),
    ],
)  # fmt: skip
def test_what_ends_a_loop(body, expected):
    text = f".visible .entry k(\n.param .u64 k_param_0\n)\n{{\n.reg .b64 %rd<10>;\n{body.replace('; ', ';' + chr(10))}\nret;\n}}\n"
    assert sorted(endings(text), key=str) == sorted(expected, key=str)


def waits_on_a_plain_load(thread, threads, word, value):
    while load64(word) < value:
        pass
    store_i64(word + 8, 1)


def waits(thread, threads, word, value):
    while load_i64(word) < value:
        pass
    store_i64(word + 8, 1)


@pytest.mark.compiler
def test_a_load_that_was_moved_out_of_its_loop_is_found():
    def loops(kernel):
        return [endings(text) for text in kernel.ptx_for_each([(8, 0), (9, 0), (10, 0)])]

    assert loops(Kernel("test_hoisted", waits_on_a_plain_load, parameters=2)) == [[NEVER]] * 3
    assert loops(Kernel("test_waits", waits, parameters=2)) == [[POLLS]] * 3
    assert [set(found) for found in loops(reduce.kernel_for("sum", "f32", 3))] == [{COUNTS}] * 3


def test_all_modules_with_kernels_are_found():
    kernels = {kernel.name: kernel for kernel in command.find_kernels(is_sample=False)}
    assert kernels["reduce_sum_f32_5"] is reduce.kernel_for("sum", "f32", 5)
    reported = {kernel.name for kernel in command.find_kernels(is_sample=True)}
    assert reported < set(kernels)
    assert "reduce_sum_f32_2" in reported and "reduce_sum_f32_5" not in reported


@pytest.mark.parametrize(
    "row",
    [
        command.Row("k", (9, 0), ptx.Usage(8, 16, 0)),
        command.Row("k", (9, 0), ptx.Usage(8, 0, 4)),
        command.Row("k", (9, 0), calls=1),
        command.Row("k", (9, 0), endless=1),
        command.Row("k", (9, 0), error="does not compile"),
    ],
)
def test_status_says_that_a_rule_is_broken(row, monkeypatch, capsys):
    clean = command.Row("reduce_sum_f32_2", (9, 0), ptx.Usage(30, 0, 0), polling=1)
    monkeypatch.setattr(command, "_compiled", lambda *_: iter([clean]))
    assert command.main(["--report", "--only", "reduce_sum_f32_2"]) == 0
    monkeypatch.setattr(command, "_compiled", lambda *_: iter([clean, row]))
    assert command.main(["--report", "--only", "reduce_sum_f32_2"]) == 1
    assert "k for sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "number"), [(["--report"], 2), (["--report", "--all"], 15), ([], 15)])
def test_how_many_kernels_are_compiled(options, number, monkeypatch):
    asked = []
    monkeypatch.setattr(command, "_compiled", lambda names, *_: asked.extend(names) or iter([]))
    monkeypatch.setattr(command, "_print_table", lambda *_: None)
    assert command.main(["--only", "reduce_sum_f32_*", *options]) == 0
    assert len(asked) == number


def test_bad_options(capsys):
    assert command.main(["--only", "no_such_kernel"]) == 1
    assert "'no_such_kernel'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--arch", "hopper"])


def compile_one(*options):
    arguments = [sys.executable, "-m", "numba_kernels.compile", "--only", "reduce_sum_f32_2", "--jobs", "1", *options]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)


@without_compiler
def test_a_missing_compiler_is_reported():
    done = compile_one("--arch", "sm_90", "--report")
    assert done.returncode == 1
    assert "pip install 'ncclx-mpi[cuda13]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.compiler
def test_a_numpy_without_row_stack():
    """NumPy 2.5 has none, and numba-cuda 0.30 cannot be imported without."""
    program = (
        "import numpy as np\n"
        "vars(np).pop('row_stack', None)\n"
        "from numba_kernels.cuda.reduce import kernel_for\n"
        "print('.entry' in kernel_for('sum', 'f32', 2).ptx((9, 0)), 'row_stack' in vars(np))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "True False\n", done.stderr


@pytest.mark.compiler
def test_compiled_ahead_and_found(tmp_path, monkeypatch):
    done = compile_one("--arch", "sm_80,sm_90", "--report", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    header, row, summary = done.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "sm_80/sm_90"] and row.split()[0] == "reduce_sum_f32_2"
    assert row.split()[2:] == ["0", "0", "0", "0", "0"] and summary.startswith("1 kernels for 2 architectures")
    assert len(list(tmp_path.iterdir())) == 2
    kernel = reduce.kernel_for("sum", "f32", 2)
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(Kernel, "compile", lambda *_: pytest.fail("it was compiled again"))
    for arch in ((8, 0), (9, 0)):
        assert kernel.cubin(arch)[0].startswith(b"\x7fELF")


@pytest.mark.compiler
def test_kernels_of_the_gpu_programs(tmp_path):
    """They keep the rules, and can be made ahead for a machine without a compiler."""
    from benchmarks import gpu_probe

    kernels = gpu_probe.KERNELS_OF_PROGRAMS
    assert all(command._examined(kernel, gpu_probe.HOPPER, kernel.ptx(gpu_probe.HOPPER))[0].is_clean for kernel in kernels)
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu_probe.py"), "--compile-to", str(tmp_path)]
    subprocess.run(program, check=True, cwd=ROOT)
    names = {cache.file_name(kernel.name, kernel.digest, gpu_probe.HOPPER) for kernel in kernels}
    assert {path.name for path in tmp_path.iterdir()} == names


PTXAS = """#!{python}
import sys
if "--version" in sys.argv:
    sys.exit(print("Cuda compilation tools, release {release}, V{release}.1"))
if {is_old}:
    sys.exit("ptxas k.ptx, line 1; fatal   : Unsupported .version 9.0; current version is '8.4'")
open(sys.argv[sys.argv.index("-o") + 1], "wb").write(b"code")
print("ptxas info    : Used 7 registers", file=sys.stderr)
"""
TEXT = ".version 9.0\n.target sm_90\n.visible .entry k() { ret; }\n"


def install_ptxas(folder, release, is_old):
    folder.mkdir()
    program = folder / "ptxas"
    program.write_text(PTXAS.format(python=sys.executable, release=release, is_old=is_old))
    program.chmod(0o700)
    return str(folder)


@pytest.fixture
def no_other_ptxas(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_newest_ptxas_assembles(tmp_path, monkeypatch, no_other_ptxas, order):
    folders = [install_ptxas(tmp_path / "old", "9.2", True), install_ptxas(tmp_path / "new", "13.0", False)]
    monkeypatch.setenv("PATH", ":".join(folders[place] for place in order))
    assert ptx.run_ptxas(TEXT, (9, 0)) == (b"code", ptx.Usage(7, 0, 0))
    monkeypatch.setenv("PATH", folders[0])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "bin").symlink_to(folders[1])
    assert ptx.find_ptxas() == str(tmp_path / "toolkit" / "bin" / "ptxas")


def test_a_ptxas_that_is_too_old_is_named(tmp_path, monkeypatch, no_other_ptxas):
    monkeypatch.setenv("PATH", install_ptxas(tmp_path / "old", "12.4", True))
    with pytest.raises(ptx.CompilerMissing) as raised:
        ptx.run_ptxas(TEXT, (9, 0))
    assert str(raised.value).startswith(f"{tmp_path}/old/ptxas (release 12.4) is too old: it takes PTX up to 8.4, and ")
    assert "nvidia-cuda-nvcc" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # it comes from another process


def test_a_ptxas_that_is_too_old_breaks_no_kernel(monkeypatch, capsys):
    def refuse(*_):
        raise ptx.AssemblerTooOld("ptxas is too old")

    monkeypatch.setattr(command, "run_ptxas", refuse)
    monkeypatch.setattr(Kernel, "ptx_for_each", lambda kernel, arches: [TEXT for _ in arches])
    monkeypatch.setattr(
        command,
        "_compiled",
        lambda names, arches, report, output, jobs: command._compile_some((names[:1], arches, report, output)),
    )
    assert command.main(["--report", "--arch", "sm_90"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "ptxas is too old\n")

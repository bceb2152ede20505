"""What a start costs and needs: no compiler with a warm cache, nothing written beside the cache, nothing left afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from programs import HOME, all_gone, command, environment, run_code

from ncclx_mpi import late, process
from ncclx_mpi.launch.program import CODE, MODULE, SCRIPT, Program
from numba_kernels import cache_files, digests, late_numpy

WORLD = "import numpy as np; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"

USE = """
total = np.empty(8)
comm.Allreduce(np.ones(8), total)
comm.Bcast(total)
comm.sendrecv(total, comm.rank)
comm.Barrier()
assert (total == comm.size).all()
"""

COLD = """
from ncclx_mpi.compile_cache import warm
warm._FIRST = ("transports.shm.arena.",)
warm.warm_up()
warm.warm_up()
"""


EVERYTHING = """
n, r = comm.size, comm.rank
one, many, back = np.ones(4), np.ones(4 * n), np.zeros(4 * n)
alike = ([4] * n, [4 * k for k in range(n)])
comm.Bcast(one); comm.Reduce(one, back[:4]); comm.Allreduce(one, back[:4]); comm.Scan(one, back[:4]); comm.Exscan(one, back[:4])
comm.Gather(one, many); comm.Scatter(many, one); comm.Allgather(one, many); comm.Alltoall(many, back)
comm.Gatherv(one, [many, alike]); comm.Scatterv([many, alike], one); comm.Allgatherv(one, [many, alike])
comm.Alltoallv([many, alike], [back, alike])
comm.Alltoallw(
    [many, ([4] * n, [32 * k for k in range(n)]), [MPI.DOUBLE] * n], [back, ([4] * n, [32 * k for k in range(n)]), [MPI.DOUBLE] * n]
)
comm.Reduce_scatter(many, one, [4] * n); comm.Reduce_scatter_block(many, one)
for large in (np.ones(30_000), np.ones(300_000)):
    comm.Allreduce(MPI.IN_PLACE, large); comm.Bcast(large)
if r == 0:
    comm.Send(one, 1); comm.Ssend(one, 1)
elif r == 1:
    comm.Recv(one, 0); comm.Recv(one, 0)
comm.Sendrecv(one, r, recvbuf=many[:4], source=r)
comm.Barrier()
"""
NO_COMPILER = "import sys; print([name for name in ('numba', 'llvmlite', 'numba_kernels.emit') if name in sys.modules])"


def test_a_warm_start_needs_no_compiler():
    result = run_code(2, WORLD + USE + NO_COMPILER)
    assert result.stdout == "[]\n" * 2, result.stderr


def test_every_blocking_call_on_arrays_needs_no_compiler_once_it_is_cached():
    run_code(2, WORLD + EVERYTHING)
    result = run_code(2, WORLD + EVERYTHING + NO_COMPILER)
    assert result.stdout == "[]\n" * 2, result.stderr


STORED = """
import struct, sys
from mpi4py import MPI
from numba_kernels import jit
def known():
    return {*sys.modules, *(kernel.name for kernel in jit.entries() if kernel._point or kernel._address)}
window = MPI.Win.CALL(8)
before = known()
window.tomemory()[:4] = struct.pack("i", 1)
print(known() - before)
"""


def test_who_stores_to_a_new_window_imports_and_links_nothing_first():
    """Others may access it at once, which a program that stores a first value after the call relies on not to happen."""
    for make in ("Allocate", "Allocate_shared"):
        result = run_code(1, STORED.replace("CALL", make))
        assert result.stdout == "set()\n", result.stderr


OBJECTS = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
assert comm.allreduce(1) == comm.size
assert comm.sendrecv([comm.rank, (1.5, None)], comm.rank) == [comm.rank, (1.5, None)]
assert comm.bcast({"a": "text"}) == {"a": "text"}
comm.Dup().Free()
comm.Ibarrier().wait()
"""
ARRAYS = """
np = __import__("num" "py")
from numba_kernels import pyobject
small = comm.sendrecv({"array": np.arange(3)}, comm.rank)["array"]
assert pyobject._array_type[0] == id(np.ndarray)
assert small.tolist() == [0, 1, 2]
total = np.empty(3)
for _ in range(2):
    comm.Allreduce(np.ones(3), total)
    assert (total == comm.size).all()
assert comm.sendrecv({"array": np.arange(3)}, comm.rank)["array"].dtype == np.arange(3).dtype
"""
HAS_NUMPY = "import sys; print('nu' 'mpy' in sys.modules)\n"
WITHOUT_NUMPY = HAS_NUMPY + "sys.modules['nu' 'mpy'] = None\n"
"""Who imports it from then on is told of by a traceback."""


NOT_NEEDED = (
    "dataclasses",
    "inspect",
    "hashlib",
    "secrets",
    "random",
    "shutil",
    "subprocess",
    "traceback",
    "logging",
    "json",
    "importlib.abc",
)
"""Modules of Python's own that take 1 to 5 ms each."""
OF_FEW = (
    "ncclx_mpi.api.window",
    "ncclx_mpi.api.file",
    "ncclx_mpi.api.memory",
    "ncclx_mpi.rma",
    "ncclx_mpi.io",
    "ncclx_mpi.extensions",
)
"""Modules of ours that most programs never use."""


def test_a_launcher_imports_little():
    names = NOT_NEEDED + OF_FEW
    run_until(f"import sys; from mpi4py import MPI; print([name for name in {names} if name in sys.modules])", "[]\n" * 2)


def run_without_numpy(code: str, **options: object) -> None:
    """Run a program of two ranks that can import no NumPy: not the first time, as what compiles for that one imports it."""
    assert run_code(2, code, **options).returncode == 0
    run_until(WITHOUT_NUMPY + code, "False\n" * 2, **options)


def run_until(code: str, expected: str, **options: object) -> None:
    """Run it until it prints what is expected: a launcher imports everything where another test has just changed what is in the cache."""
    for _ in range(5):
        result = run_code(2, code, **options)
        assert result.returncode == 0, result.stderr
        if result.stdout == expected:
            return
    raise AssertionError(f"{result.stdout}{result.stderr}")


def test_a_program_without_arrays_needs_no_numpy():
    run_without_numpy(OBJECTS)


def test_an_intercommunicator_is_made_without_numpy():
    code = "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\nhalf = comm.Split(comm.rank)\n"
    code += "between = half.Create_intercomm(0, comm, 1 - comm.rank)\nassert between.remote_size == 1\n"
    code += "between.send(comm.rank, 0)\nassert between.recv(source=0) == 1 - comm.rank\n"
    run_without_numpy(code)


def test_numpy_that_comes_later_is_noticed():
    code = OBJECTS.replace("mpi4py", "ncclx_mpi") + HAS_NUMPY + ARRAYS
    run = subprocess.run([sys.executable, "-c", code], env=environment(), text=True, capture_output=True)
    assert (run.returncode, run.stdout) == (0, "False\n"), run.stderr


def test_memory_needs_no_numpy():
    code = "from mpi4py import MPI\nassert {'buffer', 'memory'} <= {*dir(MPI)}\n"
    code += "from mpi4py.MPI import *\nassert memory is buffer is MPI.buffer and type(MPI.Alloc_mem(8)) is buffer\n"
    run_without_numpy(code)


DERIVED = """
from array import array
from mpi4py import MPI
comm = MPI.COMM_WORLD
peer, half = 1 - comm.rank, (MPI.INT.Create_darray(2, rank, [6], [MPI.DISTRIBUTE_CYCLIC], [1], [2]) for rank in range(2))
kinds = [MPI.INT.Create_vector(3, 1, 2), MPI.INT.Create_indexed([2, 1], [0, 4]), MPI.INT.Create_struct([1, 2], [4, 12], [MPI.INT] * 2)]
for kind in [*kinds, MPI.INT.Create_subarray([2, 4], [2, 2], [0, 1]), *half]:
    sent, received = array("i", range(6)), array("i", [-1] * 6)
    sent *= 2
    received *= 2
    for _ in range(2):
        comm.Sendrecv([sent, 1, kind.Commit()], peer, 0, [received, 1, kind.Dup()], peer, 0)
    packed = [bytearray(kind.size), bytearray(kind.size)]
    for whole, into in zip((sent, received), packed):
        assert kind.Pack(memoryview(whole).cast("B")[: kind.ub], into, 0, comm) == kind.size
    assert packed[0] == packed[1] and any(packed[0]), kind.decode()
"""
WINDOW = """
from array import array
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine, peer = array("q", [0] * 4), 1 - comm.rank
for window in MPI.Win.Allocate(32, 8, comm=comm), MPI.Win.Create(mine, 8, comm=comm), MPI.Win.Allocate_shared(32, 8, comm=comm):
    window.tomemory()[:] = 0
    window.Fence()
    window.Put(array("q", [peer + 5]), peer, 1)
    window.Fence()
    for _ in range(2):
        held = array("q", [7])
        window.Lock(peer)
        window.Accumulate(array("q", [3]), peer, 2)
        window.Get(held, peer, 1)
        window.Fetch_and_op(array("q", [1]), held, peer, 3)
        window.Unlock(peer)
    window.Fence()
    assert memoryview(window.tomemory()).cast("q").tolist() == [0, comm.rank + 5, 6, 2]
    window.Free()
"""


def test_derived_datatypes_need_no_numpy():
    run_without_numpy(DERIVED)


def test_a_file_is_opened_without_numpy(tmp_path: Path):
    code = f"from mpi4py import MPI\ncomm = MPI.COMM_WORLD\nfile = MPI.File.Open(comm, {str(tmp_path / 'file')!r}, 5)\n"
    code += "file.Set_view(8, MPI.INT)\nfile.Set_size(16)\nassert file.Get_size() == 16\nfile.Seek_shared(1)\nfile.Close()\n"
    run_without_numpy(code)


COLLECTIVES = """
from array import array
from mpi4py import MPI
comm = MPI.COMM_WORLD
half = comm.Split(comm.rank)
between = half.Create_intercomm(0, comm, 1 - comm.rank)
dynamic = comm.Dup()
for one in [comm, dynamic, between]:
    got, word = array("q", [0]), array("q", [comm.rank + 1])
    one.Barrier()
    one.Ibarrier().Wait()
    one.Allreduce(word, got)
    assert got[0] == (2 - comm.rank if one is between else 3)
    one.Iallreduce(word, got).Wait()
    request = one.Allreduce_init(word, got) if one is not between else one.Iallreduce(word, got)
    request.Start() if one is not between else None
    request.Wait()
    rows = array("q", [0] * one.remote_size) if one is between else array("q", [0] * 2)
    one.Allgather(word, rows)
    one.Ialltoall(rows, array("q", rows)).Wait()
    one.Alltoallv([rows, [1] * len(rows)], [array("q", rows), [1] * len(rows)])
    one.Ialltoallv([rows, [1] * len(rows)], [array("q", rows), [1] * len(rows)]).Wait()
    one.Iallgatherv(word, [rows, [1] * len(rows)]).Wait()
    assert one.allgather(comm.rank) == ([1 - comm.rank] if one is between else [0, 1])
comm.Scan(word, got)
comm.Iexscan(word, got).Wait()
comm.Reduce_scatter(array("q", [1, 2]), got, [1, 1])
assert got[0] == 2 * (comm.rank + 1)
assert len(comm.bcast("x" * 500_000)) == 500_000
comm.Idup()[1].Wait()
assert comm.Agree(3) == 3
"""


def test_collectives_need_no_numpy():
    for topology in "machine", "nolocal":
        run_without_numpy(COLLECTIVES, NCCLX_MPI_TOPOLOGY=topology)


def test_windows_need_no_numpy():
    run_without_numpy(WINDOW)


def test_numpy_is_imported_before_the_fork_if_the_program_may_use_it(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("import beside, script, itertools\n")
    (tmp_path / "uses_arrays.py").write_text("import beside, numpy as np\n")
    monkeypatch.chdir(tmp_path)
    for text, expected in (
        ("import os, sys\nfrom mpi4py import MPI\nfrom time import sleep\nimport json as j, mpi4py.util\n", False),
        ("import numpy\n", True),
        ("import os; import something_else\nimport os, scipy.linalg as la\n", True),
        ("def work():\n    from mine.own import work\n", True),
        ("import importlib\nimportlib.import_module(name)\n", True),
        ("from importlib import import_module\nimport_module('mpi4py.MPI')\nimportlib.import_module(\"ncclx_mpi\")\n", False),
        ("from importlib import import_module\nimport_module('mpi4python')\n", True),
        ("from mpi4py import MPI\nwindow = MPI.Win.Allocate(8)\n", False),
        ("from mpi4py import MPI\nwindow = MPI.Win.Create_dynamic()\n", True),
        ("from mpi4py import MPI\nfile = MPI.File.Open(MPI.COMM_WORLD, name)\nfile.Close()\n", False),
        ("from mpi4py import MPI\nfile = MPI.File.Open(MPI.COMM_WORLD, name)\nfile.Write_at_all(0, data)\n", True),
        ("from mpi4py import MPI\nkind = MPI.INT.Create_vector(2, 1, 3)\n", False),
        ("from mpi4py import MPI\nMPI.COMM_WORLD.Split(0).Barrier()\n", False),
        ("from mpi4py import MPI\nMPI.Intracomm.Create_from_group(MPI.Session.Init().Create_group('mpi://WORLD'))\n", False),
        ("from mpi4py import MPI\nMPI.COMM_WORLD.Create_dist_graph([0], [1], [1])\n", True),
        ("import beside\n", False),
        ("import beside, uses_arrays\n", True),
        ("from . import beside\n", True),
    ):
        script.write_text(text)
        assert ("numpy" in Program(SCRIPT, str(script), []).may_import) is expected, text
        assert ("numpy" in Program(CODE, text, []).may_import) is expected, text
        assert ("numpy" in Program(MODULE, "mpi4py.run", [str(script), "-x"]).may_import) is expected, text
        assert ("numpy" in Program(SCRIPT, "script.py", [], folder=str(tmp_path)).may_import) is expected, text
    for program in (
        Program(SCRIPT, str(tmp_path / "absent.py"), []),
        Program(MODULE, "whatever", []),
        Program(MODULE, "mpi4py.run", []),
    ):
        assert program.may_import == {"numpy"}


def test_windows_and_files_are_imported_before_the_fork_if_the_program_names_them():
    text = "from mpi4py import MPI\nWindow = MPI.COMM_WORLD"
    assert not Program(CODE, text, []).may_import
    assert Program(CODE, f"{text}\nMPI.Win.Allocate(8)", []).may_import == {"ncclx_mpi.api.window"}
    assert Program(CODE, f"{text}\nMPI.File.Delete('x')", []).may_import == {"ncclx_mpi.api.file"}


def test_a_script_in_a_pipe_is_read_by_its_rank_alone(tmp_path):
    """Whoever opened it here would wait for what the rank is to read, or take it away."""
    os.mkfifo(tmp_path / "script.py")
    command_line = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "1", str(tmp_path / "script.py")]
    with subprocess.Popen(command_line, env=environment(), text=True, stdout=subprocess.PIPE) as run:
        (tmp_path / "script.py").write_text("print('read')\n")
        assert run.communicate(timeout=60) == ("read\n", None)


def test_a_program_with_numba_functions_of_its_own():
    """Numba's compiler starts in a rank that already runs linked functions."""
    code = WORLD + USE + "import numba\n@numba.njit\ndef twice(x): return 2 * x\nprint(twice(comm.size) + twice(1.5))\n" + USE
    result = run_code(2, code)
    assert result.stdout == "7.0\n" * 2, result.stderr


def test_a_cold_start_says_what_it_is_doing(tmp_path):
    settings = environment(**{cache_files.CACHE_VARIABLE: str(tmp_path)})
    result = subprocess.run([sys.executable, "-c", COLD], env=settings, capture_output=True, text=True, timeout=120, check=True)
    begun, done = result.stderr.splitlines()
    assert begun.startswith("ncclx_mpi: compiling 4 of ")
    assert str(tmp_path) in begun
    assert done.startswith("ncclx_mpi: compiled in ")


def test_packages_that_cannot_be_written(tmp_path):
    packages = tmp_path / "site-packages"
    for name in digests.PACKAGES:
        shutil.copytree(Path(HOME) / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [packages, *packages.rglob("*")]:
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    before = sorted(packages.rglob("*"))
    words = command("run", "-n", "2", "-c", WORLD + USE + "import ncclx_mpi; print(ncclx_mpi.__file__)")
    settings = environment(PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1")
    result = subprocess.run(words, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == f"{packages}/ncclx_mpi/__init__.py\n" * 2, result.stderr
    assert sorted(packages.rglob("*")) == before


def within_limit(limit: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``ncclx WORDS`` in a shell that has set a limit."""
    return subprocess.run(
        ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *command(*words)],
        env=environment(OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_limited_address_space():
    """16 GiB, as batch systems set it: the heaps are smaller then, and memory is allocated in them as before."""
    code = WORLD + USE + "memory = MPI.Alloc_mem(1 << 20); memory[:] = b'x' * (1 << 20); comm.Bcast(memory); print(len(memory))"
    result = within_limit(f"-v {16 << 20}", "run", "-n", "2", "-c", code)
    assert result.stdout == f"{1 << 20}\n" * 2, result.stderr


def test_limits_that_are_too_low_are_named():
    result = within_limit(f"-v {16 << 20}", "run", "-n", "48", "-c", WORLD)
    assert result.returncode == 2
    assert "the arena of 48 ranks takes 26." in result.stderr
    assert result.stderr.endswith("GiB of address space; raise the limit (`ulimit -v`)\n")
    result = within_limit("-f 1000", "run", "-n", "2", "-c", WORLD)
    assert result.returncode == 2
    assert result.stderr.endswith("GiB of a sparse file; raise the limit (`ulimit -f`)\n")


def test_a_working_folder_that_is_gone(tmp_path):
    (tmp_path / "gone").mkdir()
    words = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh"]
    code = WORLD + "print(comm.allreduce(1), 'wdir' in MPI.INFO_ENV)"
    result = subprocess.run(
        [*words, *command("run", "-n", "2", "-c", code)],
        cwd=tmp_path / "gone", env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.stdout == "2 False\n" * 2, result.stderr


def test_64_ranks_leave_nothing():
    shared = set(os.listdir("/dev/shm"))
    result = run_code(64, WORLD + USE + "import os; print(os.getpid(), os.getppid())")
    processes = {int(word) for word in result.stdout.split()}
    assert len(processes) == 65, result.stderr
    assert all_gone(list(processes), 0)
    left, end = set(os.listdir("/dev/shm")) - shared, time.monotonic() + 10
    while (
        left and time.monotonic() < end
    ):  # a compile beside this one has semaphores there for a moment; of the ranks nobody is left to tidy
        time.sleep(0.05)
        left &= set(os.listdir("/dev/shm"))
    assert not left


def test_modules_of_the_program_are_emptied_at_exit(tmp_path):
    (tmp_path / "mine.py").write_text("file = open('note', 'w')\nfile.write('flushed')\n")
    code = WORLD + "import os, sys; os.chdir(sys.argv[1]); sys.path[:0] = [sys.argv[1]]; import mine"
    assert run_code(1, code, str(tmp_path)).returncode == 0
    assert (tmp_path / "note").read_text() == "flushed"


def test_modules_that_were_imported_after_another(monkeypatch):
    last = next(reversed(sys.modules))
    monkeypatch.setitem(sys.modules, "newer", ModuleType("newer"))
    assert process._modules_after(last) == ["newer"]
    assert process._modules_after("removed by the program") == []


def test_a_module_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "imported_slowly.py").write_text("import time\ntime.sleep(0.3)\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = late.module("imported_slowly")
    with ThreadPoolExecutor(4) as threads:
        assert [each.result() for each in [threads.submit(getattr, module, "value") for _ in range(4)]] == [1] * 4


def test_who_looks_meanwhile_waits_until_all_have_learned(monkeypatch):
    begun, learned = threading.Event(), []

    def learn() -> None:
        begun.set()
        late_numpy.look()  # as what is looked up in NumPy does
        time.sleep(0.2)
        learned.append(True)

    monkeypatch.setattr(late_numpy, "_waiting", [learn])
    thread = threading.Thread(target=late_numpy.look)
    thread.start()
    assert begun.wait(60)
    late_numpy.look()
    assert learned
    thread.join()


def test_numpy_that_is_being_imported_is_not_there_yet(monkeypatch):
    assert late_numpy.is_imported()
    half = ModuleType("numpy")
    half.__spec__ = ModuleSpec("numpy", None)
    half.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "numpy", half)
    assert not late_numpy.is_imported() and not late_numpy.is_any_array(half)

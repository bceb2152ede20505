"""Settings, starting and ending, versions, timers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi import MPI, rc


def run(script: str, tmp_path: Path, nranks: int = 1, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script on `nranks` ranks."""
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env={**os.environ, **environ})


def test_settings_are_checked() -> None:
    with pytest.raises(TypeError, match="did you mean errors"):
        rc.erors = "fatal"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="did you mean threads"):
        rc(thread=True)  # type: ignore[operator]
    with pytest.raises(AttributeError):
        _ = rc.nothing  # type: ignore[attr-defined]


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLX_MPI_TIMEOUT", "2.5")
    assert rc.timeout == 2.5  # type: ignore[attr-defined]
    monkeypatch.setenv("NCCLX_MPI_TIMEOUT", "soon")
    with pytest.warns(RuntimeWarning, match="NCCLX_MPI_TIMEOUT: unexpected value 'soon'"):
        assert rc.timeout == 0.0  # type: ignore[attr-defined]
    monkeypatch.setenv("NCCLX_MPI_TIMEOT", "1")
    with pytest.warns(UserWarning, match="NCCLX_MPI_TIMEOT is not known to ncclx_mpi; did you mean NCCLX_MPI_TIMEOUT"):
        assert rc.warn_unknown() == ["NCCLX_MPI_TIMEOT"]


def test_mpi4py_variables_win(tmp_path: Path) -> None:
    script = """
import mpi4py
mpi4py.rc.errors = "exception"
from mpi4py import MPI
assert MPI.COMM_WORLD.Get_errhandler() == MPI.ERRORS_ARE_FATAL
print("before", flush=True)
MPI.COMM_WORLD.Send(b"", 99)
print("after")
"""
    done = run(script, tmp_path, MPI4PY_RC_ERRORS="fatal")
    assert done.returncode != 0 and "before" in done.stdout and "after" not in done.stdout


def test_bad_values_are_warned_about(tmp_path: Path) -> None:
    script = "from mpi4py import MPI; assert MPI.Query_thread() == MPI.THREAD_MULTIPLE"
    done = run(script, tmp_path, MPI4PY_RC_THREAD_LEVEL="some")
    assert done.returncode == 0 and "mpi4py.rc.thread_level: unexpected value 'some'" in done.stderr


def test_whatever_the_program_sets_is_checked(tmp_path: Path) -> None:
    """Every public name of ``rc`` is a setting, ours too, and a value that it does not allow is warned about and not taken."""
    script = """
import warnings
from mpi4py import rc
names = [name for name in dir(rc) if not name.startswith("_")]
assert {"errors", "timeout", "topology"} <= set(names)
for name in names:
    setattr(rc, name, -5)
with warnings.catch_warnings(record=True) as warned:
    from mpi4py import MPI
assert sorted(str(entry.message) for entry in warned) == sorted(f"mpi4py.rc.{name}: unexpected value -5" for name in names)
assert rc.timeout == 0 and rc.topology == "machine"
"""
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr


def test_pickles_heed_what_the_program_writes_into_the_environment(tmp_path: Path) -> None:
    script = """
import os
import pickle
os.environ["MPI4PY_PICKLE_PROTOCOL"], os.environ["MPI4PY_PICKLE_THRESHOLD"] = "3", "1024"
from mpi4py import MPI
assert (MPI.pickle.PROTOCOL, MPI.pickle.THRESHOLD) == (3, 1024)
assert MPI.pickle.dumps([1])[1] == 3
"""
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr


def test_no_initialization_at_import(tmp_path: Path) -> None:
    script = """
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
assert not MPI.Is_initialized() and not MPI.Is_finalized()
try:
    MPI.COMM_WORLD.Get_size()
except MPI.Exception as failure:
    assert failure.Get_error_class() == MPI.ERR_COMM
else:
    raise SystemExit("no error")
assert MPI.Init_thread(MPI.THREAD_SERIALIZED) == MPI.THREAD_SERIALIZED == MPI.Query_thread()
assert MPI.COMM_WORLD.allreduce(1) == 2
MPI.Finalize()
assert MPI.Is_initialized() and MPI.Is_finalized()
try:
    MPI.COMM_WORLD.Barrier()
except MPI.Exception as failure:
    print(failure.Get_error_class() == MPI.ERR_COMM)
"""
    done = run(script, tmp_path, 2)
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stderr


def test_no_communicator_outlives_finalize(tmp_path: Path) -> None:
    script = """
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
comms = [world.Dup(), world.Split(0), world.Create(world.group), MPI.COMM_SELF.Dup()]
for comm in comms: comm.Barrier()
MPI.Finalize()
calls = [call for comm in comms for call in (comm.Barrier, comm.Free, lambda: comm.bcast(1), lambda: comm.Send(numpy.zeros(3), 0))]
for call in calls:
    try:
        call()
    except MPI.Exception as failure:
        print(failure.Get_error_class() == MPI.ERR_COMM, flush=True)
"""
    done = run(script, tmp_path, 2)
    assert done.returncode == 0 and done.stdout.split() == ["True"] * 32, done.stderr


def test_a_collective_does_not_wait_for_a_rank_that_has_finalized(tmp_path: Path) -> None:
    script = """
from mpi4py import MPI
world, twin = MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()
if world.rank == 1:
    MPI.Finalize()
for comm in (world, twin) if world.rank == 0 else ():
    try:
        comm.Barrier()
    except MPI.Exception as failure:
        print(failure.Get_error_class() == MPI.ERR_PROC_FAILED, "rank 1 has finalized" in str(failure))
"""
    done = run(script, tmp_path, 2)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_the_end_of_the_program(tmp_path: Path) -> None:
    script = """
import atexit
def first():
    print("first", MPI.COMM_WORLD.allreduce(1), flush=True)
atexit.register(first)
from mpi4py import MPI
key = MPI.Comm.Create_keyval(None, lambda comm, key, value: print(value, MPI.Is_finalized(), flush=True))
MPI.COMM_SELF.Set_attr(key, "attribute")
atexit.register(lambda: print("last", MPI.COMM_WORLD.allreduce(1), flush=True))
"""
    done = run(script, tmp_path, 2)
    assert done.returncode == 0, done.stderr
    for line in ("last 2", "first 2", "attribute False"):
        assert done.stdout.count(line) == 2
    assert done.stdout.index("last") < done.stdout.index("first") < done.stdout.index("attribute")


@pytest.mark.parametrize("code", [0, 7])
def test_abort(tmp_path: Path, code: int) -> None:
    script = f"""
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.Abort({code})
MPI.COMM_WORLD.recv(source=1)
"""
    assert run(script, tmp_path, 2).returncode == code


@pytest.mark.ranks(1, 2)
def test_inquiry(comm: Any) -> None:
    assert MPI.Is_initialized() and not MPI.Is_finalized() and MPI.Is_thread_main()
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(MPI.Is_thread_main()))
    thread.start()
    thread.join()
    assert seen == [False]
    assert MPI.Get_version() == (MPI.VERSION, MPI.SUBVERSION) == (4, 1)
    assert MPI.get_vendor()[0] == "ncclx_mpi" and MPI.Get_library_version().startswith("ncclx_mpi ")
    assert MPI.Get_abi_version() == (-1, -1)
    assert dict(MPI.Get_abi_info()) == {"mpi_aint_size": "8", "mpi_count_size": "8", "mpi_offset_size": "8"}
    fortran = dict(MPI.Get_abi_fortran_info())
    assert len(fortran) == 23 and (fortran["mpi_double_precision_size"], fortran["mpi_logical_size"]) == ("8", "4")
    for name, value in fortran.items():
        if name.endswith("_supported"):
            datatype = getattr(MPI, name.removeprefix("mpi_").removesuffix("_supported").upper())
            assert value == ("false" if datatype == MPI.DATATYPE_NULL else "true"), name
    before = MPI.Wtime()
    assert 0 < MPI.Wtick() < 1e-3 and MPI.Wtime() >= before
    assert MPI.Get_processor_name() == os.uname().nodename
    MPI.Pcontrol(1)
    with pytest.raises(MPI.Exception):
        MPI.Pcontrol(3)
    with pytest.raises(MPI.Exception):
        MPI.Init()


def test_compute_dims() -> None:
    assert MPI.Compute_dims(12, 2) == [4, 3] and MPI.Compute_dims(8, 3) == [2, 2, 2] and MPI.Compute_dims(7, 2) == [7, 1]
    assert MPI.Compute_dims(12, [0, 2, 0]) == [3, 2, 2] and MPI.Compute_dims(1, 0) == []
    with pytest.raises(MPI.Exception):
        MPI.Compute_dims(7, [2, 0])


def test_names_only() -> None:
    """The namespace of MPI holds nothing but API objects."""
    for name in dir(MPI):
        value = getattr(MPI, name)
        assert name.startswith("_") or not hasattr(value, "__spec__"), name
        if isinstance(value, type) and not name.startswith("_"):
            assert value.__module__ == "ncclx_mpi.MPI" and value.__doc__, name
            for member, found in vars(value).items():
                assert member.startswith("_") or not callable(found) or found.__doc__, f"{name}.{member}"
        elif callable(value) and not name.startswith("_"):
            assert type(value).__name__ != "function" or value.__doc__, name


def test_what_the_module_uses_stays_whose_it_is() -> None:
    """A class of others that said it was of MPI could not be pickled any more."""
    assert pickle.loads(pickle.dumps(Any)) is Any


def test_settings_of_the_program_reach_a_launcher_that_has_imported_everything(tmp_path: Path) -> None:
    script = """
import mpi4py
mpi4py.rc.irecv_bufsz, mpi4py.rc.fast_reduce = 50_000, False
from mpi4py import MPI
options = mpi4py.rc.options()
assert (options.irecv_bufsz, options.fast_reduce) == (50_000, False)
assert MPI.COMM_WORLD.allreduce([1]) == [1, 1]
"""
    done = run(script, tmp_path, 2)
    assert done.returncode == 0, done.stderr


def test_what_a_null_handle_refers_to_has_no_protocols_of_python() -> None:
    """Tools that look at any object ask for them, and expect nothing but AttributeError."""
    state = MPI.COMM_NULL._state
    assert not hasattr(state, "__wrapped__") and not hasattr(state, "__len__")
    with pytest.raises(MPI.Exception, match="null, or was freed"):
        state.native  # noqa: B018

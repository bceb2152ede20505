"""What handles have in common, as mpi4py has it: integers that find them again, docstrings, memory that is nobody's."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi import MPI, rc

HANDLES = [
    MPI.COMM_SELF,
    MPI.COMM_NULL,
    MPI.INT,
    MPI.DATATYPE_NULL,
    MPI.SUM,
    MPI.GROUP_EMPTY,
    MPI.ERRORS_RETURN,
    MPI.INFO_ENV,
    MPI.MESSAGE_NO_PROC,
]


@pytest.mark.parametrize("handle", HANDLES, ids=lambda handle: type(handle).__name__)
def test_integers_find_their_object(handle: Any) -> None:
    kind = type(handle)
    assert kind.fromint(handle.toint()) == kind.f2py(handle.py2f()) == kind.fromhandle(handle.handle) == handle


def test_integers_of_what_was_freed() -> None:
    group = MPI.COMM_SELF.Get_group()
    number = group.toint()
    assert number != MPI.GROUP_EMPTY.toint() and MPI.Group.fromint(number) == group
    group.Free()
    del group
    with pytest.raises(MPI.Exception) as caught:
        MPI.Group.fromint(number)
    assert caught.value.Get_error_class() == MPI.ERR_GROUP


@pytest.mark.parametrize("handle", HANDLES, ids=lambda handle: type(handle).__name__)
def test_what_is_no_number_and_no_handle_is_refused_by_its_type(handle: Any) -> None:
    kind = type(handle)
    for call in (
        lambda: kind.fromhandle("1"),
        lambda: kind.fromint(None),
        lambda: kind.f2py([]),
        lambda: kind(3),
        lambda: kind(handle, handle),
        lambda: kind(name=1),
    ):
        with pytest.raises(TypeError):
            call()


def test_errors_are_made_of_numbers() -> None:
    for call in (MPI.Exception, MPI.Get_error_class, MPI.Get_error_string):
        with pytest.raises(TypeError):
            call("1")


@pytest.mark.parametrize("place", [MPI.BOTTOM, MPI.IN_PLACE, MPI.BUFFER_AUTOMATIC], ids=repr)
def test_places_have_memory_that_is_nobodys(place: Any) -> None:
    view = memoryview(place)
    assert view.nbytes == 0 and view.obj is None and type(place)() is place
    with pytest.raises(TypeError):
        place + 1


def test_docstrings_begin_with_signatures() -> None:
    lines = {
        MPI.Comm.Send: "Send(self, buf, dest, tag)",
        MPI.Comm.Get_parent.__func__: "Get_parent(cls)",  # type: ignore[attr-defined]
        MPI.Get_version: "Get_version()",
        MPI.buffer.allocate: "allocate(nbytes, clear)",
        MPI.Comm.rank: "rank",
    }
    for documented, line in lines.items():
        first, _, rest = str(documented.__doc__).partition("\n")
        assert first == line and rest and not rest.startswith((" ", line))


def test_other_settings_than_those_that_count() -> None:
    other = type(rc)(errors="fatal")  # type: ignore[call-arg]
    assert vars(other) == {"errors": "fatal"} and rc.errors == "exception"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected argument"):
        type(rc)(eror="fatal")  # type: ignore[call-arg]


def test_mpi4py_run_aborts_the_job(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mpi4py import MPI\nimport sys\nMPI.COMM_WORLD.Barrier()\nMPI.COMM_WORLD.rank or sys.exit(7)\nMPI.COMM_WORLD.Barrier()\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-m", "mpi4py.run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 7 and "MPI_Abort" in done.stderr and "Traceback" not in done.stderr


def test_an_operation_that_a_number_led_to_has_no_function_to_pickle() -> None:
    op = MPI.Op.Create(print)
    try:
        assert pickle.loads(pickle.dumps(op)) != op
        with pytest.raises(ValueError, match="found by its number"):
            pickle.dumps(MPI.Op.fromhandle(op.handle))
        assert pickle.loads(pickle.dumps(MPI.Op.fromhandle(MPI.SUM.handle))) == MPI.SUM
    finally:
        op.Free()

"""Sessions: beside MPI, without it, before and after it, several at once and one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI


@pytest.mark.ranks(1, 2, 3, 5)
def test_communicators_without_a_parent(comm: Any) -> None:
    """Of all ranks and of one, of several sessions, made in the same order by their members alone."""
    first, second = MPI.Session.Init(), MPI.Session.Init()
    assert first != second and first == MPI.Session(first) and first
    group = first.Create_group("mpi://WORLD")
    assert MPI.Group.Compare(group, comm.group) == MPI.IDENT
    world = MPI.Intracomm.Create_from_group(group, "tests.world")
    again = MPI.Intracomm.Create_from_group(second.Create_group("MPI://world"), "tests.world")
    own = MPI.Intracomm.Create_from_group(MPI.Group.Create_from_session_pset(second, "mpi://SELF"))
    assert (world.rank, world.size, own.rank, own.size) == (comm.rank, comm.size, 0, 1)
    total = np.zeros(3)
    world.Allreduce(np.full(3, comm.rank + 1.0), total)
    assert (total == comm.size * (comm.size + 1) / 2).all()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = again.isend(("again", comm.rank), right, 3)
    assert world.sendrecv(("world", comm.rank), right, 3, source=left) == ("world", left)
    assert again.recv(source=left, tag=3) == ("again", left)
    request.wait()
    even = MPI.Intracomm.Create_from_group(group.Incl(range(0, comm.size, 2)), "even")
    assert bool(even) == (comm.rank % 2 == 0)
    if even:
        assert even.allgather(comm.rank) == list(range(0, comm.size, 2))
        even.Free()
    for made in (own, again, world):
        made.Free()
    second.Finalize()
    first.Finalize()
    assert first == second == MPI.SESSION_NULL
    assert comm.allreduce(1) == comm.size


THREADS = """
import sys, threading
sys.setswitchinterval(1e-6)
failed = []

def own_turn(k):
    try:
        for _ in range(20):
            turn(f"{k}")
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=own_turn, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""


@pytest.mark.ranks(2)
def test_the_buffer_of_a_session(comm: Any) -> None:
    session = MPI.Session.Init()
    world = MPI.Intracomm.Create_from_group(session.Create_group("mpi://WORLD"))
    with pytest.raises(MPI.Exception) as caught:
        world.Bsend(np.zeros(4), 1 - comm.rank)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    attached = bytearray(1000 + MPI.BSEND_OVERHEAD)
    session.Attach_buffer(attached)
    world.Bsend(np.full(4, comm.rank), 1 - comm.rank)
    found = np.zeros(4, int)
    world.Recv(found, 1 - comm.rank)
    assert (found == 1 - comm.rank).all()
    session.Flush_buffer()
    session.Iflush_buffer().Wait()
    assert session.Detach_buffer() is attached
    world.Free()
    session.Finalize()


@pytest.mark.ranks(1)
def test_bad_calls(comm: Any) -> None:
    session = MPI.Session.Init()
    bad = [
        (MPI.ERR_ARG, lambda: session.Create_group("mpi://NOBODY")),
        (MPI.ERR_ARG, lambda: session.Get_pset_info("")),
        (MPI.ERR_ARG, lambda: session.Get_nth_pset(2)),
        (MPI.ERR_ARG, lambda: session.Get_nth_pset(-1)),
        (MPI.ERR_ARG, lambda: MPI.Intracomm.Create_from_group(comm.group, "x" * 257)),
        (MPI.ERR_SESSION, lambda: MPI.SESSION_NULL.Get_info()),
        (MPI.ERR_SESSION, lambda: MPI.Session().Finalize()),
        (MPI.ERR_SESSION, lambda: MPI.Session().Get_num_psets()),
    ]
    for error_class, call in bad:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == error_class
    for call in (
        lambda: MPI.Group.Create_from_session_pset(comm, "mpi://WORLD"),
        lambda: MPI.Intracomm.Create_from_group(comm.group, 5),
        lambda: MPI.Session.Init({}),
    ):
        with pytest.raises(TypeError):
            call()
    MPI.Intracomm.Create_from_group(comm.group, b"bytes").Free()
    copy = MPI.Session(session)
    session.Finalize()
    with pytest.raises(MPI.Exception) as caught:
        copy.Finalize()
    assert caught.value.Get_error_class() == MPI.ERR_SESSION


@pytest.mark.ranks(1)
def test_error_handlers(comm: Any) -> None:
    seen = []
    handler = MPI.Session.Create_errhandler(lambda session, code: seen.append(MPI.Get_error_class(code)))
    session = MPI.Session.Init(errhandler=handler)
    assert session.Get_errhandler() == handler
    with pytest.raises(MPI.Exception):
        session.Create_group("mpi://NOBODY")
    assert seen == [MPI.ERR_ARG]
    session.Set_errhandler(MPI.ERRORS_RETURN)
    session.Call_errhandler(MPI.ERR_OTHER)
    assert seen == [MPI.ERR_ARG]
    session.Finalize()


ROUND = """
def turn(k):
    session = MPI.Session.Init()
    comm = MPI.Intracomm.Create_from_group(session.Create_group("mpi://WORLD"), f"round {k}")
    assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
    comm.Free()
    session.Finalize()
"""

PROGRAMS = {
    "without MPI": """
for k in range(3):
    turn(k)
    assert not MPI.Is_initialized() and not MPI.Is_finalized()
""",
    "before MPI": """
turn(0)
MPI.Init()
assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size and MPI.Is_initialized()
turn(1)
MPI.Finalize()
assert MPI.Is_finalized()
""",
    "around MPI": """
session = MPI.Session.Init()
MPI.Init()
comm = MPI.Intracomm.Create_from_group(session.Create_group("mpi://WORLD"))
assert MPI.COMM_WORLD.allreduce(1) == comm.size
MPI.Finalize()
assert MPI.Is_finalized() and not MPI.COMM_WORLD._state.is_valid
for _ in range(3):
    assert comm.allreduce(1) == comm.size
comm.Free()
session.Finalize()
try:
    MPI.Session.Init()
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_OTHER
else:
    raise AssertionError("a session began after the end")
""",
    "in threads": THREADS,
    "left open": """
session = MPI.Session.Init()
comm = MPI.Intracomm.Create_from_group(session.Create_group("mpi://WORLD"))
comm.Barrier()
""",
}


@pytest.mark.parametrize("topology", ["machine", "nolocal"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_rounds(program: str, topology: str, tmp_path: Path) -> None:
    code = f"import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n{ROUND}{PROGRAMS[program]}\nprint('done')"
    script = tmp_path / "program.py"
    script.write_text(code)
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "3", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NCCLX_MPI_TOPOLOGY": topology})
    assert done.returncode == 0 and done.stdout.split() == ["done"] * 3 and "rank" not in done.stderr, done.stderr

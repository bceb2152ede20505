"""The thread that makes progress while a rank computes: what moves then, that it sleeps when nothing is pending, and how it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.p2p import progress_thread
from ncclx_mpi.p2p.progress_thread import ProgressThread

WHERE = ["anywhere", "named"]
LARGE = 1 << 19
"""Elements: 4 MiB, which a receiver and, on nodes of one rank, a sender has to move."""


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Compute until a condition holds: no call of MPI."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(condition())


@contextlib.contextmanager
def progressing(where: str = "anywhere") -> Iterator[ProgressThread]:
    """Have the thread, where the rank may run, or on a processor of which there is one for all ranks."""
    thread = ProgressThread(runtime.engine(), () if where == "anywhere" else (min(os.sched_getaffinity(0)),))
    try:
        yield thread
    finally:
        thread.stop()


def sign_of(comm: Any) -> Path:
    """A file that is not there yet, the same for all ranks."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    return Path(folder) / "sign"


def leave(sign: Path) -> None:
    """Take the file away again."""
    sign.unlink()
    sign.parent.rmdir()


def is_asleep() -> bool:
    """Whether the thread waits for something that is pending."""
    return runtime.engine().word("rouse") != 0


def receive_large(comm: Any, sign: Path) -> None:
    """Rank 0 receives and only computes: the sender is let go."""
    if comm.rank == 0:
        box = np.zeros(LARGE)
        request = comm.Irecv(box, 1)
        assert until(sign.exists), "the sender waits for a receiver that computes"
        request.Wait()  # the sender may have learnt of it first
        assert (box == np.arange(LARGE) + 1000).all()
    else:
        comm.Send(np.arange(LARGE) + 1000.0, 0)
        sign.touch()


def send_large(comm: Any, sign: Path) -> None:
    """Rank 0 sends and only computes: the receiver gets it all."""
    if comm.rank == 0:
        request = comm.Isend(np.arange(LARGE) + 0.5, 1)
        assert until(sign.exists), "the receiver waits for a sender that computes"
        request.Wait()
    else:
        box = np.zeros(LARGE)
        comm.Recv(box, 0)
        assert (box == np.arange(LARGE) + 0.5).all()
        sign.touch()


def exchanged(comm: Any, where: str, exchange: Callable[[Any, Path], None]) -> None:
    """Exchange something twice, from the sleep of the thread on."""
    with progressing(where):
        for _ in range(2):
            sign = sign_of(comm)
            assert until(is_asleep)
            exchange(comm, sign)
            comm.Barrier()
            if comm.rank == 0:
                leave(sign)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("exchange", [receive_large, send_large])
def test_large_messages(comm: Any, where: str, exchange: Callable[[Any, Path], None]) -> None:
    exchanged(comm, where, exchange)


@pytest.mark.ranks(2, topology="vnode:1")
@pytest.mark.parametrize("exchange", [receive_large, send_large])
def test_large_messages_between_nodes(comm: Any, exchange: Callable[[Any, Path], None]) -> None:
    exchanged(comm, "anywhere", exchange)


@MPI.Op.Create
def plus(source: Any, target: Any, _datatype: Any) -> None:
    """A sum in Python."""
    numbers = np.frombuffer(target)
    numbers += np.frombuffer(source)


def started(comm: Any, name: str) -> tuple[Any, Any, Any]:
    """A non-blocking collective, where its result will be, and what that is: element k of rank r is k + 1000 r, and so on."""
    call, _, size = name.partition(" ")
    count = int(size.partition(" ")[0] or 0)
    own = np.arange(count * comm.size) + 1000.0 * comm.rank
    every = np.array([np.arange(count * comm.size) + 1000.0 * rank for rank in range(comm.size)])
    if call == "Iallreduce":
        result = np.zeros(count * comm.size)
        return comm.Iallreduce(own, result, plus if "Python" in name else MPI.SUM), result, every.sum(0)
    if call == "Ialltoall":
        result = np.zeros((comm.size, count))
        return comm.Ialltoall(own, result), result, every[:, comm.rank * count :][:, :count]
    result = np.zeros((comm.size, count * comm.size))
    return comm.Iallgather(own, result), result, every


COLLECTIVES = ["Iallreduce 50000", "Iallreduce 50000 in Python", "Ialltoall 100000", "Iallgather 50000"]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(comm: Any, name: str) -> None:
    """Rank 1 starts it and computes: those who wait get its part, and it has all of theirs in the end."""
    signs = [sign_of(comm) for _ in range(comm.size)]
    with progressing():
        request, result, expected = started(comm, name)
        if comm.rank == 1:
            assert until(lambda: signs[0].exists() and signs[2].exists()), "others wait for a rank that computes"
        request.Wait()
        signs[comm.rank].touch()
        assert np.array_equal(result, expected)
        comm.Barrier()
    if comm.rank == 0:
        for sign in signs:
            leave(sign)


@pytest.mark.ranks(2)
def test_persistent_requests(comm: Any) -> None:
    """Started again and again; what arrived is what was sent."""
    box, array, total = np.zeros(LARGE), np.zeros(LARGE), np.zeros(1)
    with progressing("named"):
        requests = [comm.Allreduce_init(np.full(1, comm.rank + 5.0), total)]
        requests.append(comm.Recv_init(box, 1) if comm.rank == 0 else comm.Send_init(array, 0))
        for turn in range(5):
            array[:] = turn
            MPI.Prequest.Startall(requests)
            if comm.rank == 0:
                assert until(lambda turn=turn: box[-1] == turn)
            MPI.Request.Waitall(requests)
            assert total[0] == 11 and (comm.rank or (box == turn).all())
            total[0] = 0
            comm.Barrier()
        for request in requests:
            request.Free()


@pytest.mark.ranks(2)
def test_it_sleeps_when_nothing_is_pending(comm: Any) -> None:
    """No turn of it in a while in which nothing is pending, whatever was before."""
    with progressing() as thread:
        pending = comm.Irecv(np.zeros(1), 1 - comm.rank, 7)
        assert until(lambda: not is_asleep())
        comm.Barrier()  # the message would let the other rank's thread sleep again, perhaps before that one looks
        comm.Send(np.zeros(1), 1 - comm.rank, 7)
        pending.Wait()
        assert comm.sendrecv(comm.rank, 1 - comm.rank) == 1 - comm.rank
        status = Path(f"/proc/self/task/{thread._thread.native_id}/status")

        def turns() -> list[str]:
            return [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches")]

        assert until(lambda: is_asleep() and "S (sleeping)" in status.read_text())
        before = turns()
        time.sleep(0.1)
        assert before and turns() == before and is_asleep()
        comm.Barrier()


@pytest.mark.ranks(1)
def test_a_receive_that_is_cancelled_is_not_pending(comm: Any) -> None:
    with progressing():
        request = comm.Irecv(np.zeros(1), 0, 3)
        assert until(lambda: not is_asleep())
        request.Cancel()
        request.Wait()
        assert until(is_asleep)


@pytest.mark.ranks(1)
def test_it_runs_on_its_processor(comm: Any) -> None:
    """The ranks of a node take the named ones in turn; the rank itself stays where it is."""
    allowed = os.sched_getaffinity(0)
    with progressing("named") as thread:
        assert os.sched_getaffinity(thread._thread.native_id) == {min(allowed)} and os.sched_getaffinity(0) == allowed
    with pytest.raises(MPI.Exception, match="names processor 99999, where a thread of this process may not run"):
        ProgressThread(runtime.engine(), (99999,))


@pytest.mark.ranks(1)
def test_a_thread_that_cannot_be_started_leaves_nothing(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(progress_thread.threading.Thread, "start", refused)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(MPI.Exception, match="the thread of NCCLX_MPI_PROGRESS_THREAD cannot be started: can't start new thread"):
        ProgressThread(runtime.engine())
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_setting() -> None:
    found = {text: progress_thread.processors(text) for text in ("off", "", "on", "YES", "3", " 4-6,1 ", "0")}
    assert found == {"off": None, "": None, "on": (), "YES": (), "3": (3,), " 4-6,1 ": (1, 4, 5, 6), "0": (0,)}
    for text in ("maybe", "5-3", "-1", "1,", "1-2-3", "1.5", "123456789"):
        with pytest.raises(MPI.Exception, match="neither on, off, nor processors") as raised:
            progress_thread.processors(text)
        assert raised.value.Get_error_class() == MPI.ERR_OTHER


PROGRAM = """
import os, signal, sys, threading
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
names = sorted(thread.name for thread in threading.enumerate())
assert "ncclx_mpi-progress" in names, names
pending = comm.Irecv(np.zeros(1 << 20), 1 - comm.rank, 99)
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.Barrier()
how = sys.argv[1]
if how == "raise" and comm.rank == 0:
    raise RuntimeError("planted")
if how == "kill" and comm.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if how == "finalize":
    pending.Cancel()
    pending.Wait()
    MPI.Finalize()
    assert "ncclx_mpi-progress" not in [thread.name for thread in threading.enumerate()]
elif how != "end":
    pending.Wait()
print("over")
"""


def run(setting: str, how: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of the program."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(PROGRAM)
        file.flush()
        command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", file.name, how]
        variables = {**os.environ, "NCCLX_MPI_PROGRESS_THREAD": setting}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize("how", ["end", "finalize", "raise", "kill"])
def test_however_a_program_ends(how: str) -> None:
    """With a receive that nobody serves, after a fork, and after a death that the other rank learns of."""
    done = run("on", how)
    story = f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    if how in ("end", "finalize"):
        assert (done.returncode, done.stdout, done.stderr) == (0, "over\nover\n", ""), story
    else:
        assert done.returncode and "over" not in done.stdout and ("planted" in done.stderr or how == "kill"), story
    assert not [name for name in os.listdir("/dev/shm") if "ncclx" in name]


def test_a_setting_that_is_none() -> None:
    done = run("maybe", "end")
    assert done.returncode and "NCCLX_MPI_PROGRESS_THREAD='maybe' is neither on, off, nor processors" in done.stderr
    done = run("99999", "end")
    assert done.returncode and "NCCLX_MPI_PROGRESS_THREAD names processor 99999" in done.stderr

"""Nothing hangs and nothing is left, whoever dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest
from programs import all_gone, command, environment, lines_of, run_code, start

SHOW_AND_BLOCK = (
    "import os, subprocess, sys; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
    "child = subprocess.Popen(['sleep', '600'])\n"
    "print(os.getpid(), child.pid)\n"
    "comm.recv(source=(comm.rank + 1) % comm.size)"
)


def _start_blocked(nranks):
    process = start("run", "-n", str(nranks), "-c", SHOW_AND_BLOCK)
    pairs = [tuple(map(int, line.split())) for line in lines_of(process, nranks)]
    time.sleep(0.2)
    return process, [pid for pid, _ in pairs], [child for _, child in pairs]


def test_killed_rank():
    process, ranks, children = _start_blocked(3)
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 137
    assert time.monotonic() - began < 2
    assert "SIGKILL" in stderr
    assert stderr.count("ERR_PROC_FAILED") + stderr.count("died; look at") >= 2
    assert all_gone(ranks + children, 2)


def test_killed_launcher():
    process, ranks, children = _start_blocked(3)
    process.kill()
    process.communicate(timeout=20)
    assert all_gone(ranks + children, 2)


def test_ctrl_c():
    process, ranks, children = _start_blocked(2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert "KeyboardInterrupt" in stderr
    assert all_gone(ranks + children, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_job(number):
    before = signal.signal(number, signal.SIG_DFL)  # below nohup it is ignored, and children inherit that
    process, ranks, children = _start_blocked(2)
    signal.signal(number, before)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert all_gone(ranks + children, 2)


def test_signals_reach_handlers():
    code = (
        "import signal, time; from mpi4py import MPI\n"
        "seen = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "print('handled')"
    )
    process = start("run", "-n", "2", "-c", code)
    assert lines_of(process, 2) == ["ready"] * 2
    process.send_signal(signal.SIGUSR1)
    stdout, _ = process.communicate(timeout=20)
    assert stdout == "handled\n" * 2 and process.returncode == 0


def test_rank_that_ignores_the_end_is_killed():
    code = (
        "import os, signal, time; from mpi4py import MPI\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if MPI.COMM_WORLD.rank == 0: MPI.COMM_WORLD.recv(); os._exit(4)\n"  # the other one is in no call that needs it
        "MPI.COMM_WORLD.send(None, 0)\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    result = run_code(2, code)
    assert result.returncode == 4
    assert 4 < time.monotonic() - began < 40


def test_survivors_get_time_to_clean_up():
    code = (
        "import os, time; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        "if comm.rank == 0: os.kill(os.getpid(), 9)\n"
        "try: comm.recv(source=0)\n"
        "except MPI.Exception as error:\n"
        "    assert error.Get_error_class() == MPI.ERR_PROC_FAILED; time.sleep(0.5); print('cleaned up')"
    )
    result = run_code(2, code)
    assert result.stdout == "cleaned up\n" and result.returncode == 137


def test_abort_ends_everybody_at_once():
    code = (
        "import time; from mpi4py import MPI; comm = MPI.COMM_WORLD; comm.Barrier()\n"
        "if comm.rank == 1: comm.Abort(7)\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    result = run_code(3, code)
    assert result.returncode == 7 and result.stderr.endswith("\nncclx run: aborted with code 7\n")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_an_abort_for_a_death_names_the_death(number):
    """The rank that aborts knows no more than that one died; why, only the launcher sees."""
    code = (
        "import os; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        f"if comm.rank == 0: os.kill(os.getpid(), {int(number)})\n"
        "try: comm.recv(source=0)\n"
        "except MPI.Exception: comm.Abort(3)"
    )
    result = run_code(2, code)
    assert result.returncode == 3
    assert re.search(rf"\nncclx run: rank 0 \(process \d+\) died of {number.name}; then aborted with code 3\n$", result.stderr)


def test_unhandled_exception_ends_the_job():
    code = "from mpi4py import MPI; comm = MPI.COMM_WORLD\nif comm.rank == 1: raise ValueError('mine')\ncomm.Barrier()"
    began = time.monotonic()
    result = run_code(3, code)
    assert result.returncode == 1 and "ValueError: mine" in result.stderr
    assert time.monotonic() - began < 30


def test_closed_output_ends_the_job():
    process = start("run", "-n", "2", "-c", "import time\nwhile True: print('x'); time.sleep(0.01)")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(10) == 141


@pytest.mark.parametrize("end", ["\\n", ""], ids=["lines", "no lines"])
def test_a_full_disk_ends_the_job(end):
    code = f"import time; print('x', end='{end}', flush=True); time.sleep(60)"
    began = time.monotonic()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("run", "-n", "2", "-c", code), stdout=full, stderr=subprocess.PIPE, text=True, env=environment()
        )
    assert (done.returncode, done.stderr) == (1, "ncclx run: what the ranks write cannot be passed on: No space left on device\n")
    assert time.monotonic() - began < 30


ASKING = [
    "comm.Irecv(box, source=1).Test",
    "comm.irecv(source=1).test",
    "start(comm.Recv_init(box, source=1)).Test",
    "partial(MPI.Request.Testall, [comm.Irecv(box, source=1), comm.Irecv(box, source=1)])",
    "partial(MPI.Request.testall, [comm.irecv(source=1)])",
    "partial(MPI.Request.Testany, [comm.Irecv(box, source=1)])",
    "partial(MPI.Request.testany, [comm.irecv(source=1)])",
    "partial(MPI.Request.Testsome, [comm.Irecv(box, source=1)])",
    "partial(MPI.Request.testsome, [comm.irecv(source=1)])",
    "comm.Irecv(box, source=1).Get_status",
    "partial(MPI.Request.Get_status_any, [comm.Irecv(box, source=1)])",
    "partial(MPI.Request.Get_status_all, [comm.Irecv(box, source=1)])",
    "partial(MPI.Request.Get_status_some, [comm.irecv(source=1)])",
    "partial(comm.Iprobe, 1)",
    "partial(comm.improbe, 1)",
    "comm.Ibarrier().Test",
    "window.Test",
]


def test_who_asks_again_and_again_learns_of_a_death():
    """Each way of asking is tried once before the death, so that it is compiled; then none says no for ever."""
    code = (
        "import os, signal; from functools import partial; import numpy as np; from mpi4py import MPI\n"
        "comm, box = MPI.COMM_WORLD, np.zeros(3)\n"
        "def start(request): request.Start(); return request\n"
        "window = MPI.Win.Create(box, comm=comm)\n"
        "if comm.rank == 1: comm.recv(source=0); os.kill(os.getpid(), signal.SIGKILL)\n"
        "window.Post(comm.group.Incl([1]))\n"
        f"calls = [{', '.join(ASKING)}]\n"
        "for call in calls: call()\n"
        "comm.send('myself', 0); comm.recv(source=0); comm.send('die', 1)\n"
        "for number, call in enumerate(calls):\n"
        "    try:\n"
        "        while True: call()\n"
        "    except MPI.Exception as error:\n"
        "        print(number, error.Get_error_class() == MPI.ERR_PROC_FAILED, 'because rank 1 died' in str(error))\n"
        "try: comm.recv()\n"
        "except MPI.Exception as error: print('recv of an object from any rank, any tag was given up' in str(error))"
    )
    result = run_code(2, code)
    expected = [f"{number} True True" for number in range(len(ASKING))]
    assert result.stdout.splitlines() == [*expected, "True"], result.stderr


def test_a_full_disk_that_is_met_at_the_end():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("run", "-n", "1", "-c", "print('x', end='')"), stdout=full, stderr=subprocess.PIPE, text=True, env=environment()
        )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize("settings", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_nobody_can_be_told(settings):
    words, env = command("run", "-n", "2", "-c", "1 / 0"), environment(**settings)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, env=env)
    assert (done.returncode, done.stdout) == (1, b"")


def test_nothing_is_left_in_shared_memory():
    before = set(os.listdir("/dev/shm"))
    process, ranks, _ = _start_blocked(2)
    assert not _what_stays(before)
    process.kill()
    process.communicate(timeout=20)
    assert all_gone(ranks, 2)
    assert not _what_stays(before)


def _what_stays(before):
    """Names in shared memory that were not there before; other programs' come and go, those of blocked ranks would stay."""
    end = time.monotonic() + 10
    while (found := set(os.listdir("/dev/shm")) - before) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def test_failing_rank_frees_its_own_threads():
    code = (
        "import threading; from mpi4py import MPI; comm = MPI.COMM_WORLD; comm.Barrier()\n"
        "if comm.rank == 0:\n"
        "    threading.Thread(target=comm.recv, kwargs={'source': 1}).start(); 1 / 0\n"
        "comm.recv(source=0)"
    )
    result = run_code(2, code)
    assert result.returncode == 1 and "ZeroDivisionError" in result.stderr

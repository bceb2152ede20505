"""The launcher is not kept by who reads what the ranks write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from programs import HOME, all_gone, environment, is_running, start

from ncclx_mpi.launch.outlet import Outlet

FLOOD = (
    "import os, sys, threading, time\n"
    "os.write(1, b'%d\\n' % os.getpid())\n"
    "os.set_blocking(2, False)\n"
    "end = time.monotonic() + 0.5\n"
    "while time.monotonic() < end:\n"
    "    try: os.write(2, b'x' * 8191 + b'\\n'); end = time.monotonic() + 0.5\n"
    "    except BlockingIOError: time.sleep(0.01)\n"
    "os.write(1, b'stuck\\n')\n"
)
"""Writes until nobody has taken anything for half a second."""


@pytest.fixture
def python():
    """Runs code in an interpreter of its own; modules from a folder come first."""

    def run(code, folder=""):
        path = os.pathsep.join(filter(None, [str(folder), HOME]))
        return subprocess.run(
            [sys.executable, "-c", code], env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=60, check=False
        )

    return run


def end(processes):
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def stuck():
    """Starts a job of two ranks that have filled all pipes to a reader of stderr that does not read."""
    started = []

    def start_one(code, *options):
        process = start("run", "-n", "2", *options, "-c", FLOOD + code)
        started.append(process)
        lines = [process.stdout.readline() for _ in range(4)]
        assert sorted(lines)[2:] == ["stuck\n"] * 2
        return process, [int(line) for line in lines if line != "stuck\n"]

    yield start_one
    end(started)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_heeded_while_nobody_reads(stuck, number):
    process, ranks = stuck("time.sleep(60)")
    process.send_signal(number)
    assert all_gone(ranks, 2)
    assert process.wait(8) == 128 + number


def test_timeout_is_heeded_while_nobody_reads(stuck):
    process, ranks = stuck("time.sleep(60)", "--timeout", "4")
    assert all_gone(ranks, 8)
    assert process.wait(8) == 124


def test_a_death_is_noticed_while_nobody_reads(stuck):
    code = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), 9)\nMPI.COMM_WORLD.recv(source=1)"
    process, ranks = stuck(code)
    assert all_gone(ranks, 8)
    assert process.wait(8) == 137


def test_a_late_reader_gets_everything():
    process = start("run", "-n", "2", "-c", "for i in range(40000): print(f'{i:0100}')")
    time.sleep(0.5)
    assert process.poll() is None
    stdout, stderr = process.communicate(timeout=30)
    assert stdout.count("\n") == 80000 and not stderr
    assert process.returncode == 0


def test_ranks_wait_for_a_reader_that_does_not_come(stuck):
    """What the launcher keeps for it is bounded."""
    process, ranks = stuck("time.sleep(60)")
    resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert resident < 1 << 30
    assert all(map(is_running, ranks))


IGNORES = (
    "import os, signal, time; from mpi4py import MPI\n"
    "for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, lambda *_: os.write(1, b'got it\\n'))\n"
    "os.write(1, b'%d\\n' % os.getpid())\n"
    "while True: time.sleep(60)"
)


HURRY = (
    "import sys; from ncclx_mpi.launch import job; job._HEED_SECONDS = {}; from ncclx_mpi.cli.main import main; sys.exit(main())"
)


@pytest.fixture
def ignoring():
    """Starts two ranks that do not end on the signals that are to end them."""
    started = []

    def start_one(seconds):
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup it is ignored, and children inherit that
        words = [sys.executable, "-c", HURRY.format(seconds), "run", "-n", "2", "-c", IGNORES]
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        signal.signal(signal.SIGHUP, before)
        return process, [int(process.stdout.readline()) for _ in range(2)]

    yield start_one
    end(started)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_kills_ranks_that_do_not_heed_the_first(ignoring, second):
    process, ranks = ignoring(60)
    process.send_signal(signal.SIGTERM)
    assert [process.stdout.readline() for _ in range(2)] == ["got it\n"] * 2
    assert all(map(is_running, ranks))
    process.send_signal(second)
    assert all_gone(ranks, 2)
    assert process.wait(5) == 128 + second


def test_ranks_that_do_not_heed_a_signal_are_killed_in_the_end(ignoring):
    process, ranks = ignoring(0.5)
    process.send_signal(signal.SIGHUP)
    assert [process.stdout.readline() for _ in range(2)] == ["got it\n"] * 2
    assert all_gone(ranks, 3)
    assert process.wait(5) == 128 + signal.SIGHUP


NO_FORK = (
    "import errno, os, sys; from ncclx_mpi import process\n"
    "real, made = process.fork, []\n"
    "def fork():\n"
    "    if len(made) == {allowed}: raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')\n"
    "    made.append(real()); return made[-1]\n"
    "process.fork = fork\n"
    "from ncclx_mpi.cli.main import main\n"
    "status = main(['run', '-n', '3', '-c', 'import time; time.sleep(60)'])\n"
    "for pid in made:\n"
    "    try: os.kill(pid, 0); print('orphan')\n"
    "    except ProcessLookupError: pass\n"
    "sys.exit(status)\n"
)


@pytest.mark.parametrize(("allowed", "what"), [(0, "the process that watches over them"), (1, "rank 0"), (3, "rank 2")])
def test_ranks_that_cannot_be_forked(python, allowed, what):
    done = python(NO_FORK.format(allowed=allowed))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"ncclx run: 3 ranks cannot be started: {what} cannot be forked (Resource temporarily unavailable); the limit of processes "
        "is too low (`ulimit -u`, or that of the container or batch job: pids.max)\n"
    )


NO_FORK_IN_SERVER = (
    "import errno; from ncclx_mpi import process\n"
    "def refuse(): raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')\n"
    "process.fork = refuse\n"
)


def test_launch_run_says_that_ranks_cannot_be_forked(python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'ncclx_mpi.launch.server' in sys.orig_argv:\n"
        + "".join(f"    {line}\n" for line in NO_FORK_IN_SERVER.splitlines())
    )
    code = (
        "from ncclx_mpi import launch\n"
        "for _ in range(2):\n"
        "    try: launch.run(divmod, 2, 7, 3)\n"
        "    except RuntimeError as error: print(error)"
    )
    done = python(code, tmp_path)
    assert done.stdout.count("2 ranks cannot be started: the process that watches over them cannot be forked") == 2, done.stderr


class TestOutlet:
    def test_it_keeps_the_order_and_does_not_wait(self):
        gate, taken = threading.Event(), []
        outlet = Outlet(lambda piece: (gate.wait(), taken.append(bytes(piece))))
        texts = [bytes([65 + number]) * 50_000 for number in range(26)]
        for text in texts:
            outlet.put(text)
        assert outlet.is_busy and outlet.is_full and not taken
        gate.set()
        assert outlet.finish(5)
        assert b"".join(taken) == b"".join(texts)
        assert not outlet.is_busy and not outlet.is_full
        outlet.put(b"again")
        assert outlet.finish(5) and taken[-1] == b"again"

    def test_what_nobody_takes_is_given_up(self):
        gate = threading.Event()
        outlet = Outlet(lambda piece: gate.wait())
        began = time.monotonic()
        outlet.put(b"x")
        assert not outlet.finish(0.1)
        assert not outlet.finish(None, time.monotonic() + 0.1)
        assert 0.2 <= time.monotonic() - began < 2
        gate.set()
        assert outlet.finish(None)

    def test_what_goes_wrong_is_told(self):
        gate = threading.Event()

        def fail(piece):
            gate.wait()
            raise OSError(28, "No space left on device")

        outlet = Outlet(fail)
        outlet.put(b"x")
        gate.set()
        assert outlet.finish(5)
        with pytest.raises(OSError, match="No space left"):
            outlet.check()
        with pytest.raises(OSError, match="No space left"):
            outlet.put(b"y")

    def test_without_threads_it_writes_itself(self, monkeypatch):
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        taken = []
        outlet = Outlet(lambda piece: taken.append(bytes(piece)))
        outlet.put(b"x")
        outlet.put(b"y")
        assert taken == [b"x", b"y"] and outlet.finish(None)

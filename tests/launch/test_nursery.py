"""Launchers that the guard of a job forks for processes that ranks start: as if the rank had started them, and ended with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi.bootstrap import nursery
from tests.launch.programs import all_gone, run, start

LOOKS = """
import json, os, resource, signal, sys
umask = os.umask(0)
os.umask(umask)
print(json.dumps({
    "folder": os.getcwd(), "mask": umask, "processors": sorted(os.sched_getaffinity(0)), "mark": os.environ.get("MARK"),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "group": os.getpgrp(), "session": os.getsid(0),
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "path": sys.path, "arguments": sys.argv, "flags": list(sys.flags), "kept": len(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
}), flush=True)
"""
CHILD = (
    LOOKS
    + """
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
parent.Barrier()
parent.Disconnect()
"""
)
PARENT = """
import json, os, sys
from mpi4py import MPI
from ncclx_mpi.api import spawning
exec(sys.argv[1])
children = MPI.COMM_SELF.Spawn(sys.executable, ["-c", sys.argv[2]], 2)
way = type(spawning._started[-1]).__name__
children.Barrier()
children.Disconnect()
print(json.dumps({"way": way, "status": spawning._started[-1].wait()}), flush=True)
"""
"""Does what it is told first, then starts two that do what they are told."""
WAYS = {"forked": "pass", "started": "os.environ['ANOTHER'] = 'yes'"}
"""What has the launcher of the children forked, or started anew."""


def seen(before: str, child: str = CHILD, **variables: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What two started processes see of themselves, and what their parent says."""
    found = run("run", "-n", "1", "-c", PARENT, before, child, timeout=100, **variables)
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    return [line for line in lines if "way" not in line], next(line for line in lines if "way" in line)


@pytest.mark.parametrize(
    "before", ["", "os.chdir('/'); os.umask(0o027)", "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"]
)
def test_both_ways_lead_to_the_same(before: str) -> None:
    forked, started = (seen(f"{before}\n{way}", MARK="here") for way in WAYS.values())
    assert (forked[1], started[1]) == ({"way": "Forked", "status": 0}, {"way": "Popen", "status": 0})
    for each in (*forked[0], *started[0]):
        each["group"] = each["session"] = 0  # of the job
    assert forked[0] == started[0]
    assert len(forked[0]) == 2


def test_streams_are_those_of_the_rank(tmp_path: Path) -> None:
    target = tmp_path / "written"
    redirect = f"fd = os.open({str(target)!r}, os.O_WRONLY | os.O_CREAT); os.dup2(fd, 2)"
    child = CHILD + "print('to the file', file=sys.stderr, flush=True)\n"
    _, said = seen(redirect, child=child)
    assert said["way"] == "Forked"
    assert target.read_text() == "to the file\n" * 2


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_fails_before_it_communicates_is_told(way: str) -> None:
    found = run("run", "-n", "1", "-c", PARENT, WAYS[way], "import sys; sys.exit(7)", timeout=100)
    assert found.returncode != 0
    assert "ended with status 7 before MPI began" in found.stderr


SEVERAL = """
import sys
from mpi4py import MPI
from ncclx_mpi.api import spawning
comm = MPI.COMM_WORLD
for turn in range(5):
    children = MPI.COMM_SELF.Spawn(sys.executable, ["-c", sys.argv[1], str(comm.rank)], 1)
    assert children.recv(source=0) == str(comm.rank)
    children.Disconnect()
assert {type(each).__name__ for each in spawning._started} == {"Forked"}
comm.Barrier()
print("done", flush=True)
"""
ECHO = "import sys; from mpi4py import MPI; p = MPI.Comm.Get_parent(); p.send(sys.argv[1], 0); p.Disconnect()"


def test_ranks_start_processes_at_the_same_time() -> None:
    found = run("run", "-n", "3", "-c", SEVERAL, ECHO, timeout=100)
    assert (found.returncode, found.stdout) == (0, "done\n" * 3), found.stderr


WAITS = """
import os, sys, time
from mpi4py import MPI
from ncclx_mpi.api import spawning
inter = MPI.Comm.Get_parent()
if inter == MPI.COMM_NULL:
    inter = MPI.COMM_WORLD.Spawn(sys.executable, ["-c", sys.argv[1], sys.argv[1]], 2)
    found = inter.gather(None, root=MPI.ROOT)
    launcher = int(open(f"/proc/{found[0]}/stat").read().rpartition(")")[2].split()[1])
    print(type(spawning._started[-1]).__name__, os.getpid(), os.getppid(), launcher, *found, flush=True)
else:
    inter.gather(os.getpid(), root=0)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("killed", ["rank", "launcher of the rank", "forked launcher"])
def test_nothing_is_left_of_started_processes(killed: str) -> None:
    parent = start("run", "-n", "1", "-c", WAITS, WAITS)
    way, *words = parent.stdout.readline().split()
    pids = dict(zip(("rank", "launcher of the rank", "forked launcher", "first", "second"), map(int, words), strict=True))
    assert way == "Forked"
    os.kill(pids[killed], signal.SIGKILL)
    children = [pids[name] for name in ("forked launcher", "first", "second")]
    assert all_gone(children, 60)
    if killed == "forked launcher":
        parent.send_signal(signal.SIGTERM)
    parent.communicate(timeout=100)


def test_an_interrupt_reaches_started_processes() -> None:
    parent = start("run", "-n", "1", "-c", WAITS, WAITS)
    pids = [int(word) for word in parent.stdout.readline().split()[1:]]
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=100)
    assert all_gone(pids, 60)


def test_a_guard_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank starts a launcher then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(nursery, "_HELLO_SECONDS", 0.2)
        nursery.inherit(ours)
        begun = time.monotonic()
        assert nursery.ask({"programs": []}) is None
        assert time.monotonic() - begun < 10
        os.environ["SOMETHING_ELSE"] = "1"
        try:
            assert nursery.ask({}) is None  # and did not ask
        finally:
            del os.environ["SOMETHING_ELSE"]
        message, fds, _, _ = socket.recv_fds(theirs, 1 << 17, 3)
        assert json.loads(message)["folder"] == os.getcwd()
        for fd in fds:
            os.close(fd)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert nursery.ask({"long": "x" * (1 << 18)}) is None
    assert nursery.ask({}) is None
    monkeypatch.setattr(nursery, "_door", None)
    assert nursery.ask({}) is None


CLOSES = """
import os, sys
from mpi4py import MPI
from ncclx_mpi.api import spawning
os.closerange(3, 1000) if sys.argv[2] == "closed" else None
children = MPI.COMM_SELF.Spawn(sys.executable, ["-c", sys.argv[1], "x" * int(sys.argv[2].replace("closed", "1"))], 1)
assert set(children.recv(source=0)) == {"x"}
children.Disconnect()
print(type(spawning._started[-1]).__name__)
"""


@pytest.mark.parametrize("how", ["closed", "150000"])
def test_what_cannot_be_asked_is_started_in_another_way(how: str) -> None:
    """The program has closed all that it did not know, or says more than a message holds."""
    found = run("run", "-n", "1", "-c", CLOSES, ECHO, how, timeout=100)
    assert (found.returncode, found.stdout) == (0, "Popen\n"), found.stderr


def test_who_is_not_wanted_any_more_runs_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        assert not nursery.answer(theirs)

"""Namespaces of a benchmark are gone when it is, however it ends; what it calls of this library is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import HOME, all_gone
from spaces import needs_spaces

CODE = """
import subprocess, sys, time
from namespaces import namespaces

name, seconds = sys.argv[1], float(sys.argv[2])
with namespaces(name, name + "x"):
    inside = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"])
    end = time.monotonic() + 20
    while str(inside.pid) not in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
        assert time.monotonic() < end, "sleep does not get into its namespace"
        time.sleep(0.01)
    print(inside.pid, flush=True)
    time.sleep(seconds)
"""


def spaces_now() -> list[str]:
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in shown.splitlines()]


@needs_spaces
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_they_are_gone_with_all_that_runs_there(number):
    name = f"ncclxbench{os.getpid()}"
    line = [sys.executable, "-c", CODE, name, "600" if number else "0"]
    env = {**os.environ, "PYTHONPATH": str(Path(HOME) / "benchmarks")}
    job = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout is not None
    pid = int(job.stdout.readline())
    if number:
        assert {name, name + "x"} <= {*spaces_now()}
        job.send_signal(number)
    job.communicate(timeout=30)
    assert all_gone([pid], 10)
    end = time.monotonic() + 10
    while {name, name + "x"} & {*spaces_now()}:
        assert time.monotonic() < end
        time.sleep(0.05)


@needs_spaces
def test_what_an_idle_network_costs_can_be_measured():
    line = [sys.executable, str(Path(HOME) / "benchmarks" / "between_hosts.py"), "--only", "idle", "--rounds", "1"]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": HOME}, capture_output=True, text=True, timeout=120, check=False)
    assert [row.split()[:2] for row in done.stdout.splitlines()[1:]] == [["idle", "ping-pong"], ["idle", "allreduce"]], done.stderr

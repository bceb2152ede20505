"""A rank is killed at a random moment of a mixed workload: all others learn of it in time, nothing is left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NRANKS = 4
WORKLOAD = str(Path(__file__).with_name("workload.py"))
LEARN_SECONDS = 2.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    counts = {"machine": 200, "vnode:2": 100} if metafunc.config.getoption("--full") else {"machine": 5, "vnode:2": 4}
    metafunc.parametrize(("topology", "seed"), [(topology, seed) for topology, count in counts.items() for seed in range(count)])


def test_survivors_of_a_random_kill_raise(monkeypatch: pytest.MonkeyPatch, topology: str, seed: int) -> None:
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY", topology)
    choice = random.Random(seed)
    kill_one(seed, victim=choice.randrange(NRANKS), after=choice.uniform(0.0, 0.4))


def kill_one(seed: int, victim: int, after: float) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(NRANKS), "--timeout", "60", WORKLOAD, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout
        lines = [job.stdout.readline() for _ in range(NRANKS)]
        assert all(lines), job.communicate(timeout=90)
        pids = dict(map(read_pid, lines))
        time.sleep(after)
        killed = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        output, errors = job.communicate(timeout=90)
    story = f"seed {seed}, rank {victim} killed after {after:.3f} s\n{output}\n{errors}"
    assert job.returncode == 128 + signal.SIGKILL, story
    seen = {message["rank"]: message for message in map(json.loads, output.splitlines())}
    assert set(seen) == set(range(NRANKS)) - {victim}, story
    for message in seen.values():
        assert message["class"] == message["expected"], story
        assert message["time"] - killed < LEARN_SECONDS, story
    assert not any(is_running(pid) for pid in pids.values()), story
    assert not [name for name in os.listdir("/dev/shm") if "ncclx" in name]


def read_pid(line: str) -> tuple[int, int]:
    message = json.loads(line)
    return message["rank"], message["pid"]


def is_running(pid: int) -> bool:
    try:
        return "ncclx_mpi" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False

"""A rank is killed at a random moment of a mixed workload: all others learn of it in time, nothing is left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

NRANKS = 4
WORKLOAD = str(Path(__file__).with_name("workload.py"))
LEARN_SECONDS = 2.0
WORKERS_SECONDS = 5.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_full = metafunc.config.getoption("--full")
    if "topology" in metafunc.fixturenames:
        counts = {"machine": 200, "vnode:2": 100} if is_full else {"machine": 5, "vnode:2": 4}
        metafunc.parametrize(
            ("topology", "seed"), [(topology, seed) for topology, count in counts.items() for seed in range(count)]
        )
    else:
        metafunc.parametrize("seed", range(200 if is_full else 4))


def test_survivors_of_a_random_kill_raise(monkeypatch: pytest.MonkeyPatch, topology: str, seed: int) -> None:
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY", topology)
    choice = random.Random(seed)
    kill_one(seed, victim=choice.randrange(NRANKS), after=choice.uniform(0.0, 0.4))


def test_survivors_among_windows_files_and_workers(seed: int, tmp_path: Path) -> None:
    choice = random.Random(1000 + seed)
    kill_one(seed, choice.randrange(NRANKS), choice.uniform(0.0, 0.4), str(tmp_path / "written"))


def kill_one(seed: int, victim: int, after: float, *words: str) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(NRANKS), "--timeout", "60", WORKLOAD, str(seed), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout
        lines = [job.stdout.readline() for _ in range(NRANKS + bool(words))]
        assert all(lines), job.communicate(timeout=90)
        said = [json.loads(line) for line in lines]
        pids = {message["rank"]: message["pid"] for message in said if "rank" in message}
        workers = [pid for message in said for pid in message.get("workers", ())]
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
    assert bool(workers) == bool(words), story
    assert all_end(workers), story
    assert not [name for name in os.listdir("/dev/shm") if "ncclx" in name]


def all_end(pids: Sequence[int]) -> bool:
    """Do processes end that nobody has killed, but those have gone who started them?"""
    end = time.monotonic() + WORKERS_SECONDS
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    try:
        return "ncclx_mpi" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False

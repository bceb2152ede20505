"""Four threads a rank in all kinds of messages beside finalizers, a profiler and signals: a minute and more, twelve with ``--full``."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = str(Path(__file__).with_name("soak.py"))


@pytest.mark.parametrize(
    ("nranks", "interval", "progress"), [*itertools.product((2, 3), (1e-6, 0.005), ("off",)), (2, 0.005, "on")]
)
def test_soak(nranks: int, interval: float, progress: str, full: bool) -> None:
    seconds, seed = 150 if full else 15, random.randrange(1 << 30) if full else 1
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), "--timeout", str(seconds + 60)]
    command += [SOAK, str(seconds), str(seed), str(interval)]
    variables = {**os.environ, "NCCLX_MPI_PROGRESS_THREAD": progress}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds + 90)
    story = f"seed {seed}, status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 and done.stdout.startswith("soaked") and not done.stderr, story
    assert not [name for name in os.listdir("/dev/shm") if "ncclx" in name]

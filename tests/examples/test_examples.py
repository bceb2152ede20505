"""Every example runs under ``ncclx run`` and prints the same on any number of ranks, beside what names the ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "pi.py": ["pi is 3.1415926536"],
    "heat2d.py": ["96 x 96 cells, 200 steps", "warmest cell 79.343411, mean 10.170955, difference to one process 0.0e+00"],
    "heat3d.py": [
        "40 x 40 x 40 cells, 60 steps, arrays of numpy",
        "warmest cell 84.936178, mean 4.572715, difference to one process 0.0e+00",
    ],
    "halo_exchange.py": [
        "96 x 96 cells, 200 steps",
        "coldest cell 1.778020, mean 28.140577, difference to one process 0.0e+00",
    ],
    "moe_decode.py": [
        "128 tokens of 64, 8 experts, the best 2 each, 50 steps, arrays of numpy",
        "at most 128 tokens for one expert, difference to one process 0.0e+00",
    ],
    "kmeans.py": [
        "20000 points, 4 clusters, 3 iterations",
        "centre  -0.0072   6.0209, 5000 points",
        "centre  -0.0060  -0.0069, 5000 points",
        "centre   5.0056   4.9942, 5000 points",
        "centre   6.9977  -0.9922, 5000 points",
    ],
    "heat_survivors.py": ["100 steps, the same as one process computes: True"],
    "task_farm.py": ["2000 tasks, 134100 steps, the longest sequence starts at 1161 (181 steps)"],
}
"""The beginning of each line; the same under MPICH."""


def run(script: str, nranks: int, *arguments: str, status: int = 0) -> list[str]:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), "--timeout", "100", str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("nranks", [1, 2, 4])
@pytest.mark.parametrize("script", PRINTED)
def test_example_prints_what_it_should(script: str, nranks: int) -> None:
    lines = run(script, nranks)
    assert len(lines) == len(PRINTED[script])
    for line, beginning in zip(lines, PRINTED[script], strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_survivors_go_on(victim: int) -> None:
    lines = run("heat_survivors.py", 4, str(victim), "57", status=137)
    assert lines == ["3 ranks go on from step 50", *PRINTED["heat_survivors.py"]]

"""Random calls with wrong arguments raise; they neither crash nor hang."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).with_name("bad_calls.py"))


@pytest.mark.parametrize("nranks", [1, 2])
@pytest.mark.parametrize("arrays", ["host", "device"])
def test_bad_calls_only_raise(arrays: str, nranks: int, full: bool, tmp_path: Path) -> None:
    count = 2500 if full else 300
    for seed in range(4 if full else 1):
        (tmp_path / str(seed)).mkdir()
        words = [PROGRAM, str(seed), str(count), str(tmp_path / str(seed)), arrays]
        command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(nranks), *words]
        with open(tmp_path / "calls", "w") as calls:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=calls, text=True, timeout=1200)
        last = "\n".join((tmp_path / "calls").read_text().splitlines()[-40:])
        assert done.returncode == 0, f"seed {seed}, {nranks} ranks, arrays of the {arrays}; the last calls were\n{last}"
        assert f"done {count}" in done.stdout

"""The programs of the tutorial on CuPy run on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
DOCS = Path(__file__).parents[2] / "docs"


def test_programs_of_the_tutorial(tmp_path: Path) -> None:
    record = tmp_path / "record.txt"
    done = subprocess.run([sys.executable, str(DOCS / "on_gpu.py"), str(record)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    text = record.read_text()
    assert "sum of all ranks: 3072.0 3072.0" in text and "from rank 1 came 2048.0" in text
    assert "difference to one process 0.0" in text
    assert "after 150 steps the weights are 0.000000 away" in text

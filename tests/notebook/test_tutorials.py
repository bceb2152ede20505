"""The notebooks in the docs show what they do when they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_does(path: Path) -> None:
    command = [sys.executable, str(DOCS / "run_notebooks.py"), "--check", path.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_on_how_many_ranks_it_ran(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    numbers = {cell.source.split()[1] for cell in cells if cell.source.startswith("%%ranks ") and cell.source.split()[1].isdigit()}
    assert numbers == {"4"} and "It ran on four ranks" in cells[0].source
    assert [cell.execution_count for cell in cells if cell.cell_type == "code"] == list(
        range(1, 1 + sum(cell.cell_type == "code" for cell in cells))
    )

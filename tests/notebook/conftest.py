"""One kernel for the tests that leave it as it was: starting one takes a second."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kernels import Kernel, kernel_in


@pytest.fixture(scope="session")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel_in(tmp_path_factory.mktemp("kernel")) as kernel:
        yield kernel


@pytest.fixture
def three(notebook: Kernel) -> Kernel:
    """The kernel, with three ranks that know ``comm`` and ``rank``; those of the test before, if they are well."""
    shown = notebook.run("%%ranks 3\nimport os\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD; rank = comm.rank")
    assert not shown.error
    return notebook

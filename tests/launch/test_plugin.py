"""The pytest plugin itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import environment


@pytest.mark.ranks(1, 3)
def test_runs_on_each_size():
    assert os.environ["NCCLX_MPI_RANK"] in "012"


@pytest.mark.parametrize("x", [1, "a"])
@pytest.mark.ranks(2)
def test_parametrised(x):
    assert x in (1, "a")


@pytest.mark.ranks(2)
@given(st.integers())
def test_hypothesis(x):
    assert isinstance(x, int)


class TestInAClass:
    @pytest.mark.ranks(2)
    def test_method(self, comm):
        assert comm.allreduce(1) == comm.size == 2


@pytest.mark.guarded_too
@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("given", [[]])
def test_second_call_gets_what_the_first_did(comm, given):
    given.append(comm.rank)
    assert given == [comm.rank]


@pytest.mark.ranks(2)
def test_skip_in_a_rank(comm):
    if comm.rank == 1:
        pytest.skip("by rank 1")
    comm.Barrier()


FAILING = """
import time
import numpy as np
import pytest
from hypothesis import given, strategies as st
from ncclx_mpi.testing import guarded_arrays

def is_guarded():
    array = np.zeros(3)
    return array.ctypes.data in guarded_arrays._pages

@pytest.mark.ranks(3)
def test_assertion(comm):
    value = comm.rank
    assert value != 2
    comm.Barrier()

@pytest.mark.ranks(2, timeout=6)
def test_hang(comm):
    comm.recv(source=1 - comm.rank, tag=5)

@pytest.mark.ranks(2)
def test_death(comm):
    import os
    if comm.rank == 0: os._exit(3)
    comm.Barrier()

@pytest.mark.ranks(2)
@given(st.integers())
def test_example(comm, x):
    assert comm.allreduce(x) == 2 * x
    assert x < 100

@pytest.mark.guarded_too
@pytest.mark.ranks(2)
def test_arrays(comm):
    if comm.rank == 0:
        received = [comm.recv() for _ in range(comm.size - 1)]
    else:
        comm.send(is_guarded(), 0)
        received = []
    assert not any(received), "guarded in ranks"

@pytest.mark.guarded_too
def test_arrays_without_ranks():
    assert not is_guarded(), "guarded here"

@pytest.mark.ranks(2)
def test_good_one_after_all_these(comm):
    comm.Barrier()
"""


def test_failures_are_reported(tmp_path):
    path = tmp_path / "test_failing.py"
    path.write_text(FAILING)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "ncclx_mpi.testing.plugin", "--rootdir", str(tmp_path), str(path)],
        env=environment(PYTEST_ADDOPTS=""), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    text = result.stdout
    assert "6 failed, 1 passed" in text, text
    assert "assert 2 != 2" in text and "rank 2 of 3 raised AssertionError" in text
    assert re.search("in (recv|probe) from rank 1, tag 5", text) and "in test_hang" in text
    assert "rank 0" in text and "status 3" in text
    assert "guarded in ranks" in text and "called before, and passed; now every array" in text
    assert "guarded here" in text
    assert "falsifying example on this rank: x=" in text

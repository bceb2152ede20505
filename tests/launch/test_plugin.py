"""The pytest plugin itself."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st


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

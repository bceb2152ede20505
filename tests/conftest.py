"""Tests with ``@pytest.mark.ranks(...)`` run on several ranks: see :mod:`ncclx_mpi.testing.plugin`."""

from __future__ import annotations

import pytest

pytest_plugins = ["ncclx_mpi.testing.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="robustness tests at full length: 200 kills, 10,000 bad calls ...")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests run at full length."""
    return bool(request.config.getoption("--full"))

"""Tests with ``@pytest.mark.ranks(...)`` run on several ranks: see :mod:`ncclx_mpi.testing.plugin`."""

from __future__ import annotations

pytest_plugins = ["ncclx_mpi.testing.plugin"]

"""Puts the tests' own helpers on the path; two hosts, and jobs on them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spaces import OnHosts, two_spaces


@pytest.fixture
def spaces():
    with two_spaces() as both:
        yield both


@pytest.fixture
def on_hosts(spaces):
    """Starts jobs; what still runs at the end is killed."""
    jobs = []

    def start(*words: str, **options: object) -> OnHosts:
        jobs.append(OnHosts(spaces, list(words), **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()

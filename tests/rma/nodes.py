"""Windows whose ranks take each other for ranks of other nodes, though all share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

from ncclx_mpi.rma.window import Window

ALONE, PAIRS = "alone", "pairs"
"""Each rank on its node; ranks 0 and 1 on one, 2 and 3 on the next."""


def as_nodes(form: str) -> Any:
    """Let windows that are made meanwhile reach ranks of the same node only by memory."""
    width = 1 if form == ALONE else 2
    return mock.patch.object(Window, "_is_far", lambda self, rank: rank // width != self.comm.rank // width)


def on_nodes(test: Callable[..., None], form: str = ALONE) -> Callable[..., None]:
    """Return a test that runs on nodes; marks and parameters stay."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with as_nodes(form):
            test(*args, **kwargs)

    return run

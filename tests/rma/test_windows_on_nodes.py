"""All tests of windows, with ranks that reach each other by requests."""

from __future__ import annotations

from tests.api import test_window
from tests.rma.nodes import on_nodes

globals().update(
    {
        name: on_nodes(test)
        for name, test in vars(test_window).items()
        if name.startswith("test_") and any(mark.name == "ranks" for mark in getattr(test, "pytestmark", ()))
    }
)

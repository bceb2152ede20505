"""All tests of windows, with each rank on a node of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.api import test_window


def is_on_ranks(test: Any) -> bool:
    return any(mark.name == "ranks" for mark in getattr(test, "pytestmark", ()))


def on_nodes(test: Any) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    vars(run)["pytestmark"] = [
        pytest.mark.ranks(*mark.args, **{**mark.kwargs, "topology": "nolocal"}).mark if mark.name == "ranks" else mark
        for mark in test.pytestmark
    ]
    return run


globals().update({name: on_nodes(test) for name, test in vars(test_window).items() if is_on_ranks(test)})

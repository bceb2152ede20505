"""What a rank does for one test."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import importlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclx_mpi.testing.guarded_arrays import guarded_arrays

config: pytest.Config | None = None
"""The session's configuration, in the process that forks the ranks."""


@dataclass
class Call:
    """A test to run.

    Attributes
    ----------
    path, name
        File and qualified name of the test function.
    arguments
        By name, without ``comm``.
    wants_comm
        Is ``comm`` one of its parameters?
    nodeid
        As pytest prints it.
    guards
        For each time that the function is to be called, whether arrays lie beside unreadable pages.
    """

    path: str
    name: str
    arguments: dict[str, Any]
    wants_comm: bool
    nodeid: str
    guards: tuple[bool, ...] = (False,)


def run_test(call: Call) -> None:
    """Import the test's module and call the function on this rank."""
    os.environ["PYTEST_CURRENT_TEST"] = f"{call.nodeid} (rank)"
    faulthandler.enable()
    function = _find(_import(Path(call.path)), call.name)
    given = {"comm": importlib.import_module("ncclx_mpi.MPI").COMM_WORLD} if call.wants_comm else {}
    if hasattr(function, "hypothesis"):
        function = _in_step(function)
    for number, guards in enumerate(call.guards):
        if number:
            _wait_for_all()
        arguments = copy.deepcopy(call.arguments)  # a test may change what it is given
        try:
            with guarded_arrays() if guards else contextlib.nullcontext():
                function(**arguments, **given)
        except pytest.skip.Exception as skipped:
            raise SkippedOnRank(str(skipped)) from None
        except Exception as error:
            if number:
                error.add_note("(the test was called before, and passed; now every array lies beside an unreadable page)")
            raise


def _wait_for_all() -> None:
    """No message of a rank's next call may reach one that is in the call before."""
    mpi = sys.modules.get("ncclx_mpi.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Barrier()


class SkippedOnRank(Exception):
    """A rank skipped the test; pytest's own exception does not survive being sent."""


def _import(path: Path) -> ModuleType:
    """Import a test file as pytest does, with rewritten assertions."""
    from _pytest.pathlib import import_path

    assert config is not None
    mode = config.getoption("importmode")
    return import_path(path, mode=mode, root=config.rootpath, consider_namespace_packages=False)


def _find(module: ModuleType, name: str) -> Callable[..., Any]:
    owner, _, last = name.rpartition(".")
    scope: Any = module
    for part in owner.split(".") if owner else ():
        scope = getattr(scope, part)
    if isinstance(scope, type):
        scope = scope()
    function: Callable[..., Any] = getattr(scope, last)
    return function


def _in_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a hypothesis test draw the same examples on all ranks, and end at the first failure: a rank cannot shrink alone."""
    from hypothesis import Phase, settings
    from hypothesis.errors import HypothesisException

    inner = function.hypothesis.inner_test  # type: ignore[attr-defined]

    def first_failure_counts(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except (HypothesisException, pytest.skip.Exception):
            raise
        except Exception as error:
            shown = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items() if key != "comm")])
            error.add_note(f"falsifying example on this rank: {shown}")
            raise FirstFailure(error) from error

    function.hypothesis.inner_test = first_failure_counts  # type: ignore[attr-defined]
    current = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
    alone = settings(current, derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate])
    function._hypothesis_internal_use_settings = alone  # type: ignore[attr-defined]

    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except FirstFailure as failure:
            raise failure.error from None

    return call


class FirstFailure(BaseException):
    """Carries a failure past hypothesis, which would try to reproduce it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def last_line(data: bytes) -> str:
    """The last line of the traceback that a rank sent back, if it sent one."""
    if not data:
        return ""
    reply = pickle.loads(data)
    lines = reply[2].strip().splitlines() if reply[0] == "error" else []
    return lines[-1] if lines else ""

"""What the launcher of spawned processes makes of the words that it is told."""

from __future__ import annotations

import sys

import pytest

from ncclx_mpi.launch.program import EXECUTABLE, MODULE
from ncclx_mpi.launch.spawned import _is_in_effect, _program


@pytest.mark.parametrize(
    ("flags", "kind"), [([], MODULE), (["-R"], MODULE), (["-X", "dev"], EXECUTABLE), (["-OO"], EXECUTABLE), (["-u"], EXECUTABLE)]
)
def test_only_flags_that_this_interpreter_lacks_need_another_one(
    flags: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of mpi4py always passes ``-R`` on."""
    if flags == ["-R"] and not sys.flags.hash_randomization:
        pytest.skip("PYTHONHASHSEED says otherwise")
    program = _program([sys.executable, *flags, "-m", "mpi4py.futures.server"], "", 0)
    assert program.kind == kind
    if kind == EXECUTABLE:
        assert program.args[: len(flags)] == flags


@pytest.mark.parametrize("flag", ["-", "-RB", "-RR", "-z", "--help", "-Wignore", "-Xdev"])
def test_flags_that_are_not_known_to_be_in_effect(flag: str) -> None:
    assert not _is_in_effect(flag)

"""The reference has an example of every public name, each of them runs, and has what it is an example of."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi import MPI, rc
from ncclx_mpi.algorithms import ALGORITHMS
from ncclx_mpi.testing import guarded, guarded_arrays, twins
from tests.docs.blocks import ROOT, blocks_of

sys.path.insert(0, str(ROOT / "docs"))
import examples

CLASSES = {value for name in dir(MPI) if isinstance(value := getattr(MPI, name), type) and not name.startswith("_")}
FILES = sorted(examples.FOLDER.glob("*.py"))
GROUPS = {"operations", "datatypes", "handles", "errors", "numbers"}
"""Of constants."""
LINES = list(itertools.zip_longest(*([(name, which) for which in names] for name, names in ALGORITHMS.items())))
"""All algorithms, one of each collective at a time."""
SNIPPETS = ROOT / "docs" / "snippets"


def members() -> set[tuple[type, str]]:
    """Public members of the classes that are ours, those that they inherit as well."""
    found = set()
    for cls in CLASSES:
        for base in cls.__mro__:
            if base.__module__.startswith("ncclx_mpi"):
                found |= {(cls, name) for name in vars(base) if not name.startswith("_") and hasattr(cls, name)}
    return found


def functions(module: Any) -> set[str]:
    return {name for name in dir(module) if inspect.isroutine(getattr(module, name)) and name[:1] != "_"}


def of_tests() -> set[str]:
    """Functions of the modules of ncclx_mpi.testing that a test may call, as `module.name`."""
    modules = (twins, guarded, guarded_arrays)
    return {
        f"{module.__name__.split('.')[-1]}.{name}"
        for module in modules
        for name in functions(module)
        if getattr(vars(module)[name], "__module__", "") == module.__name__
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    head = re.match(r"# ranks: (\d+)\n(?:# ends with: (\d+)\n)?", path.read_text())
    assert head
    command = [
        sys.executable,
        "-m",
        "ncclx_mpi",
        "run",
        "-n",
        head[1],
        "--timeout",
        "60",
        str(ROOT / "docs" / "examples.py"),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path, check=False)
    assert done.returncode == int(head[2] or 0), done.stderr


def test_every_public_name_has_one() -> None:
    known = examples.by_name().keys()
    missing = [
        f"{cls.__name__}.{name}"
        for cls, name in members()
        if not known & set(examples.candidates(f"ncclx_mpi.MPI.{cls.__name__}.{name}", cls))
    ]
    assert sorted(missing) == []
    assert (functions(MPI) | of_tests() | GROUPS) - known == set()


def test_an_example_is_of_something() -> None:
    names = {f"{base.__name__}.{name}" for cls, name in members() for base in cls.__mro__ if name in vars(base)}
    names |= {f"{cls.__name__}.{name}" for cls, name in members()}
    assert examples.by_name().keys() <= names | functions(MPI) | of_tests() | GROUPS


@pytest.mark.parametrize("program", list(examples.programs()), ids=lambda program: program.path.stem)
def test_an_example_has_what_it_is_of(program: examples.Program) -> None:
    for piece in program.pieces:
        used = {node.attr for node in ast.walk(ast.parse(piece.text)) if isinstance(node, ast.Attribute)}
        assert {name.rsplit(".", 1)[-1] for name in piece.names} - GROUPS <= used, piece


@pytest.mark.parametrize("chosen", LINES, ids=lambda chosen: "-".join(each[1] for each in chosen if each))
def test_every_algorithm_runs_when_it_is_asked_for(chosen: tuple[tuple[str, str] | None, ...]) -> None:
    forced = {f"NCCLX_MPI_ALGO_{each[0].upper()}": each[1] for each in chosen if each}
    _, *words = examples.COLLECTIVES.split()
    done = subprocess.run(
        [sys.executable, "-m", "ncclx_mpi", *words],
        cwd=SNIPPETS,
        env={**os.environ, **forced},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, (SNIPPETS / "every_collective.out").read_text()), done.stderr


def test_every_setting_has_a_command_line() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    lines = [line for page in pages for block in blocks_of(page) for line in block.lines]
    variables = [setting.variable for name, setting in rc.SETTINGS.items() if not name.startswith("algo_")]
    assert [name for name in variables if not any(f"{name}=" in line for line in lines)] == []

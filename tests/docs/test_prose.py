"""What the pages name in a sentence or a line exists: commands and their options, variables, files."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclx_mpi import rc
from ncclx_mpi.cli.main import COMMANDS
from tests.docs.blocks import FENCE, ROOT, blocks_of

PAGES = [
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
OURS = re.compile(r"\b(?:ncclx|python -m ncclx_mpi) (?=[a-z])")
BEHIND = ("--", "|", "&&", "-m", "-c")
"""Behind such a word begins another command, as behind the name of a program."""
NOT_YET = ("ncclx_mpi/collectives/bcast/chain.py", "numba_kernels/cuda/cubins")
"""What a reader of the page, or a build, makes."""


def in_sentences(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", page.read_text()))


def commands_of(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command of ours with its options, those of blocks and those of sentences."""
    for line in [*(line for block in blocks_of(page) for line in block.lines), *in_sentences(page)]:
        for said in OURS.split(line)[1:]:
            words = said.split()
            if not words[0].endswith(".py"):
                end = next((at for at, word in enumerate(words) if word in BEHIND or word.endswith(".py")), len(words))
                yield words[0], [word.split("=")[0] for word in words[1:end] if word.startswith("-")]


def help_of(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(COMMANDS[command][0]).main(["--help"])
    return printed.getvalue()


HELP = {command: re.findall(r"(?<![\w-])--?\w[\w-]*", help_of(command)) for command in COMMANDS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    found = list(commands_of(page))
    assert [command for command, _ in found if command not in COMMANDS] == []
    assert [(command, option) for command, options in found for option in options if option not in HELP[command]] == []


def test_commands_are_found() -> None:
    found = list(commands_of(ROOT / "docs" / "tutorials" / "to_a_cluster.md"))
    assert ("run", ["-n"]) in found and ("info", ["--peers"]) in found and ("warm", []) in found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_variables_and_files_exist(page: Path) -> None:
    text = page.read_text()
    known = {setting.variable for setting in rc.SETTINGS.values()} | {f"NCCLX_MPI_{name}" for name in rc.INTERNAL}
    assert set(re.findall(r"\bNCCLX_MPI_[A-Z0-9_]*[A-Z0-9]\b", text)) - known == set()
    folders = "docs|tests|examples|benchmarks|design|transports|numba_kernels|ncclx_mpi"
    files = {found[0] for said in in_sentences(page) if (found := re.match(rf"(?:{folders})/[\w./-]+$", said))}
    assert [name for name in sorted(files) if name not in NOT_YET and not (ROOT / name).exists()] == []

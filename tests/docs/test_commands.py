"""Every block of every page is a program that ran, or commands that ran, or is in ``docs/commands.toml`` with the reason why not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import on_gpu

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SNIPPETS = DOCS / "snippets"
SITE = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
PAGES = [*SITE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LISTED: dict[str, dict[str, str]] = tomllib.loads((DOCS / "commands.toml").read_text())
CI = (ROOT / ".ci" / "run").read_text()
OF_COMMANDS = ("run", "tested", "elsewhere")


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def ran_as_a_program(command: str) -> bool:
    """``ncclx run -n 4 hello.py``, where tests/docs/test_docs.py runs that file on as many ranks; ``python hello.py`` if on none."""
    match = re.fullmatch(r"(?:ncclx run -n (\d+)|python) (\w+\.py)", command)
    return match is not None and (SNIPPETS / match[2]).read_text().startswith(f"# ranks: {match[1] or 'none'}\n")


def is_of_a_program(name: str) -> bool:
    """A program that tests/docs/test_docs.py runs, or what it prints."""
    return name.startswith("snippets/") and (DOCS / name).with_suffix(".py").exists()


def is_proved(block: Block) -> bool:
    kind, _, what = block.mark.partition(": ")
    if kind in ("file", "output"):
        return is_of_a_program(what) or what in LISTED["files"]
    if kind == "gpu":
        return block.text == on_gpu.shown(DOCS / what)
    if kind == "ci":
        return f'"$tree" {what}' in CI or f'"$work/tree-$1" {what}' in CI
    if block.language == "bash":
        return all(ran_as_a_program(line) or any(line in LISTED[table] for table in OF_COMMANDS) for line in block.commands)
    return block.language == "text" and block.first_line in LISTED["shown"]


def test_every_block_is_proved() -> None:
    assert len(BLOCKS) > 80
    assert [str(block) for block in BLOCKS if not is_proved(block)] == []


def test_nothing_is_listed_twice_or_on_no_page() -> None:
    listed = [line for table in OF_COMMANDS for line in LISTED[table]]
    assert sorted(listed) == sorted({line for block in BLOCKS for line in block.commands if not ran_as_a_program(line)})
    from_files = {block.mark.partition(": ")[2] for block in BLOCKS if block.mark.startswith(("file: ", "output: "))}
    assert LISTED["files"].keys() == {name for name in from_files if not is_of_a_program(name)}
    assert LISTED["shown"].keys() == {block.first_line for block in BLOCKS if block.language == "text" and not block.mark}


def test_tests_that_are_named_exist() -> None:
    for where in [*LISTED["tested"].values(), *(each for each in LISTED["files"].values() if "::" in each)]:
        path, *_, name = where.split("::")
        assert re.search(rf"def {name}\(", (ROOT / path).read_text()), where


@pytest.mark.parametrize("page", [*DOCS.glob("tutorials/*.md"), *DOCS.glob("how_to/*.md")], ids=lambda page: page.stem)
def test_a_page_says_how_its_programs_are_started(page: Path) -> None:
    """But for those that another one of the page imports or starts."""
    text = page.read_text()
    started = {name for line in re.findall(r"(?:ncclx run|python|pytest) .*", text) for name in re.findall(r"\w+\.py", line)}
    programs = re.findall(r"<!-- file: snippets/(\w+\.py) -->", text)
    assert {name for name in programs if not (SNIPPETS / name).read_text().startswith("# run by:")} - started == set()


def first_page_with(line: str) -> Path:
    return next(block.page for block in BLOCKS if line in block.commands)


@pytest.mark.parametrize("page", sorted({first_page_with(line) for line in LISTED["run"]}), ids=lambda page: page.stem)
def test_commands_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    """In a folder with the programs and inputs of the pages; each prints what the list says."""
    if page.stem == "pinning" and not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("its lines name processors 0 and 1, which these tests may not use")
    for path in [*SNIPPETS.glob("*.py"), *SNIPPETS.glob("*.txt")]:
        shutil.copy(path, tmp_path)
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for line in (line for line in LISTED["run"] if first_page_with(line) == page):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{line}\n{printed}"
        assert re.search(LISTED["run"][line], printed, re.MULTILINE), f"{line}\n{printed}"

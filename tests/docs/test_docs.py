"""What a reader can copy is a file that ran: every snippet runs and prints what it should, every page is up to date."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ncclx_mpi import rc

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import on_gpu

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVERY_SNIPPET = sorted((DOCS / "snippets").glob("*.py"))
RUN_BY_ANOTHER = [path for path in EVERY_SNIPPET if path.read_text().startswith("# run by:")]
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
SNIPPETS = [path for path in EVERY_SNIPPET if path not in RUN_BY_ANOTHER]
SITE = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
PAGES = [*SITE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_snippet_prints_what_it_should(snippet: Path) -> None:
    ranks = re.match(r"# ranks: (\w+)\n(?:# ends with: (\d+)\n)?", snippet.read_text())
    assert ranks, "the first line says on how many ranks it runs"
    launcher = [] if ranks[1] == "none" else ["-m", "ncclx_mpi", "run", "-n", ranks[1], "--timeout", "60"]
    done = subprocess.run([sys.executable, *launcher, str(snippet)], capture_output=True, text=True, timeout=90)
    assert done.returncode == int(ranks[2] or 0), done.stderr
    assert done.stdout == snippet.with_suffix(".out").read_text()


@pytest.mark.parametrize("snippet", RUN_BY_ANOTHER, ids=lambda path: path.stem)
def test_snippet_that_hangs_is_run_by_another_one(snippet: Path) -> None:
    name = re.match(r"# run by: (\w+\.py)\n", snippet.read_text())
    assert name
    runner = snippet.with_name(name[1])
    assert runner in SNIPPETS and snippet.name in runner.read_text()


def test_the_page_says_which_programs_ran_on_a_gpu(tmp_path: Path) -> None:
    record = tmp_path / "record.txt"
    assert on_gpu.shown(record) == on_gpu.NOT_YET
    record.write_text(f"1 x GPU, today, programs {on_gpu.digest()}\n\nprinted\n")
    assert on_gpu.shown(record) == "1 x GPU, today\n\nprinted\n"
    record.write_text("1 x GPU, today, programs 012345678901\n\nprinted\n")
    assert on_gpu.shown(record) == "1 x GPU, today, of older programs than these\n\nprinted\n"


def test_what_differs_from_mpi4py_differs() -> None:
    ours = json.loads((DOCS / "snippets" / "differences.out").read_text())
    theirs = json.loads((DOCS / "snippets" / "differences.mpich.json").read_text())
    assert ours.keys() == theirs.keys()
    assert [what for what in ours if ours[what] == theirs[what]] == []


@pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no MPICH beside this Python: pip install '.[mpi]'")
def test_mpi4py_over_mpich_does_what_the_table_says() -> None:
    command = [str(MPIEXEC), "-n", "2", sys.executable, str(DOCS / "snippets" / "differences.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (DOCS / "snippets" / "differences.mpich.json").read_text()


def test_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "build.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_the_docs_comes_from_files(page: Path) -> None:
    text = page.read_text()
    blocks = len(re.findall(r"^```python$", text, re.MULTILINE))
    from_files = len(re.findall(r"<!-- file: snippets/\S+\.py -->", text))
    assert blocks == from_files


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=name_of)
def test_a_tutorial_shows_what_its_programs_print(page: Path) -> None:
    text = page.read_text()
    programs = re.findall(r"<!-- file: snippets/(\w+)\.py -->", text)
    outputs = [DOCS / "snippets" / f"{name}.out" for name in programs if name != "heat"]  # of which the picture is made
    silent = [
        path.name
        for path in outputs
        if path.exists() and path.stat().st_size and f"<!-- output: snippets/{path.name} -->" not in text
    ]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_variable_is_among_the_settings() -> None:
    text = (DOCS / "reference" / "settings.md").read_text()
    names = [setting.variable for setting in rc.SETTINGS.values()] + [f"NCCLX_MPI_{name}" for name in rc.INTERNAL]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_folder_is_in_the_table_for_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Where things are") : text.index("## Words")]
    named = {
        name.split("/")[-1] for name in re.findall(r"`([\w/.]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    }
    folders = {
        path.parent.name
        for package in ("ncclx_mpi", "numba_kernels", "transports")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    modules = {path.name for path in (ROOT / "ncclx_mpi").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert named >= folders | modules, (folders | modules) - named

"""Fill the pages of this folder and the README: snippets, and what they print, from their files, tables from the code. Draw the pictures.

python docs/build.py [--check]
"""

import json
import re
import sys
from pathlib import Path

import latest
import on_gpu
import pictures
import plots
import textbook

from ncclx_mpi import __version__, algorithms, costs, rc

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- file: (\S+) -->\n)```(python|bash|docker|yaml|text)\n.*?```\n", re.DOTALL)
OUTPUT = re.compile(r"(<!-- output: (\S+) -->\n)```text\n.*?```\n", re.DOTALL)
ON_GPU = re.compile(r"(<!-- gpu: (\S+) -->\n)```text\n.*?```\n", re.DOTALL)
TABLE = re.compile(r"(<!-- settings: begin -->\n).*?(<!-- settings: end -->)", re.DOTALL)
ALGORITHMS = re.compile(r"(<!-- algorithms: begin -->\n).*?(<!-- algorithms: end -->)", re.DOTALL)
DIFFERENCES = re.compile(r"(<!-- differences: begin -->\n).*?(<!-- differences: end -->)", re.DOTALL)
SIMULATED = re.compile(r"(<!-- simulated: begin -->\n).*?(<!-- simulated: end -->)", re.DOTALL)
PUBLISHED = re.compile(r"(<!-- published: begin -->\n).*?(<!-- published: end -->)", re.DOTALL)
FIGURES = re.compile(r"(<!-- figures: begin -->\n).*?(<!-- figures: end -->)", re.DOTALL)
LATEST = re.compile(r"(<!-- latest: begin -->\n).*?(<!-- latest: end -->)", re.DOTALL)
MEASURED = re.compile(r"(<!-- measured: begin -->\n).*?(<!-- measured: end -->)", re.DOTALL)
SHOWN = {
    "the table of the README, the first picture, near and far cores": "standard",
    "curves over sizes": "sweep",
    "between hosts": "between-hosts",
    "non-blocking": "nonblocking",
    "persistent": "persistent",
    "objects": "objects",
    "starts": "start",
    "forms of buffers": "forms",
    "windows, making communicators": "windows",
    "halos": "halo",
    "a thread that makes progress, in the [tutorial on overlap](../tutorials/overlap.md#or-have-a-thread-do-it)": "overlap",
    "arrays on [a GPU](../how_to/gpu.md#what-it-costs)": "h200",
}
"""What the pages show, and the kind of file that it is from."""
REDUCES = {
    algorithms.RANK: "((0 op 1) op 2) ...",
    algorithms.GROUPS: "neighbours first: (0 op 1) op (2 op 3)",
    algorithms.ANY: "operations that commute",
}


def snippet(match: re.Match[str]) -> str:
    """Return the block with the file's text, without the lines that are meant for the tests."""
    lines = (DOCS / match[2]).read_text().splitlines(keepends=True)
    shown = "".join(line for line in lines if not line.startswith(("# ranks:", "# ends with:", "# run by:")))
    return f"{match[1]}```{match[3]}\n{shown}```\n"


def output(match: re.Match[str]) -> str:
    """Return the block with what a snippet printed."""
    return f"{match[1]}```text\n{(DOCS / match[2]).read_text()}```\n"


def seen_on_gpu(match: re.Match[str]) -> str:
    """Return the block with what programs printed on a GPU, where somebody has one and wrote it down."""
    return f"{match[1]}```text\n{on_gpu.shown(DOCS / match[2])}```\n"


def differences(match: re.Match[str]) -> str:
    """Return the table of what the snippet `differences.py` found on two engines."""
    theirs, ours = (json.loads((DOCS / "snippets" / name).read_text()) for name in ("differences.mpich.json", "differences.out"))
    lines = ["| | mpi4py over MPICH | here |", "|---|---|---|", *(f"| {what} | {theirs[what]} | {ours[what]} |" for what in ours)]
    return match[1] + "\n".join(lines) + "\n" + match[2]


def settings(match: re.Match[str]) -> str:
    """Return the table of all settings."""
    rows = ["| `rc.` | variable | default | choices | meaning |", "|---|---|---|---|---|"]
    for name, setting in rc.SETTINGS.items():
        choices = ", ".join(map(str, setting.choices))
        rows.append(f"| `{name}` | `{setting.variable}` | `{setting.default!r}` | {choices} | {setting.doc} |")
    return match[1] + "\n".join(rows) + "\n" + match[2]


def rows(match: re.Match[str]) -> str:
    """Return the table of all algorithms."""
    lines = [
        "| collective | algorithm | kind | where none is forced | reduces | 8 ranks: 1 KiB, 1 MiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in algorithms.ROWS:
        us = ", ".join(f"{row.cost(8, nbytes, costs.SHARED_MEMORY):,.0f} us" for nbytes in (1 << 10, 1 << 20))
        reduces = REDUCES[row.order] if "reduce" in row.collective or row.collective == "scan" else ""
        lines.append(f"| {row.collective} | `{row.name}` | {algorithms.KINDS[row.kind]} | {_chosen(row)} | {reduces} | {us} |")
    return match[1] + "\n".join(lines) + "\n" + match[2]


def figures(match: re.Match[str]) -> str:
    """Return the table of what plans need, as it is said and as it is counted."""
    return match[1] + "\n".join(textbook.needs_table()) + "\n" + match[2]


def published(match: re.Match[str]) -> str:
    """Return the table of times that others have published, and of prices."""
    return match[1] + "\n".join(textbook.published_table()) + "\n" + match[2]


def simulated(match: re.Match[str]) -> str:
    """Return the table of what another simulator says."""
    return match[1] + "\n".join(textbook.simulated_table()) + "\n" + match[2]


def newest(match: re.Match[str]) -> str:
    """Return the table of starts, windows and halos."""
    return match[1] + "\n".join(latest.table()) + "\n" + match[2]


def measured(match: re.Match[str]) -> str:
    """Return the table of what was measured on which code, with what is older than the newest measurement marked."""
    newest = max(path.name for path in plots.RESULTS.glob("????-??-??-*.json"))[:10]
    lines = [f"Version {__version__}; the newest file in `benchmarks/results` is of {newest}.", ""]
    lines += [
        "| figures | file | measured | older code | the code, as the file's entry in the list has it |",
        "|---|---|---|---|---|",
    ]
    for what, kind in SHOWN.items():
        path = plots.newest_file(kind)
        day = path.name[:10]
        link = f"[`{path.name}`](../../benchmarks/results/{path.name})"
        lines.append(f"| {what} | {link} | {day} | {'yes' if day < newest else 'no'} | {code_of(path)} |")
    return match[1] + "\n".join(lines) + "\n" + match[2]


def code_of(result: Path) -> str:
    """Return what the list in benchmarks/results says of the code that was measured; a name there may be short for one of the same day."""
    day, kind = result.name[:10], result.name[10:]
    for line in (plots.RESULTS / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if day in cells[0] and f"{kind}`" in cells[0]:
            return re.sub(r" ?\(design/[^)]*\)", "", cells[-1].removesuffix(" |"))
    raise SystemExit(f"benchmarks/results/README.md does not name {result.name}")


def _chosen(row: algorithms.Algorithm) -> str:
    """Say when an algorithm is chosen, as a search over sizes finds it."""
    if row.kind == algorithms.ONESHOT:
        return f"up to {row.upto >> 10} KiB" if row.upto else "always"
    if row.kind != algorithms.PLAN:
        return "more, if it is the faster"
    sizes = [n for n in (1, *(1 << k for k in range(10, 30))) if algorithms.choose(row.collective, algorithms.Case(8, n)) is row]
    return "no" if not sizes else "no slot" if sizes[0] == 1 else f"no slot, from {sizes[0] >> 10} KiB"


def filled(page: Path) -> str:
    """Return what a page should be."""
    text = page.read_text()
    parts = {
        BLOCK: snippet,
        OUTPUT: output,
        ON_GPU: seen_on_gpu,
        DIFFERENCES: differences,
        TABLE: settings,
        ALGORITHMS: rows,
        FIGURES: figures,
        PUBLISHED: published,
        SIMULATED: simulated,
        LATEST: newest,
        MEASURED: measured,
    }
    for pattern, function in parts.items():
        text = pattern.sub(function, text)
    return text


def pages() -> list[Path]:
    """The pages of the site, and the README."""
    return [*(page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts), DOCS.parent / "README.md"]


def main() -> int:
    """Write pages and pictures, or say with ``--check`` which are out of date."""
    wanted = {page: filled(page) for page in pages()} | {DOCS / "pictures" / name: drawn for name, drawn in pictures.all_of_them()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.name} {'is out of date' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            path.write_text(wanted[path])
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())

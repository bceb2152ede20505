"""Run the notebooks of this folder, and keep in them what their cells showed.

python docs/run_notebooks.py [--check] [NAME ...]
"""

import re
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parent / "notebooks"
SECONDS = 120
VARYING = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"process \d+"), "process N"),
    (re.compile(r"\d+\.\d+ s\b|\d\d:\d\d:\d\d"), "T"),
)


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run from top to bottom in a new kernel."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(NOTEBOOKS)}}
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
    )
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Put text of a stream together that came in pieces."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == "stream" and found[-1].output_type == "stream" and found[-1].name == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def essence(notebook: nbformat.NotebookNode) -> list[Any]:
    """Return what two runs have in common: not the order of ranks that print at once, nor process numbers, times and pixels."""
    return [[cell.source, *shown(cell)] for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode) -> list[Any]:
    """Return what is compared of a cell's outputs: of one that is to fail the exception, as tracebacks depend on releases."""
    fails = "raises-exception" in cell.metadata.get("tags", [])
    lines: list[str] = []
    bundles: list[Any] = []
    for output in cell.outputs:
        if output.output_type == "stream" and not (fails and output.name == "stderr"):
            lines += stable(output.text).splitlines()
        elif output.output_type == "error":
            bundles.append(stable(output.evalue))
        elif output.output_type in ("display_data", "execute_result"):
            bundles.append(sorted(output.data))
    return [sorted(lines), bundles]


def stable(text: str) -> str:
    """Return text without what no two runs have in common."""
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text


def main() -> int:
    """Write the notebooks, or say with ``--check`` which no longer show what they did."""
    names = [word for word in sys.argv[1:] if word != "--check"]
    stale = 0
    for path in [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        now = run(path)
        if "--check" not in sys.argv:
            nbformat.write(now, path)
            continue
        for before, after in zip(essence(nbformat.read(path, as_version=4)), essence(now), strict=True):
            if before != after:
                print(f"{path.name}: {before[0]!r} showed\n  {before[1:]}\nand now shows\n  {after[1:]}")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())

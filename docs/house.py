"""The house: which folder imports which, read from the sources, as a drawing whose rows are the layers that follow from it."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator
from pathlib import Path

from svg import INK, LINE, PAPER, picture, text

ROOT = Path(__file__).parents[1]
PACKAGES = ("ncclx_mpi", "transports", "numba_kernels")
WIDTH, ROW, BOX, HEIGHT = 980, 58, 118, 26
_SWEEPS = 8
Graph = dict[str, set[str]]


@functools.cache
def imports() -> Graph:
    """What each part of the house imports when it runs: folders and modules of ``ncclx_mpi``, and the two packages below it."""
    found: Graph = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if part := _part((package, *path.relative_to(ROOT / package).with_suffix("").parts)):
                found.setdefault(part, set()).update(filter(None, map(_part, _imported(path))))
    return {part: (used & found.keys()) - {part} for part, used in found.items()}


def _part(words: tuple[str, ...]) -> str:
    """Where a module lies; empty for the package itself, and what is not ours."""
    if words[0] != "ncclx_mpi":
        return words[0] if words[0] in PACKAGES else ""
    return words[1] if len(words) > 1 and words[1] not in ("__init__", "__version__") else ""


def _imported(path: Path) -> Iterator[tuple[str, ...]]:
    """Also inside functions; not what is there for types only."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((*(node.module or "").split("."), alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def reached(graph: Graph, part: str) -> set[str]:
    """All that is below a part."""
    return {below for used in graph[part] for below in {used, *reached(graph, used)}}


def without_shortcuts(graph: Graph) -> Graph:
    """Only what no other import leads to: the lines that are drawn."""
    below = {part: reached(graph, part) for part in graph}
    return {part: {used for used in graph[part] if not any(used in below[other] for other in graph[part])} for part in graph}


def rows(graph: Graph) -> list[list[str]]:
    """From the top: a part lies above all that it imports, and no higher than that takes; in a row, near to what it is joined to."""
    height: dict[str, int] = {}

    def height_of(part: str) -> int:
        if part not in height:
            height[part] = max((height_of(used) + 1 for used in graph[part]), default=0)
        return height[part]

    top = max(map(height_of, graph))
    found = [sorted(part for part in graph if height[part] == level) for level in range(top, -1, -1)]
    joined = {part: graph[part] | {user for user in graph if part in graph[user]} for part in graph}
    for _ in range(_SWEEPS):
        for row in found:
            place = {part: x for each in found for part, x in zip(each, places(len(each)), strict=True)}
            row.sort(key=lambda part: (math.fsum(place[other] for other in joined[part]) / max(1, len(joined[part])), part))
    return found


def places(count: int) -> list[float]:
    """Where the middles of so many boxes of a row are."""
    return [WIDTH * (k + 0.5) / count for k in range(count)]


def house_picture() -> str:
    """Boxes in rows, and a line down to each thing that is imported."""
    graph = without_shortcuts(imports())
    found = rows(graph)
    at = {part: (x, 14 + ROW * k) for k, row in enumerate(found) for part, x in zip(row, places(len(row)), strict=True)}
    lines = [_line(at[part], at[used]) for row in found for part in row for used in sorted(graph[part])]
    boxes = [
        f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5" fill="{PAPER}" stroke="{INK}"/>'
        + text(round(x), y + 18, part, "middle")
        for part, (x, y) in at.items()
    ]
    return picture(WIDTH, ROW * len(found), "what imports what", lines + boxes)


def _line(above: tuple[float, int], below: tuple[float, int]) -> str:
    ends = f'x1="{above[0]:.0f}" y1="{above[1] + HEIGHT}" x2="{below[0]:.0f}" y2="{below[1]}"'
    return f'<line {ends} stroke="{LINE}" stroke-width="1.5"/>'

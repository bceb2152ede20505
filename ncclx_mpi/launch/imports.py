"""What a program may import that is better imported once, before ranks are forked, than by each of them: NumPy, and modules of ours.

Its text says so. Nothing is run or imported to find out. Modules that lie beside a script are read, too; any other one that is neither
Python's own nor ours is taken to use NumPy. A wrong guess costs each rank the time of an import, or the launcher that of one.
"""

from __future__ import annotations

import os
import re
import sys

NUMPY = "numpy"
_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+|import[ \t]+(?=([\w., \t]+)))([\w.]+)", re.MULTILINE)
_SIGNS = {
    NUMPY: re.compile(
        r"numpy|import_module\((?!\s*[\"'](?:mpi4py|ncclx_mpi)\b)|__import__|eighbor_|\b(?:Read|Write|Iread|Iwrite)(?:_\w+)?\(|\bPack_external\b"
        r"|\bCreate_dyn|\bCreate_dist_graph"
    ),
    "ncclx_mpi.api.window": re.compile(r"\bWin\b"),
    "ncclx_mpi.api.file": re.compile(r"\bFile\b"),
}
"""By what in its text a program imports a module, or has us import it."""
EVERYTHING = frozenset(_SIGNS)
"""For programs of which nothing is known."""
_UNKNOWN = frozenset([NUMPY])
_WITHOUT_NUMPY = {"mpi4py", "ncclx_mpi", *sys.stdlib_module_names}


def of_text(text: str, folder: str) -> frozenset[str]:
    """What a program with a text may import, which finds modules of its own in a folder first; nothing that is not in its text."""
    return _of(text, folder, set())


def of_file(path: str) -> frozenset[str]:
    """As above, of a script; NumPy if it cannot be read, or but once, as one in a pipe."""
    try:
        return of_text(_read(path), os.path.dirname(os.path.realpath(path))) if os.path.isfile(path) else _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def _of(text: str, folder: str, seen: set[str]) -> frozenset[str]:
    """As :func:`of_text`, without the modules that were `seen`."""
    found = frozenset(module for module, sign in _SIGNS.items() if sign.search(text))
    new = _imported(text) - seen
    seen |= new
    for name in sorted(new):
        if NUMPY not in found:
            found |= _of_module(name, folder, seen)
    return found


def _imported(text: str) -> set[str]:
    """Modules that a text imports by name, and that may use NumPy; an empty name for those of its own package."""
    parts = (part for several, one in _IMPORTED.findall(text) for part in (several or one).split(","))
    return {part.split()[0].partition(".")[0] for part in parts if part.strip()} - _WITHOUT_NUMPY


def _of_module(name: str, folder: str, seen: set[str]) -> frozenset[str]:
    """What a module may import, which is read if it is a file of the folder."""
    try:
        return _of(_read(os.path.join(folder, f"{name}.py")), folder, seen)
    except (OSError, ValueError):
        return _UNKNOWN


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()

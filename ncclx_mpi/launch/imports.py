"""Whether a program may use NumPy, by its text: then it is imported once, before ranks are forked, and not by each of them.

Nothing is run or imported to find out. Modules that lie beside a script are read, too; any other one that is neither Python's own nor ours is
taken to use NumPy. A wrong guess costs each rank the time of an import, or the launcher that of one.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+|import[ \t]+(?=([\w., \t]+)))([\w.]+)", re.MULTILINE)
_PERHAPS = re.compile(
    r"numpy|import_module\((?!\s*[\"'](?:mpi4py|ncclx_mpi)\b)|__import__|eighbor_|\bFile\.Open\b|\bPack_external\b|\bCreate_dyn"
    r"|\bCreate_dist_graph"
)
"""By which a program imports NumPy, or has us import it: for files, dynamic windows, and neighbours."""
_WITHOUT_NUMPY = {"mpi4py", "ncclx_mpi", *sys.stdlib_module_names}


def may_use_numpy(text: str, folder: str) -> bool:
    """Whether a program with a text may, which finds modules of its own in a folder first; False if no import that is known of does."""
    return _reads_numpy(text, Path(folder), set())


def file_may_use_numpy(path: str) -> bool:
    """As above, of a script; also True if it cannot be read, or but once, as one in a pipe."""
    try:
        return not os.path.isfile(path) or may_use_numpy(Path(path).read_text(), os.path.dirname(os.path.realpath(path)))
    except (OSError, ValueError):
        return True


def _reads_numpy(text: str, folder: Path, seen: set[str]) -> bool:
    """As :func:`may_use_numpy`, without the modules that were `seen`."""
    if _PERHAPS.search(text):
        return True
    new = _imported(text) - seen
    seen |= new
    return any(_module_may(name, folder, seen) for name in sorted(new))


def _imported(text: str) -> set[str]:
    """Modules that a text imports by name, and that may use NumPy; an empty name for those of its own package."""
    parts = (part for several, one in _IMPORTED.findall(text) for part in (several or one).split(","))
    return {part.split()[0].partition(".")[0] for part in parts if part.strip()} - _WITHOUT_NUMPY


def _module_may(name: str, folder: Path, seen: set[str]) -> bool:
    """Whether a module may, which is read if it is a file of the folder."""
    try:
        return _reads_numpy((folder / f"{name}.py").read_text(), folder, seen)
    except (OSError, ValueError):
        return True

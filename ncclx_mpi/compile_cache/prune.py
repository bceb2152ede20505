"""What old versions left in the cache of compiled functions goes.

The mark of a complete version lists the folders that it uses, and its time says when it was last started, to the day::

    complete-4f6e...       cpython-311-0c78... and others, one a line: one mark a version, Python and processor
    cpython-311-0c78...    one folder a module and digest of its sources
    sources-...            what an installation's sources say (:mod:`numba_kernels.digests`)
    modules-...            bytecode of what a start of an installation imports (:mod:`ncclx_mpi.compile_cache.bytecode`)
    found-...              what an earlier start of an installation found (:mod:`ncclx_mpi.compile_cache.verdict`)

Marks that were not used for a month go, and all but the newest few, with every folder that only they list. A folder that no mark
lists belongs to somebody who compiles just now, or on demand: it goes a month after the last write. Processes that run keep what
they have loaded; a function that one of them needs later from a folder that has gone is compiled again.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator

from ncclx_mpi.compile_cache import bytecode
from numba_kernels import cache_files, digests

MARK = "complete-"
VERDICT = "found-"
_DAY = 86_400.0
_UNUSED_SECONDS = 30 * _DAY
_MOST_VERSIONS = 8
_FOLDER = r"[a-z]+-\d+-[0-9a-f]{20}"
"""Names of the folders that :mod:`numba_kernels.jit` makes; whatever else is in the cache is somebody else's."""


def write_mark(mark: str) -> None:
    """Note that the cache is complete for what this process has imported, and prune what others left."""
    with open(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write("\n".join(sorted(_folders_of_this_process())))
    prune(os.path.dirname(mark))


def note_use(mark: str) -> None:
    """Note that a complete version was started; at most once a day, as starting shall not write."""
    with contextlib.suppress(OSError):
        if time.time() - os.stat(mark).st_mtime > _DAY:
            os.utime(mark)


def prune(root: str) -> None:
    """Remove what no version uses that was started lately."""
    now = time.time()
    used, listed = set[str](), set[str]()
    inside = cache_files.inside(root)
    marks = sorted(filter(_is_one_of(MARK), inside), key=_modified, reverse=True)
    for index, mark in enumerate(marks):
        with open(mark, encoding="ascii") as file:
            folders = file.read().split()
        listed.update(folders)
        if index >= _MOST_VERSIONS or now - _modified(mark) > _UNUSED_SECONDS:
            _unlink(mark)
        else:
            used.update(folders)
    for found in filter(_is_one_of(digests.LIST, VERDICT, bytecode.KIND), inside):  # made again by who still needs it
        if now - _modified(found) > _UNUSED_SECONDS:
            _unlink(found)
    for folder in inside:
        name = os.path.basename(folder)
        is_old = name in listed or now - _modified(folder) > _UNUSED_SECONDS
        if is_old and name not in used and re.fullmatch(_FOLDER, name):
            _remove(root, name)


def _is_one_of(*kinds: str) -> Callable[[str], bool]:
    """What tells whether a path is of something whose name begins so."""
    return lambda path: os.path.basename(path).startswith(kinds)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _remove(root: str, name: str) -> None:
    """Remove a folder; under its name it is there whole, or not at all."""
    doomed = os.path.join(root, f"removed-{os.getpid()}-{name}")
    with contextlib.suppress(OSError):
        os.rename(os.path.join(root, name), doomed)
        import shutil

        shutil.rmtree(doomed, ignore_errors=True)


def _modified(path: str) -> float:
    """When a file was last written, 0 if it has gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _folders_of_this_process() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.split(".")[0] in digests.PACKAGES and path is not None:
            yield digests.folder_name(path)

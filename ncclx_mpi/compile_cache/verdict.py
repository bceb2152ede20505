"""What an earlier start found: that the cache, or the installation, holds what most programs use.

To find that out is to import every module that has compiled functions, and to digest the sources of each: 30 ms, of which a program would
use a part. So who has done it notes the state of all that it follows from, and later starts ask for that alone. As no source has changed
then, they need no digests of their own.
"""

from __future__ import annotations

import marshal
import os
import sys

from ncclx_mpi.compile_cache import bytecode, prune
from numba_kernels import cache_files, digests, processor, shipped
from numba_kernels.sha256 import sha256

_Stamp = tuple[int, int]


def is_warm() -> bool:
    """Whether an earlier start found so, and nothing has changed since that could make it wrong."""
    try:
        key, mark, stamps, digested = marshal.loads(cache_files.read(_path()))
        if key != _key() or any(bytecode.state(path) != stamp for path, stamp in stamps.items()):
            return False
    except (OSError, EOFError, TypeError, ValueError, AttributeError):
        return False
    digests.trust(digested)
    if not mark:
        return True
    found = os.path.join(cache_files.cache_root(), mark)
    prune.note_use(found)
    return os.path.exists(found)


def keep(mark: str | None) -> None:
    """Note that all is there: in the cache, which says so by `mark`, or in the installation.

    What it follows from: the sources that compiled functions are made from, and which ones there are, so our modules and their folders, too.
    The file with their bytecode is among it, so that a start that looks for everything makes a missing one anew.
    """
    images = [shipped.HOME, *cache_files.inside(shipped.HOME)]
    modules = _modules()
    paths = {
        *digests.sources(),
        *modules,
        *map(os.path.dirname, modules),
        *images,
        bytecode.path(cache_files.cache_root()),
    }
    stamps = {path: cache_files.stamp(path) for path in paths}
    try:
        cache_files.write(_path(), marshal.dumps((_key(), os.path.basename(mark) if mark else "", stamps, digests.known())))
    except OSError:
        return  # a cache that cannot be written: each start finds out anew


def _key() -> str:
    """What tells installations from each other that share files: what runs them, and what jobs they are for."""
    from ncclx_mpi import rc

    words = (sys.implementation.cache_tag, processor.name(), digests.versions(), getattr(rc, "topology"))  # noqa: B009
    return sha256(repr(words).encode()).hexdigest()


def _path() -> str:
    return digests.list_path(prune.VERDICT)


def _modules() -> set[str]:
    """Files of the modules of ours that have been imported; a new module beside them is a new state of their folder."""
    ours = [found for name, found in sys.modules.items() if name.partition(".")[0] in digests.PACKAGES]
    return {path for found in ours if (path := getattr(found, "__file__", None))}

"""What a compiled function was made from: digests of the sources of its module and of all modules of ours that it imports.

Sources are not read again as long as their files have the size and the time of change that a list in the cache says (:func:`keep`). Who has
looked at the files of all of them, and found none changed, need not have their digests made again either (:func:`trust`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import marshal
import os
import re
import sys
from collections.abc import Iterator

from numba_kernels import cache_files
from numba_kernels.rows import NamedTuple
from numba_kernels.sha256 import sha256

PACKAGES = ("numba_kernels", "transports", "ncclx_mpi")
LIST = "sources-"
"""How names of lists of what has been read begin: one an installation and Python."""


class Source(NamedTuple):
    """A module: its name in its distribution, the digest of what it says, and the files of ours that it imports."""

    name: str
    digest: bytes
    imported: tuple[str, ...]


@functools.cache
def module_digest(path: str) -> str:
    """Digest of :func:`sources_digest` and the versions that compile."""
    return sha256(versions() + sources_digest(path).encode()).hexdigest()[:20]


def sources_digest(path: str) -> str:
    """Digest of a module's source and of all sources of ours that it imports, directly or not."""
    known = _digests.get(path)
    if known is None:
        known = _digests[path] = _digest_of(path)
    return known


_digests: dict[str, str] = {}
"""Those that are known in this process."""


def known() -> dict[str, str]:
    """Return the digests that have been made, by the files of the modules, for :func:`trust`."""
    return dict(_digests)


def trust(found: dict[str, str]) -> None:
    """Take these digests for true: no source has changed since another process made them."""
    _digests.update(found)


def _digest_of(path: str) -> str:
    found: dict[str, bytes] = {}
    seen, left = {path}, [path]
    while left:
        source = _source(left.pop())
        if source is None:
            continue
        found[source.name] = source.digest
        left.extend(other for other in source.imported if other not in seen)
        seen.update(source.imported)
    total = sha256()
    for name in sorted(found):
        total.update(name.encode() + b"\0" + found[name])
    return total.hexdigest()[:20]


def folder_name(path: str) -> str:
    """Name of the folder in the cache that holds the compiled functions of a module."""
    return folder_of(module_digest(path))


def folder_of(digest: str) -> str:
    """Name of the folder in the cache for a digest."""
    return f"{sys.implementation.cache_tag}-{digest}"


def keep() -> None:
    """Keep what has been read of this installation's sources for later starts."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {path: read for path, read in _read.items() if path.startswith(home + os.sep)}
    if found:
        with contextlib.suppress(OSError):
            cache_files.write(list_path(), marshal.dumps(_known() | found))


def sources() -> list[str]:
    """Return the files of ours, of this installation, that digests were made of now or earlier."""
    return [path for path in {**_known(), **_read} if os.path.exists(path)]


def list_path(kind: str = LIST) -> str:
    """Return where something about this installation is kept: several may share a cache."""
    home = sha256(__file__.encode()).hexdigest()[:16]
    return os.path.join(cache_files.cache_root(), f"{kind}{sys.implementation.cache_tag}-{home}")


def forget() -> None:
    """Look at all sources again."""
    _digests.clear()
    for function in (module_digest, _source, _known):
        function.cache_clear()


_read: dict[str, tuple[tuple[int, int], tuple[str, bytes, tuple[str, ...]]]] = {}
"""What was read in this process: time of change and size of each file, and what it says."""


@functools.cache
def _known() -> dict[str, tuple[tuple[int, int], tuple[str, bytes, tuple[str, ...]]]]:
    """What an earlier process has read."""
    try:
        found = marshal.loads(cache_files.read(list_path()))
    except (OSError, EOFError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.cache
def versions() -> bytes:
    """What compiles: its versions."""
    return _version("llvmlite").encode() + _version("numba").encode()


def _version(name: str) -> str:
    """The version of an installed distribution, by the name of its folder: to parse its metadata takes 10 ms."""
    found = importlib.util.find_spec(name)
    if found is not None and found.origin:
        for entry in os.listdir(os.path.dirname(os.path.dirname(found.origin))):
            if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                return entry
    from importlib.metadata import version

    return version(name)


_IMPORT = (
    r"(?m)^\s*(?:from\s+((?:" + "|".join(PACKAGES) + r")[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)"
    r"|import\s+((?:" + "|".join(PACKAGES) + r")[\w.]*))"
)
_IMPORT_BESIDE = r"(?m)^\s*(?:from\s+(\.*[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))"
"""Of a module that is none of ours: what it imports from its own folder or package holds code that it has compiled, too."""
_EMITTED = r'\bemitted(?:_type)?\(\s*"(\w+)"'
"""What :mod:`numba_kernels.emit` makes for a module."""


@functools.cache
def _source(path: str) -> Source | None:
    """Read a module, unless it is known; None if it is not there."""
    try:
        status = os.stat(path)
        stamp = status.st_mtime_ns, status.st_size
        known = _known().get(path)
        if known is not None and known[0] == stamp:
            return Source(*known[1])
        with open(path, "rb") as file:
            found = _scan(path, file.read())
    except OSError:
        return None
    _read[path] = stamp, (found.name, found.digest, found.imported)
    return found


def _scan(path: str, content: bytes) -> Source:
    root, text = _package_root(path), content.decode()
    name = os.path.relpath(path, root)
    is_ours = name.split(os.sep)[0] in PACKAGES
    home = root if is_ours else _package_root(__file__)
    files: list[str] = []
    for module, names in _imports(_IMPORT, text):
        files.extend(_module_files(home, module, names))
    if not is_ours:
        for module, names in _imports(_IMPORT_BESIDE, text):
            files.extend(_files_beside(path, root, module, names))
    for name in sorted(set(re.findall(_EMITTED, text))):
        files.extend(_module_files(home, f"numba_kernels.emit.{name}", []))
    return Source(name, sha256(content).digest(), tuple(files))


def _imports(pattern: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Modules that a text imports or imports from, each with the names that it imports from there."""
    for match in re.finditer(pattern, text):
        names = [name.split(" as ")[0].strip(" ()\n") for name in (match.group(2) or "").split(",")]
        yield match.group(1) or match.group(3), names


def _files_beside(path: str, root: str, module: str, names: list[str]) -> Iterator[str]:
    """Files of the package of a module, or of its folder if it is in none: not of what else is installed there."""
    folder, absolute = os.path.dirname(path), module.lstrip(".")
    dots = len(module) - len(absolute)
    if dots:
        for _ in range(dots - 1):
            folder = os.path.dirname(folder)
        package = os.path.relpath(folder, root).replace(os.sep, ".")
        yield from _module_files(root, f"{package}.{absolute}".rstrip("."), names)
    elif folder == root:
        beside = os.path.join(folder, f"{absolute}.py")
        if os.path.exists(beside):
            yield beside
    elif absolute.split(".")[0] == os.path.relpath(path, root).split(os.sep)[0]:
        yield from _module_files(root, absolute, names)


def _module_files(root: str, module: str, names: list[str]) -> Iterator[str]:
    stem = os.path.join(root, *module.split("."))
    for candidate in [f"{stem}.py", os.path.join(stem, "__init__.py")]:
        if os.path.exists(candidate):
            yield candidate
    for name in names:
        for candidate in [os.path.join(stem, f"{name}.py"), os.path.join(stem, name, "__init__.py")]:
            if os.path.exists(candidate):
                yield candidate


def _package_root(path: str) -> str:
    """The folder of the outermost package that a module is in, or of the module itself."""
    folder = os.path.dirname(path)
    while os.path.exists(os.path.join(folder, "__init__.py")) and (above := os.path.dirname(folder)) != folder:
        folder = above
    return folder

"""Bytecode of the modules that a start imports, in one file of the cache.

For each module Python asks for the state of two folders and two files, and reads a file: a third of the time that the import of 320 modules
takes. Here it asks for the state of the source, as Python does to see whether bytecode is good. A module whose source has another size or
time of change than when it was kept is imported in Python's own way, as all are where there is nothing in the cache.

What is imported together, by every start or by a program that has a window, is one piece, in which a name that many modules use is there
once: that makes its objects in three quarters of the time that they take one module after the other. A piece is read, and its checksum
compared, when a module of it is imported: another file may have taken the place of this one by then.
"""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from zlib import crc32

from numba_kernels import cache_files

KIND = "modules-"
"""How names of such files begin: one an installation and Python."""
_OURS = ("ncclx_mpi.", "numba_kernels.", "transports.")
_TAKEN = tuple(f"numba_kernels.{name}" for name in ("cache_files", "sha256"))
"""What is imported to look for the file."""
_HEAD = struct.Struct("<QL")
"""Bytes of the rows, which follow, and their checksum."""
_Stamp = tuple[int, int]
_Piece = tuple[int, int, int]
"""Where among the pieces it begins, its bytes, and its checksum."""
_Row = tuple[str, str | None, _Stamp, _Piece, int]
"""Of a module: its source and its file of bytecode, the state of the source, the piece that has its bytecode, and which one of it."""
_Kept = tuple[dict[str, _Row], str, int]
"""Modules by their names, the file that has their bytecode, and where in it the pieces begin."""
_NOTHING: _Kept = {}, "", 0


class _Loader(SourceFileLoader):
    """Loads a module whose bytecode was kept."""

    def get_code(self, fullname: str) -> CodeType | None:
        return _finder.code(fullname, self.path) or super().get_code(fullname)


class _Finder:
    """Finds modules whose bytecode was kept, and whose sources have not changed since."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._pieces: dict[_Piece, list[CodeType | None]] = {}
        self._states: dict[str, _Stamp] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None or not name.startswith(_OURS) or name in _TAKEN:
            return None
        kept = self._kept
        if kept is None:
            kept = self._kept = _read()
        row = kept[0].get(name)
        if row is None or row[2] != cache_files.stamp(row[0]):
            return None
        folder, base = os.path.split(row[0])
        is_package = base == "__init__.py"
        if (os.path.dirname(folder) if is_package else folder) not in path:
            return None
        self._states[row[0]] = row[2]
        spec = ModuleSpec(name, _Loader(name, row[0]), origin=row[0], is_package=is_package)
        spec.has_location, spec.cached = True, row[1]
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(folder)
        return spec

    def forget(self) -> None:
        """Find nothing from now on. What was not imported of a piece stays: a forked rank that let go of it would copy its pages."""
        self._kept = _NOTHING
        self._states = {}

    def remember(self) -> None:
        """Look for what was kept when the next module of ours is imported."""
        self.forget()
        self._kept = None

    def state(self, path: str) -> _Stamp | None:
        """The state of a file: of a source that has just been found, the one in which it was."""
        return self._states.get(path) or cache_files.stamp(path)

    def code(self, name: str, path: str, stamp: _Stamp | None = None) -> CodeType | None:
        """What was kept of a module, if it is that of this file, and of this state of it; once."""
        rows, file, first = self._kept or _NOTHING  # at once: another thread may forget it meanwhile
        row = rows.get(name)
        if row is None or row[0] != path or stamp not in (None, row[2]):
            return None
        piece = self._pieces.get(row[3])
        if piece is None:
            piece = _read_piece(file, first, row[3])
            if piece is None:
                return None
            self._pieces[row[3]] = piece
        code = piece[row[4]]
        piece[row[4]] = None  # it goes when it has run: a forked rank that let go of them all would copy their pages
        return code


_finder = _Finder()


def install() -> None:
    """Import modules of ours from what was kept of them, from now on."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget() -> None:
    """Let go of what was kept when a start has imported what it needs: what comes later is imported in Python's own way."""
    _finder.forget()


def import_late(name: str) -> ModuleType:
    """Import a module that not all starts do from what was kept, with what it needs; a process that has it already reads nothing."""
    _finder.remember()
    try:
        return importlib.import_module(name)
    finally:
        _finder.forget()


def state(path: str) -> _Stamp | None:
    """The state of a file; of a source whose module this start has imported from what was kept, the one that it had then."""
    return _finder.state(path)


def keep(groups: Iterable[Iterable[str]]) -> None:
    """Keep the bytecode of modules for later starts, imported or not: whoever imports one of a group imports them all."""
    rows: dict[str, _Row] = {}
    parts: list[bytes] = []
    at = 0
    for names in groups:
        found = {name: code for name in names if (code := _code_to_keep(name)) is not None}
        parts.append(marshal.dumps([code[-1] for code in found.values()]))
        piece = at, len(parts[-1]), crc32(parts[-1])
        rows.update({name: (*code[:-1], piece, number) for number, (name, code) in enumerate(found.items())})
        at += len(parts[-1])
    head = marshal.dumps((_key(), rows))
    sizes = _HEAD.pack(len(head), crc32(head))
    try:
        cache_files.write(path(cache_files.cache_root()), b"".join([sizes, head, *parts]))
    except OSError:
        return  # a cache that cannot be written


def _code_to_keep(name: str) -> tuple[str, str | None, _Stamp, CodeType] | None:
    """A module's source, its file of bytecode, the state of the source and the bytecode; None if it has none that can be kept."""
    spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    if spec is None or not spec.origin or not isinstance(spec.loader, SourceFileLoader):
        return None
    stamp = cache_files.stamp(spec.origin)  # first: what is read below may be newer, which shows then
    if stamp is None:
        return None
    code = _finder.code(name, spec.origin, stamp) or SourceFileLoader(name, spec.origin).get_code(name)
    return None if code is None else (spec.origin, spec.cached, stamp, code)


def path(root: str) -> str:
    """Where the bytecode of this installation is kept in a cache."""
    from numba_kernels.sha256 import sha256

    home = sha256(__file__.encode()).hexdigest()[:16]
    return os.path.join(root, f"{KIND}{sys.implementation.cache_tag}-{home}")


def _read() -> _Kept:
    """What an earlier process has kept in the preferred folder: which one it will be is not decided yet, a setting may follow."""
    file = path(next(cache_files.cache_candidates())[1])
    try:
        nbytes, checksum = _HEAD.unpack(cache_files.read_own(file, 0, _HEAD.size))
        head = cache_files.read_own(file, _HEAD.size, nbytes)
        if crc32(head) != checksum:
            return _NOTHING
        key, rows = marshal.loads(head)
    except (OSError, EOFError, TypeError, ValueError, MemoryError, OverflowError, struct.error):
        return _NOTHING
    return (rows, file, _HEAD.size + nbytes) if key == _key() else _NOTHING


def _read_piece(file: str, first: int, piece: _Piece) -> list[CodeType | None] | None:
    """The bytecode in a piece of a file; None if it is there no longer."""
    at, nbytes, checksum = piece
    try:
        data = cache_files.read_own(file, first + at, nbytes)
    except OSError:
        return None
    found: list[CodeType | None] | None = marshal.loads(data) if crc32(data) == checksum else None
    return found


def _key() -> tuple[bytes, int, _Stamp | None]:
    """What bytecode depends on beside the source, and the state of this file, which says what a row is."""
    return importlib.util.MAGIC_NUMBER, sys.flags.optimize, cache_files.stamp(__file__)

"""Files and folders of the cache: what is read from there is run, so nobody but its user may have written it.

A folder or file that belongs to another user, or that group or others can write, is not taken, and what we make is for the user alone,
whatever the umask. What is for the processor ends with a checksum: code in which a byte has flipped on the disk would end the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import zlib
from collections.abc import Iterator

CACHE_VARIABLE = "NCCLX_MPI_CACHE_DIR"
_XDG_VARIABLE = "XDG_CACHE_HOME"
_MARK = b"ncx1"
_TRAILER = len(_MARK) + 4
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnusableFile(OSError):
    """A file is damaged, or somebody else could have written it."""


def make_folder(folder: str) -> None:
    """Make a folder (0700), and those above it that are missing."""
    above = os.path.dirname(folder)
    if above != folder and not os.path.exists(folder):
        make_folder(above or os.curdir)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def inside(folder: str) -> list[str]:
    """What is in a folder, by path; nothing if it is not there."""
    return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []


def why_not(folder: str) -> str:
    """Why the cache cannot be in `folder`, which is made if it is missing; empty if it can."""
    try:
        make_folder(folder)
        link, found = os.lstat(folder), os.stat(folder)
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != os.getuid() or link.st_uid not in (os.getuid(), 0):
        return f"belongs to another user ({found.st_uid if found.st_uid != os.getuid() else link.st_uid})"
    if found.st_mode & _OTHERS_WRITE:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


def cache_candidates() -> Iterator[tuple[str, str]]:
    """Folders for the cache, the preferred one first, each with the name of what it follows from."""
    if os.environ.get(CACHE_VARIABLE):
        yield CACHE_VARIABLE, os.environ[CACHE_VARIABLE]
    if os.environ.get(_XDG_VARIABLE):
        yield _XDG_VARIABLE, os.path.join(os.environ[_XDG_VARIABLE], "ncclx_mpi")
    else:
        yield "the home", os.path.join(os.path.expanduser("~"), ".cache", "ncclx_mpi")
    import tempfile  # here, and below: most starts need neither

    yield "the temporary directory", os.path.join(tempfile.gettempdir(), f"ncclx_mpi-{os.getuid()}")


@functools.cache
def cache_root() -> str:
    """Return the first folder that can be written, and by nobody else, so that a read-only home still starts.

    ``$NCCLX_MPI_CACHE_DIR``, ``$XDG_CACHE_HOME/ncclx_mpi``, ``~/.cache/ncclx_mpi``, a private one in the temporary directory.
    """
    usable = (folder for _, folder in cache_candidates() if not why_not(folder))
    found = next(usable, None)
    if found is not None:
        return found
    import tempfile

    return tempfile.mkdtemp(prefix="ncclx_mpi-")


def stamp(path: str) -> tuple[int, int] | None:
    """The state of a file, or of what a folder lists: time of change in ns, and bytes; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def read_own(path: str, at: int = 0, nbytes: int = -1) -> bytes:
    """What a file holds that only this user can have written; from byte `at` on, so many bytes of it unless it ends before.

    Raises
    ------
    UnusableFile
        Somebody else may have.
    OSError
        It cannot be read.
    """
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
            raise UnusableFile(f"{path} may have been written by another user")
        if at:
            file.seek(at)
        return file.read(nbytes)


def read(path: str) -> memoryview:
    """What :func:`write` has put into a file.

    Raises
    ------
    UnusableFile
        It is not what was written, or somebody else may have written it.
    OSError
        It cannot be read.
    """
    return _checked(path, memoryview(read_own(path)))


def read_installed(path: str) -> memoryview:
    """As :func:`read`, of a file that lies beside our modules: who could have written it could have written those."""
    with open(path, "rb") as file:
        return _checked(path, memoryview(file.read()))


def _checked(path: str, content: memoryview) -> memoryview:
    data = content[:-_TRAILER]
    if content[-_TRAILER:] != _trailer(data):
        raise UnusableFile(f"{path} is damaged")
    return data


def write(path: str, data: bytes) -> None:
    """Put `data` and its checksum into a file (0600) that appears whole, or not at all."""
    unfinished = f"{path}.tmp.{os.urandom(8).hex()}"
    try:
        with open(unfinished, "xb", opener=_open_private) as file:
            file.write(data)
            file.write(_trailer(data))
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _trailer(data: bytes | memoryview) -> bytes:
    """How a file ends; marshal and pickle read no further than their own end."""
    return _MARK + zlib.crc32(data).to_bytes(4, "little")

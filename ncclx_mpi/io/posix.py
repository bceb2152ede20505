"""One process's open file: bytes at offsets, its size, its locks, and what its errors are to MPI."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from typing import NoReturn

from ncclx_mpi import errors
from ncclx_mpi.buffers.memory import Words, array_words, view
from ncclx_mpi.constants import MODE_CREATE, MODE_EXCL, MODE_RDWR, MODE_WRONLY
from ncclx_mpi.io import extents
from ncclx_mpi.io.blocks import move_blocks, move_run
from ncclx_mpi.p2p.engine import Engine
from numba_kernels.jit import entry

_MOST_BYTES, _MOST_BLOCKS = 64 << 20, 4096
"""Of one call: between two of them signals are handled."""

_LOCK = struct.Struct("hhqqi4x")
_UNLOCKED, _SHARED, _EXCLUSIVE = fcntl.F_UNLCK, fcntl.F_RDLCK, fcntl.F_WRLCK
_TAKEN = (errno.EAGAIN, errno.EACCES)

_CLASSES = {
    errno.ENOENT: errors.ERR_NO_SUCH_FILE,
    errno.EEXIST: errors.ERR_FILE_EXISTS,
    errno.EACCES: errors.ERR_ACCESS,
    errno.EPERM: errors.ERR_ACCESS,
    errno.EROFS: errors.ERR_READ_ONLY,
    errno.ENOSPC: errors.ERR_NO_SPACE,
    errno.EDQUOT: errors.ERR_QUOTA,
    errno.EFBIG: errors.ERR_QUOTA,
    errno.ENAMETOOLONG: errors.ERR_BAD_FILE,
    errno.ENOTDIR: errors.ERR_BAD_FILE,
    errno.EISDIR: errors.ERR_BAD_FILE,
    errno.ELOOP: errors.ERR_BAD_FILE,
    errno.ENXIO: errors.ERR_BAD_FILE,
    errno.EBUSY: errors.ERR_FILE_IN_USE,
    errno.ETXTBSY: errors.ERR_FILE_IN_USE,
    errno.ESPIPE: errors.ERR_UNSUPPORTED_OPERATION,
    errno.EOPNOTSUPP: errors.ERR_UNSUPPORTED_OPERATION,
    errno.ENOLCK: errors.ERR_UNSUPPORTED_OPERATION,
}


class PosixFile:
    """An open file.

    Parameters
    ----------
    path
        Its name, as the system takes it.
    amode
        How it is opened, in MPI's flags.
    engine
        Waits for locks.
    rank
        Who opens it, for messages.
    """

    def __init__(self, path: bytes, amode: int, engine: Engine, rank: int) -> None:
        self.path = path
        self._engine = engine
        self._rank = rank
        self._may_read = not amode & MODE_WRONLY
        self._may_write = bool(amode & (MODE_WRONLY | MODE_RDWR))
        flags = os.O_RDWR if amode & MODE_RDWR else os.O_WRONLY if amode & MODE_WRONLY else os.O_RDONLY
        flags |= os.O_CREAT if amode & MODE_CREATE else 0
        flags |= os.O_EXCL if amode & MODE_EXCL else 0
        with self._named("open"):
            self._fd = os.open(path, flags | os.O_NONBLOCK, 0o666)  # a pipe without a writer would block for ever
        if stat.S_ISDIR(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            fail(OSError(errno.EISDIR, os.strerror(errno.EISDIR)), rank, "open", path)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._named("close"):
            os.close(self._fd)

    # Size

    @property
    def size(self) -> int:
        """Bytes of the file."""
        with self._named("find the size of"):
            return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it."""
        with self._named(f"set the size to {size} bytes of"):
            os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        """See to it that there is room for the first `size` bytes."""
        if size:
            with self._named(f"allocate {size} bytes for"):
                os.posix_fallocate(self._fd, 0, size)

    def sync(self) -> None:
        """Bring what was written to the device."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):  # a device has nothing to bring anywhere
                fail(error, self._rank, "sync", self.path)

    def look_again(self) -> None:
        """Forget what this node remembers of a file of a network file system, which the taking of a lock makes it do."""
        with contextlib.suppress(OSError, errors.Exception), self.locked(0, 0, exclusive=False):
            pass

    # Bytes

    def read(self, address: int, nbytes: int, offset: int) -> int:
        """Read to an address; returns how many bytes there were."""
        done, move = 0, entry(move_run)
        while done < nbytes:
            part = min(nbytes - done, _MOST_BYTES)
            came = move(self._fd, address + done, part, offset + done, 0)
            done += came
            if came == part:
                continue
            came = self._read_once(address + done, part - came, offset + done)  # which raises what stopped it, if it is not the end
            done += came
            if came == 0:
                break
        return done

    def _read_once(self, address: int, nbytes: int, offset: int) -> int:
        try:
            return os.preadv(self._fd, [view(address, nbytes).data], offset)
        except OSError as error:
            fail(error, self._rank, f"read {nbytes} bytes at {offset} of", self.path)

    def write(self, address: int, nbytes: int, offset: int) -> None:
        """Write what is at an address."""
        done, move = 0, entry(move_run)
        while done < nbytes:
            part = min(nbytes - done, _MOST_BYTES)
            moved = move(self._fd, address + done, part, offset + done, 1)
            if moved < part:
                moved += self._write_once(address + done + moved, part - moved, offset + done + moved)
            done += moved

    def _write_once(self, address: int, nbytes: int, offset: int) -> int:
        try:
            return os.pwrite(self._fd, view(address, nbytes).data, offset)
        except OSError as error:
            fail(error, self._rank, f"write {nbytes} bytes at {offset} of", self.path)

    def read_blocks(self, address: int, table: Words, base: int = -1) -> int:
        """Read extents, one after the other to an address, or placed, with `base` at it. Returns the bytes before the end."""
        total = 0
        for part in _parts(table):
            while len(part):
                start = address + int(part[0, 0]) - base if base >= 0 else address + total
                came = self._read_some(start, part, base)
                total += came
                left = int(part[:, 1].sum()) - came
                if came == 0:
                    return total
                part = extents.rest(part, came) if left else part[:0]
        return total

    def _read_some(self, address: int, part: Words, base: int) -> int:
        offset, nbytes = map(int, part[0])
        if len(part) == 1:
            return self.read(address, nbytes, offset)
        came = _moved(self._fd, part, address, base, is_write=False)
        return came or self.read(address, nbytes, offset)  # which says why, if it is not the end

    def write_blocks(self, address: int, table: Words, base: int = -1) -> None:
        """Write extents, from where :meth:`read_blocks` reads them to."""
        total = 0
        for part in _parts(table):
            while len(part):
                start = address + int(part[0, 0]) - base if base >= 0 else address + total
                done = self._write_some(start, part, base)
                total += done
                part = extents.rest(part, done) if done < int(part[:, 1].sum()) else part[:0]

    def _write_some(self, address: int, part: Words, base: int) -> int:
        offset, nbytes = map(int, part[0])
        done = _moved(self._fd, part, address, base, is_write=True) if len(part) > 1 else 0
        if not done:
            self.write(address, nbytes, offset)
        return done or nbytes

    # Locks

    @contextlib.contextmanager
    def locked(self, start: int, end: int, *, exclusive: bool) -> Iterator[None]:
        """Keep other processes that ask for locks away from bytes of the file, all from `start` on if `end` is 0.

        The lock belongs to this open file, not to the process, so that another one of the same process is kept away too.
        """
        wanted = _EXCLUSIVE if (exclusive and self._may_write) or not self._may_read else _SHARED
        length = end - start if end else 0
        self._engine.idle_wait(lambda: self._try_lock(wanted, start, length), f"a lock of {os.fsdecode(self.path)}")
        try:
            yield
        finally:
            self._try_lock(_UNLOCKED, start, length)

    def _try_lock(self, wanted: int, start: int, length: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(wanted, os.SEEK_SET, start, length, 0))
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            fail(error, self._rank, "lock", self.path)
        return True

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            fail(error, self._rank, what, self.path)


def fail(error: OSError, rank: int, what: str, path: bytes) -> NoReturn:
    """Raise an error of the system as one of MPI."""
    found = _CLASSES.get(error.errno or 0, errors.ERR_IO)
    errors.fail(found, f"rank {rank}: could not {what} {os.fsdecode(path)}: {error.strerror}")


def remove(path: bytes, rank: int) -> None:
    """Delete a file."""
    try:
        os.unlink(path)
    except OSError as error:
        fail(error, rank, "delete", path)
    except ValueError as error:
        errors.fail(errors.ERR_BAD_FILE, f"rank {rank}: no file has the name {path!r}: {error}")


def _parts(table: Words) -> Iterator[Words]:
    """A table in parts for one call each."""
    for first in range(0, len(table), _MOST_BLOCKS):
        yield table[first : first + _MOST_BLOCKS]


def _moved(fd: int, part: Words, address: int, base: int, *, is_write: bool) -> int:
    """Move extents, the first one from or to an address; returns bytes."""
    part = part if part.flags.c_contiguous else part.copy()
    first = int(part[0, 0]) if base >= 0 else 0
    moved: int = entry(move_blocks)(fd, array_words(part)[0], len(part), address, int(base >= 0), first, int(is_write))
    return moved

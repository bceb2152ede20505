"""The memory of the double: device memory that the CPU cannot touch at its address, only through a second mapping.

An allocation is an anonymous memory file, mapped twice::

    region    guard page | PROT_NONE at the device address ........... | guard page     what programs hold
    shadow                 readable, writable                 | page of state words     what the double works on

So host code that reads or writes a device address ends with a segmentation fault instead of being silently right. Kernels
alone, which follow addresses they find in memory, run with the first mapping opened. Other processes open the file through
``/proc/PID/fd``: nothing has a name, nothing survives its processes. Bytes behind the end, up to the end of the page, are filled
with a pattern that is checked after each kernel.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from numba_kernels.atomics import load_acquire, store_release
from numba_kernels.cuda.driver import HANDLE_BYTES, DriverError, Memory
from numba_kernels.jit import entry, kernel

PAGE = mmap.PAGESIZE
DEVICE, POOL, MANAGED, PINNED, IMPORTED, REGISTERED = "device", "pool", "managed", "pinned", "imported", "registered"
"""Kinds of memory: ``cuMemAlloc``, ``cuMemAllocAsync``, managed, ``cuMemAllocHost``, another process's, ``cuMemHostRegister``."""

READABLE_BY_HOST = (MANAGED, PINNED, REGISTERED)

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, ALREADY_REGISTERED = 1, 2, 201, 400, 712

_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_FIXED, _NORESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value
_FREED = 1
_EXITING = 0x4
"""Flag of a process (``PF_EXITING``) that has begun to end: its files go before its name does."""
_PAST_END, _AFTER_FREE = 0xA5, 0xDB
_HANDLE = struct.Struct("<qqqqqq16s")
assert _HANDLE.size == HANDLE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@kernel("int64(int64)", is_entry=True)
def load_word(address):  # type: ignore[no-untyped-def]
    """Load-acquire of a word that others write."""
    return load_acquire(address)


@kernel("void(int64, int64)", is_entry=True)
def store_word(address, value):  # type: ignore[no-untyped-def]
    """Store-release of a word that others read."""
    store_release(address, value)


class Fault(Exception):
    """An access that a GPU would not survive, or would survive with wrong data."""


class Allocation:
    """One piece of memory that the double knows.

    Attributes
    ----------
    kind
        :data:`DEVICE`, :data:`POOL`, :data:`MANAGED`, :data:`PINNED`, :data:`IMPORTED` or :data:`REGISTERED`.
    base, nbytes
        Where programs see it.
    shadow
        Where the double reads and writes it.
    fd
        The memory file; -1 where this process does not own one.
    buffer_id, device
        See :class:`~numba_kernels.cuda.driver.Memory`.
    is_released
        Whether it was freed or closed: its shadow is gone, and its addresses may be another's.
    """

    def __init__(self, kind: str, base: int, nbytes: int, shadow: int, fd: int, buffer_id: int, device: int) -> None:
        self.kind = kind
        self.base = base
        self.nbytes = nbytes
        self.shadow = shadow
        self.fd = fd
        self.buffer_id = buffer_id
        self.device = device
        self.references = 1
        self.handle = b""
        self.is_released = False

    @property
    def is_on_device(self) -> bool:
        return self.kind not in READABLE_BY_HOST

    @property
    def is_freed_by_owner(self) -> bool:
        """Whether the process that exported it has freed it."""
        return self.kind == IMPORTED and entry(load_word)(self._state) == _FREED

    @property
    def _state(self) -> int:
        return self.shadow + rounded(self.nbytes)

    def describe(self) -> Memory:
        """As the driver answers for it."""
        on_host = self.kind in (PINNED, REGISTERED)
        device = -1 if on_host else self.device
        return Memory(self.is_on_device, device, self.base, self.nbytes, self.buffer_id, self.kind == DEVICE)

    def protect(self, protection: int) -> None:
        """Open or close the mapping at the device address."""
        if self.is_on_device and _libc.mprotect(self.base, rounded(self.nbytes), protection):
            raise OSError(ctypes.get_errno(), f"mprotect of {self.base:#x}")

    def is_end_intact(self) -> bool:
        """Whether nothing was written behind the end."""
        behind = rounded(self.nbytes) - self.nbytes
        return ctypes.string_at(self.shadow + self.nbytes, behind) == bytes([_PAST_END]) * behind

    def poison(self) -> None:
        """Make it useless to all who still read it, and say that it is freed."""
        entry(store_word)(self._state, _FREED)
        ctypes.memset(self.shadow, _AFTER_FREE, self.nbytes)

    def __str__(self) -> str:
        return f"{self.kind} memory {self.base:#x}+{self.nbytes} (buffer {self.buffer_id})"


class Space:
    """All memory that the double of one process knows; not thread-safe.

    Parameters
    ----------
    garbage
        What fresh memory holds.
    """

    def __init__(self, garbage: int) -> None:
        self._garbage = garbage
        self._live: dict[int, Allocation] = {}
        self._bases: list[int] = []
        self._freed: dict[int, Allocation] = {}
        self._regions: dict[int, list[int]] = {}
        self._ids = itertools.count(0x1000 + garbage)

    def allocate(self, kind: str, nbytes: int, device: int) -> Allocation:
        """New memory, full of garbage; addresses of freed memory come back first."""
        if nbytes < 1:
            raise DriverError(INVALID_VALUE, f"{nbytes} bytes cannot be allocated")
        fd = os.memfd_create("driver-double-memory", os.MFD_CLOEXEC)
        os.ftruncate(fd, rounded(nbytes) + PAGE)
        made = self._map(kind, fd, nbytes, device)
        ctypes.memset(made.shadow, self._garbage, nbytes)
        ctypes.memset(made.shadow + nbytes, _PAST_END, rounded(nbytes) - nbytes)
        return made

    def _map(self, kind: str, fd: int, nbytes: int, device: int) -> Allocation:
        size = rounded(nbytes)
        free = self._regions.get(size)
        base = free.pop() if free else _map(None, size + 2 * PAGE, _NONE, -1) + PAGE
        shadow = _map(None, size + PAGE, _READ_WRITE, fd)
        made = Allocation(kind, base, nbytes, shadow, fd, next(self._ids), device)
        _map(base, size, _NONE if made.is_on_device else _READ_WRITE, fd)
        self._add(made)
        return made

    def release(self, found: Allocation) -> None:
        """Free memory: its address faults from now on, its bytes are poisoned for those who imported it."""
        if found.kind != IMPORTED:
            found.poison()
            os.close(found.fd)
        size = rounded(found.nbytes)
        _map(found.base, size, _NONE, -1)
        _libc.munmap(found.shadow, size + PAGE)
        found.is_released = True
        self._remove(found)
        self._freed[found.base] = found
        self._regions.setdefault(size, []).append(found.base)

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory."""
        if nbytes < 1:
            raise DriverError(INVALID_VALUE, f"{nbytes} bytes at {address:#x} cannot be registered")
        for other in self._live.values():
            if other.base < address + nbytes and address < other.base + other.nbytes:
                raise DriverError(ALREADY_REGISTERED, f"{address:#x}+{nbytes} overlaps {other}")
        self._add(Allocation(REGISTERED, address, nbytes, address, -1, next(self._ids), -1))

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""
        found = self._live.get(address)
        if found is None or found.kind != REGISTERED:
            raise DriverError(INVALID_VALUE, f"no registered host memory begins at {address:#x}")
        self._remove(found)

    def export(self, found: Allocation, uuid: bytes) -> bytes:
        """A handle that :meth:`open` of another process takes."""
        pid = os.getpid()
        return _HANDLE.pack(pid, _start_time(pid), found.fd, os.fstat(found.fd).st_ino, found.buffer_id, found.nbytes, uuid)

    def open(self, handle: bytes, device: int) -> Allocation:
        """Map another process's allocation; of one already mapped, count the reference.

        Raises
        ------
        DriverError
            The handle is this process's own, or its process is gone.
        Fault
            The memory was freed since.
        """
        pid, start_time, fd, inode, buffer_id, nbytes, _ = _HANDLE.unpack(handle)
        if pid == os.getpid():
            raise DriverError(INVALID_CONTEXT, f"buffer {buffer_id} is this process's own: it cannot open its own handles")
        known = next((other for other in self._live.values() if other.handle == handle), None)
        if known is not None:
            known.references += 1
            return known
        theirs = _open_file(pid, fd, inode)
        if _start_time(pid) != start_time:
            if theirs >= 0:
                os.close(theirs)
            raise DriverError(INVALID_HANDLE, f"process {pid}, which exported buffer {buffer_id}, is gone")
        if theirs < 0:
            raise Fault(f"stale handle: process {pid} has freed its buffer {buffer_id}")
        made = self._map(IMPORTED, theirs, nbytes, device)
        os.close(theirs)
        made.fd = -1
        made.handle = handle
        if made.is_freed_by_owner:
            self.release(made)
            raise Fault(f"stale handle: process {pid} has freed its buffer {buffer_id}")
        return made

    def at(self, address: int) -> Allocation | None:
        """The allocation in which an address lies; None for memory that the double does not know."""
        k = bisect.bisect_right(self._bases, address) - 1
        if k >= 0:
            found = self._live[self._bases[k]]
            if address < found.base + found.nbytes:
                return found
        return None

    def check(self, address: int, nbytes: int) -> Allocation | None:
        """The allocation that holds `nbytes` bytes at `address`; None for plain host memory.

        Raises
        ------
        Fault
            The memory was freed, or the bytes run past its end.
        """
        found = self.at(address)
        if found is None:
            self._check_not_freed(address)
            return None
        if address + nbytes > found.base + found.nbytes:
            raise Fault(f"{nbytes} bytes at {address:#x} run past the end of {found}")
        if found.is_freed_by_owner:
            raise Fault(f"{address:#x} is in {found}, which the process that exported it has freed")
        return found

    def _check_not_freed(self, address: int) -> None:
        for old in self._freed.values():
            if old.base - PAGE <= address < old.base + rounded(old.nbytes) + PAGE:
                raise Fault(f"{address:#x} is in {old}, which has been freed or closed")

    def translate(self, address: int, nbytes: int) -> int:
        """Where the double reads and writes what programs see at `address`."""
        found = self.check(address, nbytes)
        return address if found is None else found.shadow + address - found.base

    def reachable(self) -> list[Allocation]:
        """Device memory that a kernel may touch now."""
        return [found for found in self._live.values() if found.is_on_device and not found.is_freed_by_owner]

    def close(self) -> None:
        """Give everything back."""
        for found in list(self._live.values()):
            if found.kind != REGISTERED:
                self.release(found)

    def _add(self, made: Allocation) -> None:
        self._live[made.base] = made
        bisect.insort(self._bases, made.base)
        self._freed.pop(made.base, None)

    def _remove(self, found: Allocation) -> None:
        del self._live[found.base]
        self._bases.remove(found.base)


@contextmanager
def opened(space: Space, lock: AbstractContextManager[Any]) -> Iterator[None]:
    """While the body runs, without `lock`, device memory is readable and writable at its addresses; writes behind the ends are faults.

    The program may free memory meanwhile, which the kernel that runs in the body need not use.
    """
    with lock:
        memory = space.reachable()
        for found in memory:
            found.protect(_READ_WRITE)
    try:
        yield
    finally:
        with lock:
            kept = [found for found in memory if not found.is_released]
            for found in kept:
                found.protect(_NONE)
            overrun = next((found for found in kept if not found.is_end_intact()), None)
    if overrun is not None:
        raise Fault(f"a kernel wrote behind the end of {overrun}")


def is_mapped(address: int) -> bool:
    """Whether this process has memory at an address."""
    return not _libc.mincore(address & -PAGE, 1, ctypes.create_string_buffer(1))


def rounded(nbytes: int) -> int:
    """`nbytes` in whole pages."""
    return -(-nbytes // PAGE) * PAGE


def _map(address: int | None, nbytes: int, protection: int, fd: int) -> int:
    """Map a file, or with -1 nothing that can be touched, at `address` or anywhere."""
    flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    mapped = _libc.mmap(address, nbytes, protection, flags | (_FIXED if address else 0), fd, 0)
    if mapped == _FAILED:
        raise DriverError(OUT_OF_MEMORY, f"mmap of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    return int(mapped)


def _start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none, or it is about to end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if int(fields[6]) & _EXITING else int(fields[19])


def _open_file(pid: int, fd: int, inode: int) -> int:
    """Open another process's memory file; -1 if the descriptor is not that file any more."""
    try:
        theirs = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    if os.fstat(theirs).st_ino == inode:
        return theirs
    os.close(theirs)
    return -1

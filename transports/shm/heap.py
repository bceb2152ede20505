"""Allocation inside a rank's part of the arena (``MPI.Alloc_mem``): memory that peers read without a copy."""

from __future__ import annotations

import bisect
import ctypes
import os
import threading

ALIGNMENT = 64
SPARE_BYTES, _MOST_SPARE = 192, 64
_PAGE = 4096
_MADV_REMOVE = 9
_TRUSTED_SHARE = 256
"""Of the memory that the machine has, the part that is handed out without asking again: asking costs as much as making a window."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Heap:
    """First-fit allocator over a sparse range; freed pages go back to the kernel.

    Parameters
    ----------
    base
        Address of the arena.
    start, nbytes
        The range, relative to `base`.

    Attributes
    ----------
    spare : list of int
        Blocks of :data:`SPARE_BYTES` zeroed bytes that stay allocated, for whoever takes such a block and gives it back often.
    """

    def __init__(self, base: int, start: int, nbytes: int) -> None:
        self.first = base + start
        self.last = base + start + nbytes
        self._holes: list[tuple[int, int]] = [(self.first, nbytes)]
        self._sizes: dict[int, int] = {}
        self._guard = threading.Lock()
        self._trusted = 0
        self.spare: list[int] = []

    def __contains__(self, address: int) -> bool:
        return self.first <= address < self.last

    def allocate(self, nbytes: int) -> int:
        """Address of `nbytes` zeroed bytes, 64-byte aligned.

        Raises
        ------
        MemoryError
            The range, or the machine's memory, has no room left.
        """
        need = max(ALIGNMENT, (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)
        with self._guard:
            self._check_available(need, nbytes)
            for index, (address, size) in enumerate(self._holes):
                if size >= need:
                    self._take(index, address, size, need)
                    return address
        raise MemoryError(f"{nbytes} bytes of shared memory asked for, the rank's part of the arena has no hole that large")

    def take_spare(self) -> int:
        """As :meth:`allocate`, for :data:`SPARE_BYTES`."""
        try:
            return self.spare.pop()
        except IndexError:
            return self.allocate(SPARE_BYTES)

    def give_spare(self, address: int) -> None:
        """Give a block back that :meth:`take_spare` returned, all of it zero again."""
        if len(self.spare) < _MOST_SPARE:
            self.spare.append(address)
        else:
            self.free(address)

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` returned.

        Raises
        ------
        ValueError
            `address` was not allocated here, or freed before.
        """
        with self._guard:
            size = self._sizes.pop(address, 0)
            if not size:
                raise ValueError(f"address {address:#x} is not memory of this allocator (freed twice?)")
            self._trusted += size
            self._return_pages(address, size)
            self._insert(address, size)

    def _check_available(self, need: int, nbytes: int) -> None:
        """Raise if the machine has no room for so much. It is asked again once a small share of what it had last is used up."""
        if need > self._trusted:
            available = _available()
            if need > available:
                raise MemoryError(f"{nbytes} bytes of shared memory asked for, the machine has {available} available")
            self._trusted = max(available // _TRUSTED_SHARE, need)
        self._trusted -= need

    def _take(self, index: int, address: int, size: int, need: int) -> None:
        self._sizes[address] = need
        if size == need:
            del self._holes[index]
        else:
            self._holes[index] = (address + need, size - need)

    def _return_pages(self, address: int, size: int) -> None:
        """Zero what is freed: whole pages by giving them back, the ends by hand, since allocate promises zeros."""
        low = -(-address // _PAGE) * _PAGE
        high = (address + size) // _PAGE * _PAGE
        if high <= low:
            ctypes.memset(address, 0, size)
            return
        _libc.madvise(low, high - low, _MADV_REMOVE)
        ctypes.memset(address, 0, low - address)
        ctypes.memset(high, 0, address + size - high)

    def _insert(self, address: int, size: int) -> None:
        at = bisect.bisect(self._holes, (address, 0))
        if at < len(self._holes) and address + size == self._holes[at][0]:
            size += self._holes.pop(at)[1]
        if at > 0 and sum(self._holes[at - 1]) == address:
            address, before = self._holes.pop(at - 1)
            size += before
            at -= 1
        self._holes.insert(at, (address, size))


def _available() -> int:
    """Bytes of memory that the machine can still give, as the kernel estimates it."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Pinned host memory through which device arrays travel: pieces of this rank's part of the arena, registered with the driver.

Peers read it without a copy, as they read ``MPI.Alloc_mem``, and the GPU copies to and from it at full speed. Registering costs
hundreds of microseconds, so what was registered is kept and lent again::

    | slab, 4 MiB: 4 KiB | 16 KiB | 64 KiB | ...  carved once, by size class |     | one block of its own, 1 to 64 MiB |

What is not to be had is done without, one thing after the other: blocks that nobody uses are given up, memory outside of the arena is
pinned, memory that is not pinned is lent. Copies of that are slow, and kernels cannot reach it. Long blocks are never pinned: what
they hold passes through short ones (:mod:`ncclx_mpi.arguments.bounce_buffers`).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import Any

from ncclx_mpi import errors, runtime
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.driver import Driver, DriverError
from numba_kernels.late_numpy import np

_PAGE = 4096
_SLAB = 4 << 20
_LARGEST_CARVED = 1 << 20
PINNED_MAX = 64 << 20
"""Bytes of the largest block that is pinned: pinning costs time for every page, which pays for what is kept and used again."""
IDLE_MAX = 256 << 20
"""Bytes of large blocks that stay pinned while nobody uses them."""


class Lease:
    """A piece of memory for copies; given back when nothing refers to it any more.

    Attributes
    ----------
    address, nbytes
        Where it is, and how large at least.
    is_pinned
        Whether kernels can reach it, and copies run at full speed.
    """

    __slots__ = ("__weakref__", "_pool", "address", "is_pinned", "nbytes")

    def __init__(self, pool: Pool, address: int, nbytes: int) -> None:
        self._pool = pool
        self.address = address
        self.nbytes = nbytes
        self.is_pinned = True

    def __del__(self) -> None:
        self._pool.idle.setdefault(self.nbytes, []).append(self.address)


class Pageable(Lease):
    """Memory that is not pinned, since it is too long or since none could be."""

    __slots__ = ("_memory",)

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self._memory = np.empty(nbytes + _PAGE, np.uint8)
        super().__init__(pool, _aligned(self._memory.ctypes.data), nbytes)
        self.is_pinned = False

    def __del__(self) -> None:
        """It goes as any object does."""


class Pool:
    """All pinned memory of this process.

    Attributes
    ----------
    idle
        Addresses of blocks that nobody uses, by size.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.idle: dict[int, list[int]] = {}
        self._regions: dict[int, Any] = {}
        self._slab = self._slab_end = 0
        self._has_warned = False
        self._guard = threading.Lock()

    def lease(self, nbytes: int) -> Lease:
        """Lend `nbytes` bytes, page-aligned, pinned up to `PINNED_MAX`; a device must be current.

        A warning says so the first time that none can be pinned.

        Raises
        ------
        Exception
            ERR_NO_MEM: there is no memory left at all.
        """
        size = _size_class(nbytes)
        if nbytes > PINNED_MAX:
            return self._lend_pageable(size, f"more than {PINNED_MAX} are not pinned")
        if (again := self.lease_again(nbytes)) is not None:
            return again
        with self._guard:
            try:
                address = self._carve(size) if size <= _LARGEST_CARVED else self._reserve(size)
            except (MemoryError, DriverError) as error:
                lease = self._lend_pageable(size, str(error))
                self._warn(f"no {size} bytes can be pinned: {error}")
                return lease
        return Lease(self, address, size)

    def lease_again(self, nbytes: int) -> Lease | None:
        """Lend what is pinned and idle; None if nothing of that size is."""
        if nbytes > PINNED_MAX:
            return None
        size = _size_class(nbytes)
        try:
            return Lease(self, self.idle[size].pop(), size)
        except (KeyError, IndexError):
            return None

    def unpin(self) -> None:
        """Take back what was registered; the memory stays, since peers may still read it."""
        for address in self._regions:
            with contextlib.suppress(DriverError):  # its context may be gone by now, and the registration with it
                self.driver.unregister_host(address)

    def _lend_pageable(self, size: int, reason: str) -> Lease:
        try:
            return Pageable(self, size)
        except MemoryError as error:
            errors.fail(
                errors.ERR_NO_MEM, f"no {size} bytes of host memory for copies of a GPU array: {reason}; not pinned: {error}"
            )

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = f"copies of GPU arrays go through memory that is not pinned, which is slow: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _carve(self, size: int) -> int:
        if self._slab + size > self._slab_end:
            self._slab = self._reserve(_SLAB)
            self._slab_end = self._slab + _SLAB
        self._slab += size
        return self._slab - size

    def _reserve(self, size: int) -> int:
        """Address of newly pinned memory, after enough of what is idle was given up; all of it, if that helps."""
        self._give_up_idle(IDLE_MAX - size)
        try:
            return self._pin(size)
        except (MemoryError, DriverError):
            if not self._give_up_idle(0):
                raise
            return self._pin(size)

    def _give_up_idle(self, most: int) -> bool:
        """Leave at most `most` bytes of large blocks that nobody uses; whether there was anything to give up."""
        large = sorted((each for each in self.idle if each > _LARGEST_CARVED), reverse=True)
        excess, found = sum(each * len(self.idle[each]) for each in large) - most, False
        for each in large:
            while excess > 0 and self.idle[each]:
                self._release(self.idle[each].pop())
                excess -= each
                found = True
        return found

    def _pin(self, size: int) -> int:
        raw, owner = _allocate(size + _PAGE)
        address = _aligned(raw)
        try:
            self.driver.register_host(address, size)
        except DriverError:
            _free(owner)
            raise
        self._regions[address] = owner
        return address

    def _release(self, address: int) -> None:
        owner = self._regions.pop(address)
        self.driver.unregister_host(address)
        _free(owner)


class _Process:
    pool: Pool | None = None
    guard = threading.RLock()


def lease_again(driver: Driver, nbytes: int) -> Lease | None:
    """Lend pinned memory that nobody uses, None if there is none of that size; no device need be current."""
    pool = _Process.pool
    return None if pool is None or pool.driver is not driver else pool.lease_again(nbytes)


def lease(driver: Driver, nbytes: int) -> Lease:
    """Lend pinned memory; see :meth:`Pool.lease`."""
    pool = _Process.pool
    if pool is None or pool.driver is not driver:
        with _Process.guard:  # only the one that is kept is unpinned in the end
            pool = _Process.pool
            if pool is None or pool.driver is not driver:
                pool = _Process.pool = Pool(driver)
    return pool.lease(nbytes)


def _unpin() -> None:
    pool, _Process.pool = _Process.pool, None
    if pool is not None and pool.driver is drivers.current():
        pool.unpin()


runtime.before_leaving(_unpin)


def _size_class(nbytes: int) -> int:
    """The smallest of four sizes a doubling that holds `nbytes`."""
    unit = max(_PAGE, (1 << (nbytes - 1).bit_length()) >> 3)
    return max(-(-nbytes // unit), 1) * unit


def _allocate(nbytes: int) -> tuple[int, Any]:
    """Address and what frees it: in this rank's part of the arena, or private while there is none, or no room in it."""
    if runtime.is_active():
        engine = runtime.engine()
        heap = engine.arena.open_heap(engine.local_rank)
        with contextlib.suppress(MemoryError):
            address = heap.allocate(nbytes)
            return address, lambda: heap.free(address)
    private = np.empty(nbytes, np.uint8)
    return private.ctypes.data, private


def _free(owner: Any) -> None:
    if callable(owner):
        owner()


def _aligned(address: int) -> int:
    """The first page at or behind an address."""
    return -(-address // _PAGE) * _PAGE

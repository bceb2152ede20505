"""How a rank's window memory is reached: directly where it is mapped here, by system calls where it is private.

Private memory of another process is copied by the kernel, one system call for up to 1,024 blocks. Where the kernel refuses
that (a container without ptrace, another user's process) the error says what to do instead.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from array import array
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from ncclx_mpi import errors
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Integers, Layout, Strided
from numba_kernels.layout import WORD, zeroed
from numba_kernels.rows import NamedTuple

_MOST_BLOCKS = 1024


class Place(NamedTuple):
    """Elements in a window: `number` of a layout, the first one's origin `start` bytes after the window's first byte."""

    layout: Layout
    number: int
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements when packed."""
        return self.number * self.layout.size


Landing = tuple[int, Any, Callable[[int], None]]
"""Address for packed elements to arrive at, what keeps it valid, and what to call with their bytes then."""


class Reach(Protocol):
    """Copies to and from the window memory of one rank."""

    def read(self, place: Place, packed: int) -> None:
        """Copy elements to packed bytes at an address of this process."""

    def write(self, place: Place, packed: int) -> None:
        """Copy packed bytes at an address of this process to elements."""


class Mapped:
    """Memory that this process has mapped, at `address`: its own, or a peer's in the arena."""

    def __init__(self, address: int) -> None:
        self.address = address

    def read(self, place: Place, packed: int) -> None:
        """Copy elements to packed bytes."""
        packing.pack(place.layout, self.address + place.start, place.number, packed)

    def write(self, place: Place, packed: int) -> None:
        """Copy packed bytes to elements."""
        packing.unpack(place.layout, packed, place.number * place.layout.size, self.address + place.start)


class Private:
    """Memory of another process.

    Parameters
    ----------
    rank
        Whose it is, for messages.
    pid, address
        The process, and where in it the window begins.
    token, token_at
        A number that the process holds at an address: in another PID namespace `pid` may be a stranger.
    is_alive
        Whether the rank has neither finalized nor died: later `pid` may be a stranger's (:mod:`transports.shm.cma`).
    on_known
        Called when the process was found to be the right one.
    """

    def __init__(
        self,
        rank: int,
        pid: int,
        address: int,
        token: int,
        token_at: int,
        is_alive: Callable[[], bool] = lambda: True,
        on_known: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.address = address
        self._token = token
        self._token_at = token_at
        self._is_alive = is_alive
        self._on_known = on_known
        self._is_known = False

    def read(self, place: Place, packed: int) -> None:
        """Copy elements to packed bytes."""
        self._check_process()
        self._move(_calls().process_vm_readv, place, packed)

    def write(self, place: Place, packed: int) -> None:
        """Copy packed bytes to elements."""
        self._check_process()
        self._move(_calls().process_vm_writev, place, packed)

    def _check_process(self) -> None:
        """Find out once whether the process is the one that made the window."""
        if self._is_known:
            return
        found, found_at = zeroed(WORD)
        self._copy(_calls().process_vm_readv, array("q", [self._token_at, WORD]), found_at)
        if found[0] != self._token:
            self._refuse(f"process {self.pid} is another one there")
        self._is_known = True
        self._on_known()

    def _move(self, call: Any, place: Place, packed: int) -> None:
        """Copy between elements and packed bytes, so many elements at a time that the list of their blocks stays small."""
        for layout, start, number in place.layout.runs(place.start, place.number):
            step = number if layout.contiguous else max(1, 16 * _MOST_BLOCKS // (len(layout.typemap) // 2))
            for first in range(0, number, step):
                some = Place(layout, min(step, number - first), start + first * layout.extent)
                self._copy(call, self._blocks(some), packed + first * layout.size)
            packed += number * layout.size

    def _blocks(self, place: Place) -> Integers:
        """Address in the other process and length of each block, in packing order."""
        layout, number, start = place
        elements = Strided(layout, 1, number, start=self.address + start)
        blocks, rows = zeroed(2 * WORD * elements.nblocks)
        del blocks[2 * elements.tile(rows, 0) :]
        return blocks

    def _copy(self, call: Any, blocks: Integers, packed: int) -> None:
        """Copy between blocks of the other process and packed bytes of this one."""
        while blocks:
            batch = blocks[: 2 * _MOST_BLOCKS]
            here = array("q", [packed, sum(batch[1::2])])
            if not self._is_alive():
                self._explain(errno.ESRCH)
            moved: int = call(self.pid, here.buffer_info()[0], 1, batch.buffer_info()[0], len(batch) // 2, 0)
            if moved <= 0:
                self._explain(ctypes.get_errno() if moved else errno.EFAULT)
            blocks = _after(blocks, moved)
            packed += moved

    def _explain(self, number: int) -> NoReturn:
        if number == errno.ESRCH:
            errors.fail(errors.ERR_PROC_FAILED, f"rank {self.rank} (process {self.pid}) is gone, and its window memory with it")
        if number == errno.EFAULT:
            errors.fail(errors.ERR_RMA_RANGE, f"rank {self.rank} has released memory of the window: free the window first")
        self._refuse(os.strerror(number))

    def _refuse(self, why: str) -> NoReturn:
        errors.fail(
            errors.ERR_RMA_SHARED,
            f"the window memory of rank {self.rank} is private, and this system does not let other processes reach it ({why}); "
            "take memory from MPI.Win.Allocate, or give MPI.Win.Create memory from MPI.Alloc_mem",
        )


def _after(blocks: Integers, nbytes: int) -> Integers:
    """What is left of blocks when their first bytes are done."""
    done = 0
    while nbytes and nbytes >= blocks[done + 1]:
        nbytes -= blocks[done + 1]
        done += 2
    left = blocks[done:]
    if nbytes:
        left[0] += nbytes
        left[1] -= nbytes
    return left


@functools.cache
def _calls() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
        call.restype = ctypes.c_ssize_t
    return libc

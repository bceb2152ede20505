"""The file pointer that all ranks of a file share: one word of rank 0, in a window, which reaches ranks of other nodes too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ncclx_mpi import errors
from ncclx_mpi.arguments.buffer import nothing
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.rma.reach import Place
from ncclx_mpi.rma.window import Part, Window
from numba_kernels.layout import zeroed

_WORD = 8
_ROOT = 0


class SharedPointer:
    """A number that ranks add to in turn. Made and closed collectively."""

    def __init__(self, comm: NativeComm) -> None:
        heap = comm.engine.arena.open_heap(comm.engine.local_rank)

        def prepare() -> Part:
            if comm.rank != _ROOT:
                return Part(0, 0, 1)
            try:
                address = heap.allocate(_WORD)
            except MemoryError as error:
                errors.fail(errors.ERR_NO_MEM, f"rank {comm.rank}: no memory for the shared file pointer: {error}")
            return Part(address, _WORD, 1, None, lambda: heap.free(address))

        self._window = Window(comm, prepare, _no_function)
        self._place = Place(LAYOUTS["INT64_T"], 1, 0)
        self._word, self._word_at = zeroed(_WORD)
        self._turn = threading.RLock()

    def get(self) -> int:
        """Return its value."""
        with self._locked():
            return self._read()

    def set(self, value: int) -> None:
        """Give it a value."""
        with self._locked():
            self._write(value)

    def add(self, value: int) -> int:
        """Add to it, and return what it was before; no other rank comes in between."""
        with self._locked():
            before = self._read()
            self._write(before + value)
        return before

    def close(self) -> None:
        """Give it up, when all ranks have come here."""
        self._window.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._turn:
            self._window.lock(_ROOT, True)
            try:
                yield
            finally:
                self._window.unlock(_ROOT)

    def _read(self) -> int:
        fetch = self._window.target(_ROOT).read(self._place, (self._word_at, self._word, nothing))
        if fetch is not None:
            fetch.wait()
        return self._word[0]

    def _write(self, value: int) -> None:
        self._word[0] = value
        self._window.target(_ROOT).write(self._place, self._word_at)


def _no_function(number: int) -> tuple[int, bool]:
    """Nothing is accumulated in this window."""
    errors.fail(errors.ERR_OP, f"the window of a file pointer has no reduction {number}")

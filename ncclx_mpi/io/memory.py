"""The memory of one access: its packed bytes, in pieces of any length.

Host memory is read and written where it is, gaps are left out piece by piece. What is in a GPU's memory, or is converted, is copied
as a whole, since neither can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ncclx_mpi.arguments import Buffer
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.io.representation import Representation
from numba_kernels.late_numpy import np

_PIECE = 4 << 20
"""Bytes of memory with gaps that are moved at a time."""


class Memory:
    """What an access takes from memory (:func:`outgoing`) or brings there (:func:`incoming`).

    Attributes
    ----------
    nbytes
        Packed bytes.
    address
        Of the packed bytes, 0 where they are nowhere as such.
    """

    def __init__(self, buffer: Buffer, representation: Representation, *, is_copied: bool) -> None:
        self.nbytes = buffer.nbytes
        self._buffer = buffer
        self._representation = representation
        self._copy = buffer.copy() if is_copied and buffer.nbytes else None
        self._room: Any = None
        self.address = buffer.address if buffer.is_direct else 0
        if self._copy is not None:
            self.address = self._copy.address

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First byte and length of each piece to be moved."""
        step = self.nbytes if self.address else _PIECE
        for first in range(0, self.nbytes, max(step, 1)):
            yield first, min(step, self.nbytes - first)

    def load(self, first: int, nbytes: int) -> int:
        """Return an address of some bytes, valid until the next call."""
        if self.address:
            return self.address + first
        address = self.room(first, nbytes)
        self.pack(first, nbytes, address)
        return address

    def pack(self, first: int, nbytes: int, target: int) -> None:
        """Copy some bytes to an address."""
        packing.pack_part(self._buffer.layout, self._buffer.origin, first, nbytes, target)

    def room(self, first: int, nbytes: int) -> int:
        """Return an address for some bytes to come to, for :meth:`store` then."""
        if self.address:
            return self.address + first
        if self._room is None or len(self._room) < nbytes:
            self._room = np.empty(nbytes, np.uint8)
        return array_words(self._room)[0]

    def store(self, first: int, nbytes: int, source: int) -> None:
        """Put bytes where they belong that have come to an address which is not that already."""
        if not self.address:
            packing.unpack_part(self._buffer.layout, source, first, nbytes, self._buffer.origin)

    def encode(self) -> None:
        """Copy and convert what is to go out."""
        if self._copy is not None:
            self._copy.load()
            if self._representation.encode is not None:
                self._representation.encode(self.address, self._buffer)

    def finish(self, nbytes: int) -> None:
        """Convert the bytes that have come, and put them where they belong."""
        if self._copy is not None and nbytes:
            if self._representation.decode is not None:
                self._representation.decode(self.address, self._buffer)
            self._copy.store(nbytes)


def outgoing(buffer: Buffer, representation: Representation) -> Memory:
    """What is to be written."""
    memory = Memory(buffer, representation, is_copied=buffer.device is not None or representation.encode is not None)
    memory.encode()
    return memory


def incoming(buffer: Buffer, representation: Representation) -> Memory:
    """What is to be read; call its :meth:`Memory.finish` at the end."""
    return Memory(buffer, representation, is_copied=buffer.device is not None or representation.decode is not None)

"""What the resolver returns: memory, how much of it, and of which type; and its way to and from packed bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import array_words

if TYPE_CHECKING:
    from ncclx_mpi.api.datatype import Datatype

Finish = Callable[[int], None]


class Buffer:
    """`count` elements of one datatype.

    Attributes
    ----------
    address
        Of the first byte if the elements are contiguous, else of the origin of the first element.
    nbytes
        Bytes when packed; what a message of it is long.
    owner
        Keeps the memory alive and in place.
    """

    __slots__ = ("address", "contiguous", "count", "datatype", "layout", "nbytes", "owner", "readonly")

    def __init__(self, address: int, count: int, datatype: Datatype, layout: Layout, owner: Any, readonly: bool) -> None:
        self.count = count
        self.datatype = datatype
        self.layout = layout
        self.nbytes = count * layout.packed
        self.owner = owner
        self.readonly = readonly
        self.contiguous = layout.contiguous
        self.address = address + layout.true_lb if self.contiguous else address

    @property
    def itemsize(self) -> int:
        """Bytes of one packed element."""
        return self.layout.packed

    @property
    def origin(self) -> int:
        """Address of offset 0 of the first element, which need not be in the buffer."""
        return self.address - self.layout.true_lb if self.contiguous else self.address

    def packed(self) -> tuple[int, Any]:
        """Address of the packed elements, and what keeps it valid: the memory itself where that is contiguous."""
        if self.contiguous:
            return self.address, self.owner
        return self._copy()

    def landing(self, filled: bool = False) -> tuple[int, Any, Finish]:
        """Address for packed elements to arrive at, what keeps it valid, and what to call with their bytes then.

        Parameters
        ----------
        filled
            The packed elements are there already, as operands of a reduction in place.
        """
        if self.contiguous:
            return self.address, self.owner, _nothing
        address, temporary = self._copy() if filled else _temporary(self.nbytes)
        layout, target, owner = self.layout, self.address, self.owner

        def finish(nbytes: int) -> None:
            packing.unpack(layout, address, nbytes, target)

        return address, (temporary, owner), finish

    def _copy(self) -> tuple[int, Any]:
        address, temporary = _temporary(self.nbytes)
        packing.pack(self.layout, self.address, self.count, address)
        return address, temporary


class VBuffer:
    """Blocks of one datatype, one for each rank, at displacements in extents.

    Attributes
    ----------
    address
        Of displacement 0, in the sense of :class:`Buffer`.
    counts, displs
        In elements and extents, one for each rank.
    """

    __slots__ = ("address", "contiguous", "counts", "datatype", "displs", "layout", "owner", "readonly")

    def __init__(
        self,
        address: int,
        counts: list[int],
        displs: list[int],
        datatype: Datatype,
        layout: Layout,
        owner: Any,
        readonly: bool,
    ) -> None:
        self.counts = counts
        self.displs = displs
        self.datatype = datatype
        self.layout = layout
        self.owner = owner
        self.readonly = readonly
        self.contiguous = layout.contiguous
        self.address = address + layout.true_lb if self.contiguous else address

    @property
    def itemsize(self) -> int:
        """Bytes of one packed element."""
        return self.layout.packed

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks when packed."""
        return sum(self.counts) * self.layout.packed

    @property
    def sizes(self) -> list[int]:
        """Bytes of each block when packed."""
        return [count * self.layout.packed for count in self.counts]

    def block(self, rank: int) -> Buffer:
        """The block of one rank."""
        origin = self.address - self.layout.true_lb if self.contiguous else self.address
        return Buffer(
            origin + self.displs[rank] * self.layout.extent,
            self.counts[rank],
            self.datatype,
            self.layout,
            self.owner,
            self.readonly,
        )

    def packed(self) -> tuple[int, list[int], Any]:
        """Address of packed blocks, offset of each in bytes, and what keeps it valid."""
        if self.contiguous:
            return self.address, [displ * self.layout.extent for displ in self.displs], self.owner
        return self._copy()

    def landing(self, filled: bool = False) -> tuple[int, list[int], Any, Callable[[], None]]:
        """Address for packed blocks to arrive at, offset of each, what keeps it valid, what to call when all are there."""
        if self.contiguous:
            address, offsets, owner = self.packed()
            return address, offsets, owner, _done
        if filled:
            address, offsets, temporary = self._copy()
        else:
            offsets, total = _offsets(self.sizes)
            address, temporary = _temporary(total)
        blocks = [self.block(rank) for rank in range(len(self.counts))]
        return address, offsets, (temporary, self.owner), _unpack_all(address, offsets, blocks)

    def _copy(self) -> tuple[int, list[int], Any]:
        return _pack_all([self.block(rank) for rank in range(len(self.counts))])


class WBuffer:
    """Blocks of different datatypes, one for each rank, at displacements in bytes."""

    __slots__ = ("blocks", "owner")

    def __init__(self, blocks: list[Buffer], owner: Any) -> None:
        self.blocks = blocks
        self.owner = owner

    @property
    def sizes(self) -> list[int]:
        """Bytes of each block when packed."""
        return [block.nbytes for block in self.blocks]

    def block(self, rank: int) -> Buffer:
        """The block of one rank."""
        return self.blocks[rank]

    def packed(self) -> tuple[int, list[int], Any]:
        """Address of packed blocks, offset of each in bytes, and what keeps it valid."""
        return _pack_all(self.blocks)

    def landing(self, filled: bool = False) -> tuple[int, list[int], Any, Callable[[], None]]:
        """Address for packed blocks to arrive at, offset of each, what keeps it valid, what to call when all are there."""
        if filled:
            address, offsets, temporary = _pack_all(self.blocks)
        else:
            offsets, total = _offsets(self.sizes)
            address, temporary = _temporary(total)
        return address, offsets, (temporary, self.owner), _unpack_all(address, offsets, self.blocks)


def _nothing(nbytes: int) -> None:
    """Data arrived where it belongs."""


def _done() -> None:
    """All blocks arrived where they belong."""


def _temporary(nbytes: int) -> tuple[int, Any]:
    memory = np.empty(max(nbytes, 1), np.uint8)
    return array_words(memory)[0], memory


def _offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Offsets of blocks one after the other, and their sum."""
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += size
    return offsets, total


def _pack_all(blocks: list[Buffer]) -> tuple[int, list[int], Any]:
    offsets, total = _offsets([block.nbytes for block in blocks])
    address, temporary = _temporary(total)
    for offset, block in zip(offsets, blocks, strict=True):
        packing.pack(block.layout, block.origin, block.count, address + offset)
    return address, offsets, temporary


def _unpack_all(address: int, offsets: list[int], blocks: list[Buffer]) -> Callable[[], None]:
    def finish() -> None:
        for offset, block in zip(offsets, blocks, strict=True):
            packing.unpack(block.layout, address + offset, block.nbytes, block.origin)

    return finish

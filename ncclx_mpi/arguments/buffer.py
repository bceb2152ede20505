"""What the resolver returns: memory, how much of it, and of which type; and its way to and from packed bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ncclx_mpi.arguments import bounce_buffers, gpu_packing
from ncclx_mpi.arguments.gpu_packing import Piece
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.errors import ERR_NO_MEM, fail
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.api.datatype import Datatype

Finish = Callable[[int], None]


class Elements:
    """Memory of elements of one datatype.

    Attributes
    ----------
    address
        Of the first byte if the elements are contiguous, else of the origin of the first element.
    owner
        Keeps the memory alive and in place.
    device
        The GPU's memory that it lies in, None for the host's.
    is_direct
        Whether the memory itself is the packed elements, for the CPU: contiguous and the host's.
    """

    __slots__ = ("address", "contiguous", "datatype", "device", "is_direct", "layout", "owner", "readonly")

    def __init__(
        self, address: int, datatype: Datatype, layout: Layout, owner: Any, readonly: bool, device: DeviceMemory | None
    ) -> None:
        self.datatype = datatype
        self.layout = layout
        self.owner = owner
        self.readonly = readonly
        self.device = device
        self.contiguous = layout.contiguous
        self.is_direct = self.contiguous and device is None
        self.address = address + layout.true_lb if self.contiguous else address

    @property
    def itemsize(self) -> int:
        """Bytes of one packed element."""
        return self.layout.size

    @property
    def origin(self) -> int:
        """Address of offset 0 of the first element, which need not be in the buffer."""
        return self.address - self.layout.true_lb if self.contiguous else self.address


class Buffer(Elements):
    """`count` elements of one datatype.

    Attributes
    ----------
    nbytes
        Bytes when packed; what a message of it is long.
    """

    __slots__ = ("count", "nbytes")

    def __init__(
        self,
        address: int,
        count: int,
        datatype: Datatype,
        layout: Layout,
        owner: Any,
        readonly: bool,
        device: DeviceMemory | None = None,
    ) -> None:
        super().__init__(address, datatype, layout, owner, readonly, device)
        self.count = count
        self.nbytes = count * layout.size

    def times(self, blocks: int) -> Buffer:
        """All `blocks` equal blocks, of which this one is the first, as one buffer."""
        return self._part(0, self.count * blocks)

    def at(self, index: int) -> Buffer:
        """Block `index` of equal blocks, of which this one is the first."""
        return self._part(index * self.count, self.count)

    def each(self, blocks: int) -> VBuffer:
        """All `blocks` equal blocks, of which this one is the first."""
        counts, displs = [self.count] * blocks, [self.count * index for index in range(blocks)]
        return VBuffer(self.origin, counts, displs, self.datatype, self.layout, self.owner, self.readonly, self.device)

    def split(self, counts: Sequence[int]) -> list[Buffer]:
        """Buffers of so many elements each, one after the other."""
        return [self._part(end - count, count) for count, end in zip(counts, accumulate(counts), strict=True)]

    def _part(self, first: int, count: int) -> Buffer:
        start = self.origin + first * self.layout.extent
        return Buffer(start, count, self.datatype, self.layout, self.owner, self.readonly, self.device)

    def copy(self) -> Copy:
        """Room for the packed elements, elsewhere."""
        return Copy([self])

    def packed(self) -> tuple[int, Any]:
        """Address of the packed elements, and what keeps it valid: the memory itself where that is direct."""
        if self.is_direct:
            return self.address, self.owner
        run = self._run()
        if run is not None:
            run.load(self.nbytes)
            return run.room.address, run.room
        copy = self.copy()
        copy.load()
        return copy.address, copy.owner

    def landing(self, filled: bool = False) -> tuple[int, Any, Finish]:
        """Address for packed elements to arrive at, what keeps it valid, and what to call with their bytes then.

        Parameters
        ----------
        filled
            The packed elements are there already, as operands of a reduction in place.
        """
        if self.is_direct:
            return self.address, self.owner, nothing
        run = self._run()
        if run is not None:
            if filled:
                run.load(self.nbytes)
            return run.room.address, (run.room, self.owner), run.store
        copy = self.copy()
        if filled:
            copy.load()
        return copy.address, (copy.owner, self.owner), copy.store

    def _run(self) -> _Run | None:
        """Pinned memory for contiguous elements of a GPU, None for any others."""
        if self.device is None or not self.contiguous or not self.nbytes:
            return None
        room = gpu_packing.lease(self.device, self.nbytes)
        return _Run(self.device, self.address, room) if room.is_pinned else None


class _Run(NamedTuple):
    """Contiguous elements of a GPU, and where they are packed: one copy, where :class:`Copy` asks for the kinds of many."""

    device: DeviceMemory
    address: int
    room: staging.Lease

    def load(self, nbytes: int) -> None:
        """Copy to the packed elements."""
        self.device.copy_now(self.room.address, self.address, nbytes, self.room)

    def store(self, nbytes: int) -> None:
        """Copy the first bytes of the packed elements to where they belong."""
        if nbytes:
            self.device.copy_now(self.address, self.room.address, nbytes, self.room)


class VBuffer(Elements):
    """Blocks of one datatype, one for each rank, at displacements in extents from :attr:`address`.

    Attributes
    ----------
    counts, displs
        In elements and extents, one for each rank.
    """

    __slots__ = ("counts", "displs")

    def __init__(
        self,
        address: int,
        counts: list[int],
        displs: list[int],
        datatype: Datatype,
        layout: Layout,
        owner: Any,
        readonly: bool,
        device: DeviceMemory | None = None,
    ) -> None:
        super().__init__(address, datatype, layout, owner, readonly, device)
        self.counts = counts
        self.displs = displs

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks when packed."""
        return sum(self.counts) * self.layout.size

    @property
    def sizes(self) -> list[int]:
        """Bytes of each block when packed."""
        return [count * self.layout.size for count in self.counts]

    @property
    def offsets(self) -> list[int]:
        """Bytes from :attr:`address` to each block, where elements are contiguous."""
        return [displ * self.layout.extent for displ in self.displs]

    def block(self, rank: int) -> Buffer:
        """The block of one rank."""
        start = self.origin + self.displs[rank] * self.layout.extent
        return Buffer(start, self.counts[rank], self.datatype, self.layout, self.owner, self.readonly, self.device)

    def only(self, kept: Sequence[bool]) -> VBuffer:
        """The same blocks, but those that are not kept are empty."""
        if all(kept):
            return self
        counts = [count if stays else 0 for count, stays in zip(self.counts, kept, strict=True)]
        return VBuffer(self.origin, counts, self.displs, self.datatype, self.layout, self.owner, self.readonly, self.device)

    def copy(self) -> Copy:
        """Room for the packed blocks, elsewhere."""
        return Copy([self.block(rank) for rank in range(len(self.counts))])


class WBuffer:
    """Blocks of different datatypes, one for each rank, at displacements in bytes."""

    __slots__ = ("blocks", "device", "owner")
    is_direct = False

    def __init__(self, blocks: list[Buffer], owner: Any, device: DeviceMemory | None = None) -> None:
        self.blocks = blocks
        self.owner = owner
        self.device = device

    @property
    def sizes(self) -> list[int]:
        """Bytes of each block when packed."""
        return [block.nbytes for block in self.blocks]

    def block(self, rank: int) -> Buffer:
        """The block of one rank."""
        return self.blocks[rank]

    def only(self, kept: Sequence[bool]) -> WBuffer:
        """The same blocks, but those that are not kept are empty."""
        blocks = [block if stays else block.times(0) for block, stays in zip(self.blocks, kept, strict=True)]
        return WBuffer(blocks, self.owner, self.device)

    def copy(self) -> Copy:
        """Room for the packed blocks, elsewhere."""
        return Copy(self.blocks)


class Copy:
    """Packed bytes that stand for blocks which the engine cannot use where they are: scattered, or in a GPU's memory.

    Attributes
    ----------
    address, offsets
        Of the packed bytes, and where each block is in them.
    owner
        Keeps them alive and in place; pinned memory for blocks of a GPU.
    """

    __slots__ = ("_blocks", "address", "offsets", "owner")

    def __init__(self, blocks: list[Buffer]) -> None:
        self._blocks = blocks
        *self.offsets, total = accumulate((block.nbytes for block in blocks), initial=0)
        device = next((block.device for block in blocks if block.device is not None), None)
        self.owner: Any
        if device is None:
            self.address, self.owner = _room(total)
        else:
            self.owner = gpu_packing.lease(device, total)
            self.address = self.owner.address

    def load(self) -> None:
        """Pack the blocks."""
        for device, pieces in self._pieces(-1).items():
            if device is None:
                for layout, origin, nbytes, packed, _ in pieces:
                    packing.pack(layout, origin, nbytes // max(layout.size, 1), packed)
            else:
                bounce_buffers.read(device, pieces, self.owner)

    def store(self, nbytes: int = -1) -> None:
        """Unpack to the blocks; of a single one perhaps the first `nbytes` bytes only."""
        for device, pieces in self._pieces(nbytes).items():
            if device is None:
                for layout, origin, length, packed, _ in pieces:
                    packing.unpack(layout, packed, length, origin)
            else:
                bounce_buffers.write(device, pieces, self.owner)

    def _pieces(self, nbytes: int) -> dict[DeviceMemory | None, list[Piece]]:
        """What is to be moved, by whose memory it is in: addresses of a single call may be of both kinds."""
        found: dict[DeviceMemory | None, list[Piece]] = {}
        for offset, block in zip(self.offsets, self._blocks, strict=True):
            piece = Piece(block.layout, block.origin, block.nbytes if nbytes < 0 else nbytes, self.address + offset)
            found.setdefault(block.device, []).append(piece)
        return found


def _room(nbytes: int) -> tuple[int, Any]:
    """Memory for packed elements."""
    try:
        return allocate(nbytes)
    except MemoryError:
        fail(ERR_NO_MEM, f"no memory for {nbytes} bytes of elements with gaps, which are packed on their way; move fewer at a time")


def nothing(nbytes: int) -> None:
    """Data arrived where it belongs, or goes on from there."""

"""A collective of device arrays by way of the host, piece by piece: the copies of one run beside the engine's work on another.

::

    copies to the host      | load 0 | load 1 | load 2 | load 3 |
    engine                           |  run 0 |  run 1 |  run 2 |  run 3 |
    copies to the device                      | store 0| store 1| store 2| store 3|

What a piece is, and how ranks come to cut alike, is in :mod:`ncclx_mpi.device.parts`. Each is a collective of the host path, so it is
found out there if ranks disagree. In place, no piece overwrites what a later one reads: results go to the columns that they were made
of, and those of a reduce_scatter to the begin of the array, which is never behind them.

T = alpha (1 + pieces) + the largest of T(copies to the host), T(collective), T(copies to the device), with at most
5 * :data:`~ncclx_mpi.device.parts.PIECE` bytes of pinned memory on a rank, whatever the length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar, cast

from ncclx_mpi.arguments import Buffer, VBuffer, WBuffer, bounce_buffers, gpu_packing
from ncclx_mpi.device import board
from ncclx_mpi.device.offers import Operand
from ncclx_mpi.device.parts import Blocks, Cut, Parts
from ncclx_mpi.gpu_memory.copying import Copies
from ncclx_mpi.gpu_memory.memory import DeviceMemory, keep_for_good
from ncclx_mpi.gpu_memory.staging import Lease
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.jit import entry

_READ, _WRITTEN = 2, 3
"""Pieces of an operand in pinned memory at a time: one is loaded while the engine has another, and a third is stored."""

T = TypeVar("T", bound=Buffer | VBuffer | WBuffer)


class Binding(Protocol):
    """What makes the arguments of a collective from its operands: they as a whole, or a piece of them."""

    counts: Sequence[int]

    def part(self, operand: T) -> T:
        """What is taken of an operand, as far as counts and bytes tell."""

    def reading(self, buffer: Buffer | None) -> int:
        """Return the address of packed elements to read, 0 for None."""

    def writing(self, buffer: Buffer | None, *, filled: bool = False) -> int:
        """Return the address of packed elements to write, 0 for None; `filled`: they are read first."""

    def reading_blocks(self, blocks: VBuffer | WBuffer) -> tuple[int, list[int]]:
        """Return the address of packed blocks to read, and the offset of each."""

    def writing_blocks(self, blocks: VBuffer | WBuffer, *, filled: bool = False) -> tuple[int, list[int]]:
        """Return the address of packed blocks to write, and the offset of each; `filled`: they are read first."""


Bind = Callable[[Binding], tuple[Any, ...]]


def carry_out(
    comm: NativeComm,
    collective: Callable[..., None],
    bind: Bind,
    operands: tuple[Operand, Operand],
    counts: Sequence[int],
    parts: Parts,
    cut: Cut,
) -> None:
    """Carry a collective out that all ranks cut alike.

    Parameters
    ----------
    collective
        Function of :mod:`ncclx_mpi.collectives`, which takes the communicator and what `bind` returns.
    operands, counts, parts
        What this rank gives and gets, and what :func:`ncclx_mpi.device.parts.bring` made of it. Borrowed until it returns.

    Raises
    ------
    Exception
        As the collective. ERR_BUFFER: an array was freed. ERR_NO_MEM: there is no memory for a piece. ERR_OTHER: the driver
        failed. The communicator takes no more collectives then, and the other ranks raise too.
    """
    work = _Pieces(comm, bind, operands, counts, parts, cut)
    try:
        work.run(collective)
    except BaseException:
        work.give_up()
        raise


class Columns:
    """A piece of each block of an operand, packed.

    Attributes
    ----------
    address, sizes, offsets
        Where they are, and bytes and places of each.
    nbytes, count
        Bytes and elements of all.
    """

    __slots__ = ("address", "count", "nbytes", "offsets", "sizes")

    def __init__(self, address: int, sizes: list[int], itemsize: int) -> None:
        self.address = address
        self.sizes = sizes
        self.offsets = [0, *accumulate(sizes)][:-1]
        self.nbytes = sum(sizes)
        self.count = self.nbytes // max(itemsize, 1)


class _Operand:
    """Blocks that are cut, and pinned memory for `depth` pieces of them."""

    def __init__(self, blocks: Blocks, step: int, lender: DeviceMemory, depth: int) -> None:
        self._blocks, self._step, self._lender = blocks, step, lender
        self._rooms: list[Lease | None] = [None] * depth
        self._under_way: list[list[Copies]] = [[] for _ in range(depth)]
        self._after: dict[DeviceMemory, Any] = {}
        for memory in {block.device: None for block in blocks if block.device is not None}:
            with memory.current() as driver:
                memory.check_usable()
                self._after[memory] = driver.record(memory.stream.handle)

    @property
    def are_copies_under_way(self) -> bool:
        return any(copies.are_under_way for each in self._under_way for copies in each)

    def columns(self, index: int) -> Columns:
        """Where piece `index` is in pinned memory."""
        slot, first = index % len(self._rooms), index * self._step
        sizes = [min(max(block.nbytes - first, 0), self._step) for block in self._blocks]
        room = self._rooms[slot]
        if room is None:
            room = self._rooms[slot] = gpu_packing.lease(self._lender, sum(min(block.nbytes, self._step) for block in self._blocks))
        return Columns(room.address, sizes, self._blocks[0].itemsize)

    def load(self, index: int) -> None:
        """Begin to copy a piece to the host."""
        self._move(index, is_load=True)

    def store(self, index: int) -> None:
        """Begin to copy a piece back."""
        self._move(index, is_load=False)

    def wait(self, index: int) -> None:
        """Wait for the copies of a piece, or of the one that was in its place before."""
        slot = index % len(self._rooms)
        for copies in self._under_way[slot]:
            copies.wait()
        self._under_way[slot] = []

    def _move(self, index: int, *, is_load: bool) -> None:
        columns, slot, first = self.columns(index), index % len(self._rooms), index * self._step
        room = self._rooms[slot]
        assert room is not None
        for memory, after in self._after.items():
            moved = [
                gpu_packing.Piece(block.layout, block.origin, nbytes, columns.address + offset, first)
                for block, offset, nbytes in zip(self._blocks, columns.offsets, columns.sizes, strict=True)
                if block.device is memory and nbytes
            ]
            copies = Copies(memory, after)
            self._under_way[slot].append(copies)
            bounce_buffers.begin(copies, moved, room, is_load=is_load)


class _Stage:
    """A piece on its way: the :class:`Binding` of its arguments. What was set apart of an array in place is read as if it was given."""

    def __init__(self, work: _Pieces, index: int) -> None:
        self._work, self._index = work, index
        self._is_written = False
        self.counts: Sequence[int] = work.counts_of(index)
        self.arguments = work.bind(self)

    def part(self, operand: T) -> T:
        is_received = operand is self._work.operands[1]
        found = self._work.received if is_received else self._work.sent
        assert found is not None
        return cast("T", found.columns(self._index))

    def reading(self, buffer: Buffer | None) -> int:
        return self._read().address if self._work.sent is not None else 0

    def writing(self, buffer: Buffer | None, *, filled: bool = False) -> int:
        return self._write(filled).address if buffer is not None else 0

    def reading_blocks(self, blocks: VBuffer | WBuffer) -> tuple[int, list[int]]:
        columns = self._read()
        return columns.address, columns.offsets

    def writing_blocks(self, blocks: VBuffer | WBuffer, *, filled: bool = False) -> tuple[int, list[int]]:
        columns = self._write(filled)
        return columns.address, columns.offsets

    def _read(self) -> Columns:
        sent = self._work.sent
        assert sent is not None
        sent.load(self._index)
        return sent.columns(self._index)

    def _write(self, filled: bool) -> Columns:
        received = self._work.received
        assert received is not None
        self._is_written = True
        if filled and not self._work.is_parted:
            received.load(self._index)
        return received.columns(self._index)

    def wait(self) -> None:
        """Wait until what it reads is there."""
        for operand in self._work.everything:
            operand.wait(self._index)

    def store(self) -> None:
        """Begin to put into place what it brought."""
        if self._is_written and self._work.received is not None:
            self._work.received.store(self._index)


class _Pieces:
    """A call that is cut."""

    def __init__(
        self, comm: NativeComm, bind: Bind, operands: tuple[Operand, Operand], counts: Sequence[int], parts: Parts, cut: Cut
    ) -> None:
        self._comm, self._cut = comm, cut
        self._counts, self._itemsize = counts, parts.itemsize
        lender = next(block.device for block in (parts.sent or []) + (parts.received or []) if block.device is not None)
        self.bind, self.operands, self.is_parted = bind, operands, parts.is_parted
        self.sent, self.received = (
            None if blocks is None else _Operand(blocks, cut.step, lender, depth)
            for blocks, depth in ((parts.sent, _READ), (parts.received, _WRITTEN))
        )
        self.everything = [operand for operand in (self.sent, self.received) if operand is not None]

    def counts_of(self, index: int) -> list[int]:
        """Elements of each rank's block that belong to a piece."""
        step = self._cut.step // self._itemsize
        return [min(max(count - index * step, 0), step) for count in self._counts]

    def run(self, collective: Callable[..., None]) -> None:
        """Carry all pieces out."""
        begun = deque([self._begin(0)])
        for following in range(1, self._cut.pieces + 1):
            stage = begun.popleft()
            stage.wait()
            if following < self._cut.pieces:
                begun.append(self._begin(following))
            collective(self._comm, *stage.arguments)
            stage.store()
        for operand in self.everything:
            for index in range(_WRITTEN):
                operand.wait(index)

    def give_up(self) -> None:
        """Tell the ranks that wait; memory that the GPU may still use is kept."""
        if any(operand.are_copies_under_way for operand in self.everything):
            keep_for_good(self)
        if not self._comm.word("broken"):
            entry(board.abandon)(self._comm.address)

    def _begin(self, index: int) -> _Stage:
        for operand in self.everything:
            operand.wait(index)
        return _Stage(self, index)

"""What of a file a rank sees: elements of a filetype, one behind the other from a displacement on, without the holes in them.

::

    file    | disp | AAAA....BB.. | CCCC....DD.. |  filetype: blocks (0, 4) (8, 2), extent 12
    data           | AAAABBCCCCDD

*Positions* count bytes of that data, *offsets* bytes of the file. Both grow together, as MPI wants it of filetypes; so where the data
before an offset ends is found as fast as where a position is. Blocks of files that are only read may overlap: then that is not
exact, and ranks and system calls take each block for itself.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from ncclx_mpi import errors
from ncclx_mpi.buffers.layout import Layout, Run
from ncclx_mpi.buffers.memory import Words
from ncclx_mpi.io import extents
from numba_kernels.late_numpy import np
from numba_kernels.rows import NamedTuple

_MOST_ROWS = 1 << 15
"""Of one table of extents."""


_WHOLE = 1 << 62

MOST_BYTES = 1 << 62
"""More than any file has, and less than a word holds."""


class _Piece(NamedTuple):
    """A run of equal elements within an element of the filetype: where its data begins and ends, and its blocks."""

    first: int
    last: int
    run: Run
    blocks: Words
    starts: Words

    @property
    def size(self) -> int:
        return self.run.layout.size

    @property
    def start(self) -> int:
        return self.run.origin + int(self.blocks[0, 0])

    @property
    def extent(self) -> int:
        return self.run.layout.extent


class View:
    """A view of a file.

    Parameters
    ----------
    displacement
        Bytes before the first element.
    etype
        Layout of what positions are counted in, in calls.
    filetype
        Layout of what repeats in the file.
    datarep
        Name of the representation of data in the file.

    Attributes
    ----------
    is_dense
        Whether there are no holes: the data is one run of the file, from offset `start` on.
    overlaps
        Whether some bytes of the file are seen twice.
    """

    def __init__(self, displacement: int, etype: Layout, filetype: Layout, datarep: str) -> None:
        self.displacement = displacement
        self.etype = etype
        self.filetype = filetype
        self.datarep = datarep
        self.is_dense = bool(filetype.size) and filetype.contiguous
        self.start = displacement + filetype.true_lb
        self._pieces = [] if self.is_dense or not filetype.size else list(_pieces(filetype))
        self._ends = [piece.last for piece in self._pieces]
        self.overlaps = self._do_blocks_overlap()

    def check(self, is_written: bool) -> None:
        """Raise unless positions and offsets grow together.

        Raises
        ------
        Exception
            ERR_ARG: the filetype is not made of elements of the etype. ERR_TYPE: its displacements are negative or go back, or, where the
            file `is_written`, its blocks overlap.
        """
        etype, filetype = self.etype, self.filetype
        if not etype.size or filetype.size % etype.size:
            errors.fail(
                errors.ERR_ARG,
                f"a filetype of {filetype.size} bytes is not made of whole elements of an etype of {etype.size} bytes",
            )
        if filetype.size and filetype.true_lb < 0:
            errors.fail(errors.ERR_TYPE, f"the filetype has bytes before the view: its first one is at {filetype.true_lb}")
        for piece in self._pieces:
            if (np.diff(piece.blocks[:, 0]) < 0).any() or (piece.run.number > 1 and piece.extent < 0):
                _refuse("its displacements go back")
        goes_back = any(later.start < piece.start for piece, later in itertools.pairwise(self._pieces))
        if goes_back or (self._pieces and filetype.extent < 0):
            _refuse("its displacements go back")
        if is_written and self.overlaps:
            _refuse("its blocks overlap, or its extent is shorter than what it has, and the file is written")

    def _do_blocks_overlap(self) -> bool:
        end = 0
        for piece in self._pieces:
            offsets, ends = piece.blocks[:, 0], piece.blocks.sum(axis=1)
            layout, number = piece.run.layout, piece.run.number
            is_within = (offsets[1:] < ends[:-1]).any() or (number > 1 and layout.extent < layout.true_ub - layout.true_lb)
            if is_within or piece.start < end:
                return True
            end = piece.run.origin + (number - 1) * layout.extent + int(ends[-1])
        return bool(self._pieces) and self.filetype.extent < self.filetype.true_ub - self.filetype.true_lb

    def extents(self, position: int, nbytes: int) -> Iterator[Words]:
        """Where the `nbytes` bytes of data from a position on are in the file, in tables of bounded length."""
        if not nbytes:
            return
        self._need_data()
        self._need_reach(position + nbytes)
        if self.is_dense:
            yield np.array([[self.start + position, nbytes]], np.int64)
            return
        size, end = self.filetype.size, position + nbytes
        if len(self._pieces) == 1 and self._pieces[0].run.number == 1:
            piece = self._pieces[0]
            yield from self._tables(piece, self.displacement + piece.run.origin, position, end)
            return
        while position < end:
            element, inside = divmod(position, size)
            piece = self._pieces[bisect.bisect_right(self._ends, inside)]
            stop = min(piece.last, inside + end - position)
            origin = self.displacement + element * self.filetype.extent + piece.run.origin
            yield from self._tables(piece, origin, inside - piece.first, stop - piece.first)
            position += stop - inside

    def offset(self, position: int) -> int:
        """Where in the file the byte at a position is."""
        return int(next(self.extents(position, 1))[0, 0])

    def span(self, position: int, nbytes: int) -> tuple[int, int]:
        """Offsets of the first and after the last one of some bytes of data; both 0 of none."""
        return (self.offset(position), self.offset(position + nbytes - 1) + 1) if nbytes else (0, 0)

    def below(self, offset: int) -> int:
        """How many bytes of data there are before an offset."""
        filetype, left = self.filetype, offset - self.displacement
        if left <= filetype.true_lb or not filetype.size:
            return 0
        if self.is_dense:
            return left - filetype.true_lb
        element = (left - filetype.true_lb) // filetype.extent
        left -= element * filetype.extent
        return element * filetype.size + sum(_below(piece, left - piece.run.origin) for piece in self._pieces)

    def nblocks(self, nbytes: int) -> int:
        """About how many pieces of the file some bytes of data are; none of none."""
        if self.is_dense or not nbytes:
            return min(nbytes, 1)
        self._need_data()
        return max(nbytes * self.filetype.nblocks // self.filetype.size, 1)

    @property
    def piece(self) -> int:
        """About how many bytes one piece of the file has; very many of what has no holes, or no bytes, 0 of overlaps."""
        if self.overlaps:
            return 0
        is_whole = self.is_dense or not self.filetype.size
        return _WHOLE if is_whole else self.filetype.size // max(self.filetype.nblocks, 1)

    def whole(self, nbytes: int) -> int:
        """How many elements of the etype some bytes of data are.

        Raises
        ------
        Exception
            ERR_IO: the last one is not whole.
        """
        count, left = divmod(nbytes, self.etype.size)
        if left:
            errors.fail(errors.ERR_IO, f"{nbytes} bytes are not a whole number of elements of an etype of {self.etype.size} bytes")
        return count

    def _need_reach(self, end: int) -> None:
        """Raise unless the data before a position is at offsets that files can have."""
        filetype = self.filetype
        last = self.displacement + (-(-end // filetype.size) - 1) * filetype.extent + filetype.true_ub
        if not 0 <= last < MOST_BYTES:
            errors.fail(
                errors.ERR_ARG, f"an access up to element {end // self.etype.size} of the view ends at byte {last} of the file"
            )

    def _need_data(self) -> None:
        if not self.filetype.size:
            errors.fail(errors.ERR_IO, "the view has no bytes: its filetype is empty")

    def _tables(self, piece: _Piece, origin: int, first: int, end: int) -> Iterator[Words]:
        """The extents of the data from `first` to `end` of elements of a piece, whose first origin is at an offset."""
        size = piece.size
        extent = self.filetype.extent if piece.run.number == 1 else piece.extent
        blocks, starts = piece.blocks, piece.starts
        while first < end:
            element, inside = divmod(first, size)
            whole = (end - first) // size if not inside and len(blocks) <= _MOST_ROWS else 0
            if whole:
                number = min(whole, _MOST_ROWS // len(blocks))
                origins = origin + (element + np.arange(number)) * extent
                table = np.empty((number, len(blocks), 2), np.int64)
                table[:, :, 0] = origins[:, None] + blocks[:, 0]
                table[:, :, 1] = blocks[:, 1]
                yield extents.touching(table.reshape(-1, 2))
                first += number * size
                continue
            low = int(np.searchsorted(starts, inside, "right")) - 1
            stop = min(size, inside + end - first)
            high = min(int(np.searchsorted(starts, stop, "left")), low + _MOST_ROWS)
            some, skipped = blocks[low:high].copy(), inside - int(starts[low])
            some[:, 0] += origin + element * extent
            some[0] += (skipped, -skipped)
            stop = min(stop, int(starts[high - 1] + blocks[high - 1, 1]))
            some[-1, 1] = stop - max(int(starts[high - 1]), inside)
            yield extents.touching(some)
            first += stop - inside


def _pieces(filetype: Layout) -> Iterator[_Piece]:
    first = 0
    for run in filetype.runs(0, 1):
        blocks = run.layout.blocks
        last = first + run.number * run.layout.size
        yield _Piece(first, last, run, blocks, np.cumsum(blocks[:, 1]) - blocks[:, 1])
        first = last


def _below(piece: _Piece, left: int) -> int:
    """How many bytes of a piece lie before an offset from its origin."""
    layout, _, number = piece.run
    if left <= layout.true_lb:
        return 0
    element = min((left - layout.true_lb) // layout.extent, number - 1) if number > 1 else 0
    left -= element * layout.extent
    index = int(np.searchsorted(piece.blocks[:, 0], left, "left"))
    if not index:
        return element * layout.size
    offset, nbytes = map(int, piece.blocks[index - 1])
    return element * layout.size + int(piece.starts[index - 1]) + min(nbytes, left - offset)


def _refuse(why: str) -> None:
    errors.fail(errors.ERR_TYPE, f"this datatype cannot be a filetype: {why}")

"""What a datatype means for bytes: sizes, bounds, and the merged list of blocks that one element covers.

``size`` is what MPI calls the size, and how many bytes of an element travel: gaps stay behind, those inside of pairs like DOUBLE_INT too.
A :class:`Layout` is immutable but for its name and attributes. Handles (``MPI.Datatype``) point to one; freeing a
handle nulls that handle only, so a layout lives as long as a handle, a derived layout or a pending request needs it.
Sizes and bounds are computed at once, blocks only when a message needs them: programs build many types that
never travel. What is regular stays a rule: blocks are listed up to :data:`_FEW`, or a fixed number for each that the program listed
itself; larger layouts are walked as runs of smaller ones (:meth:`Layout.runs`).
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from ncclx_mpi import constants as mpi
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.errors import ERR_TYPE, fail
from numba_kernels.late_numpy import np, npt
from numba_kernels.rows import NamedTuple

Words: TypeAlias = "npt.NDArray[np.int64]"


Span = tuple[int, int, int, int]
"""Lower and upper bound, and the true ones."""


class Listed(NamedTuple):
    """Blocks of one old layout: `lengths[i]` elements of it at byte `offsets[i]`."""

    old: Layout
    lengths: Words
    offsets: Words

    @property
    def total(self) -> int:
        """Number of elements in all blocks."""
        return int(self.lengths.sum())

    @property
    def entries(self) -> int:
        """How many blocks the program listed one by one, here and in the old layout."""
        return len(self.lengths) + self.old.entries

    @property
    def nblocks(self) -> int:
        """At most so many blocks of bytes."""
        return len(self.lengths) if self.old.contiguous else self.total * self.old.nblocks

    def span(self) -> Span:
        """Bounds of all elements, of which there are some."""
        lengths, offsets = self.lengths, self.offsets
        used = lengths > 0
        if not used.all():
            lengths, offsets = lengths[used], offsets[used]
        reaches = (lengths - 1) * self.old.extent
        low = int((offsets + np.minimum(reaches, 0)).min())
        return _around(self.old, low, int((offsets + np.maximum(reaches, 0)).max()))

    def tile(self) -> Words:
        """Blocks of bytes of all elements."""
        old, lengths, offsets = self
        if len(old.blocks) == 1 and old.blocks[0, 1] == old.extent:
            return np.stack([offsets + old.blocks[0, 0], lengths * old.extent], axis=1)
        starts = np.repeat(offsets, lengths)
        within = np.arange(len(starts)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return _tiled(starts + within * old.extent, old.blocks)

    def runs(self, origin: int) -> Iterator[Run]:
        """The elements as runs of layouts whose blocks are few enough to be listed."""
        for length, offset in zip(self.lengths.tolist(), self.offsets.tolist(), strict=True):
            yield from self.old.runs(origin + offset, length)


class Strided:
    """Equal blocks of one old layout: `count` of `length` elements, whose starts are `step` bytes apart from byte `start` on.

    `total` and `entries` are those of :class:`Listed`.
    """

    __slots__ = ("_block", "count", "entries", "length", "old", "start", "step", "total")

    def __init__(self, old: Layout, count: int, length: int, step: int = 0, start: int = 0) -> None:
        if step == length * old.extent:
            count, length, step = 1, count * length, 0
        self.old = old
        self.count = count
        self.length = length
        self.step = step
        self.start = start
        self.total = count * length
        self.entries = old.entries
        self._block: Layout | None = None

    @property
    def nblocks(self) -> int:
        """At most so many blocks of bytes."""
        return self.count if self.old.contiguous else self.total * self.old.nblocks

    def span(self) -> Span:
        """Bounds of all elements, of which there are some."""
        low = high = self.start
        for reach in ((self.count - 1) * self.step, (self.length - 1) * self.old.extent):
            if reach < 0:
                low += reach
            else:
                high += reach
        return _around(self.old, low, high)

    def tile(self) -> Words:
        """Blocks of bytes of all elements."""
        old, starts = self.old, self.start + np.arange(self.count) * self.step
        if len(old.blocks) == 1 and old.blocks[0, 1] == old.extent:
            return np.stack([starts + old.blocks[0, 0], np.broadcast_to(self.length * old.extent, self.count)], axis=1)
        return _tiled((starts[:, None] + np.arange(self.length) * old.extent).reshape(-1), old.blocks)

    def runs(self, origin: int) -> Iterator[Run]:
        """The elements as runs of layouts whose blocks are few enough to be listed."""
        first = origin + self.start
        if self.count > 1 and self._one.is_flat:
            yield Run(self._one, first, self.count)
            return
        for k in range(self.count):
            yield from self.old.runs(first + k * self.step, self.length)

    @property
    def _one(self) -> Layout:
        """A block as one element, the next one a step further."""
        if self._block is None:
            self._block = Layout([Strided(self.old, 1, self.length)], None)
            self._block.resize(0, self.step)
        return self._block


Part = Listed | Strided


class Run(NamedTuple):
    """Elements one extent apart, the origin of the first one at an address."""

    layout: Layout
    origin: int
    number: int


class Recipe(NamedTuple):
    """How a derived type was made: what MPI calls envelope and contents. Arrays stand for their items."""

    combiner: int
    integers: tuple[int, ...]
    counts: tuple[int | Words, ...]
    layouts: tuple[Layout, ...]
    params: dict[str, Any]


class Layout:
    """Sizes, bounds, blocks and origin of a datatype.

    `is_plain` says that it is predefined: contiguous, from byte 0, and usable without a Commit; `is_met` that a message was of it.
    `entries` is how many blocks the program listed one by one, here and in the layouts that it is made of.
    """

    __slots__ = (
        "__weakref__",
        "_blocks",
        "_contiguous",
        "_handle",
        "_nblocks",
        "_table",
        "align",
        "attributes",
        "code",
        "committed",
        "entries",
        "extent",
        "has_bounds",
        "is_met",
        "is_plain",
        "kind",
        "lb",
        "name",
        "nbasic",
        "parts",
        "recipe",
        "size",
        "true_lb",
        "true_ub",
        "typechar",
        "typestr",
        "ub",
    )
    extent: int

    def __init__(self, parts: Sequence[Part], recipe: Recipe | None) -> None:
        self._handle = 0
        self.parts = parts
        self.recipe = recipe
        self.name = ""
        self.kind: str | None = None
        self.code: str | None = None
        self.typechar: str | None = None
        self.typestr: str | None = None
        self.committed = recipe is None
        self.attributes: dict[int, Any] | None = None
        self._blocks: list[Words] = []
        self._contiguous: bool | None = None
        self._nblocks: int | None = None
        self._table: tuple[int, int] | None = None
        self.is_plain = self.is_met = False
        self._measure()

    def _measure(self) -> None:
        """Derive sizes, bounds, alignment and the number of basic elements from the parts."""
        self.size = self.nbasic = 0
        self.entries = len(self.parts)
        self.align = 1
        self.has_bounds = False
        spans: list[tuple[Span, bool]] = []
        for part in self.parts:
            old, total = part.old, part.total
            self.entries += part.entries
            if not total:
                continue
            self.size += total * old.size
            self.nbasic += total * old.nbasic
            self.align = max(self.align, old.align)
            self.has_bounds |= old.has_bounds
            spans.append((part.span(), old.has_bounds))
        if len(spans) == 1:
            self.lb, self.ub, self.true_lb, self.true_ub = spans[0][0]
        elif spans:
            bounding = [span for span, has_bounds in spans if has_bounds or not self.has_bounds]
            self.lb, self.ub = min(span[0] for span in bounding), max(span[1] for span in bounding)
            self.true_lb, self.true_ub = min(span[2] for span, _ in spans), max(span[3] for span, _ in spans)
        else:
            self.lb = self.ub = self.true_lb = self.true_ub = 0
        self.extent = self.ub - self.lb

    def pad(self) -> None:
        """Round the extent up to the strictest alignment, as a C compiler pads a struct."""
        if not self.has_bounds:
            self.extent += -self.extent % self.align
            self.ub = self.lb + self.extent

    def resize(self, lb: int, extent: int) -> None:
        """Set explicit bounds."""
        self.lb, self.extent, self.ub = lb, extent, lb + extent
        self.has_bounds = True

    def reach(self, count: int) -> tuple[int, int]:
        """Offsets of the first byte of `count` elements and after their last one, from the origin of the first element."""
        if not count or not self.size:
            return 0, 0
        last = (count - 1) * self.extent
        return min(last, 0) + self.true_lb, max(last, 0) + self.true_ub

    @property
    def handle(self) -> int:
        """Number by which :func:`find` finds it, made when first asked for."""
        if not self._handle:
            with _handing_out:
                number = next(_handles)
                _by_handle[number] = self
                self._handle = self._handle or number
        return self._handle

    @property
    def blocks(self) -> Words:
        """Offset and length in bytes of each block of one element, in packing order, neighbours merged; of flat layouts only.

        Compiled code is told where they are, so they are the same for all threads, and stay: of several that are made at once the first.
        """
        if not self._blocks:
            self._blocks.append(_merge(np.concatenate([part.tile() for part in self._filled()] or [self._whole()])))
        return self._blocks[0]

    def _whole(self) -> Words:
        """The only block of a basic element; there is none in what has parts without bytes."""
        return np.array([[0, self.size]], np.int64)

    @property
    def table(self) -> tuple[int, int] | None:
        """Address and number of the blocks, as compiled code takes them; None of a layout that is not flat."""
        if self._table is None and self.is_flat:
            self._table = array_words(self.blocks)[0], len(self.blocks)
        return self._table

    @property
    def contiguous(self) -> bool:
        """Whether any number of elements, one after the other, covers one run of bytes."""
        if self._contiguous is None:
            self._contiguous = self.size == 0 or (self.size == self.extent and self.is_flat and len(self.blocks) == 1)
        return self._contiguous

    @property
    def nblocks(self) -> int:
        """At most so many blocks has one element."""
        if self._nblocks is None:
            self._nblocks = sum(part.nblocks for part in self._filled()) if self.parts else 1
        return self._nblocks

    @property
    def is_flat(self) -> bool:
        """Whether the blocks are few enough to be listed."""
        return self.nblocks <= max(_FEW, min(_EACH * self.entries, _MOST))

    def runs(self, origin: int, count: int) -> Iterator[Run]:
        """Walk `count` elements, the first one at `origin`, as runs of flat layouts in packing order."""
        if self.is_flat:
            yield Run(self, origin, count)
            return
        for k in range(count):
            for part in self._filled():
                yield from part.runs(origin + k * self.extent)

    def _filled(self) -> list[Part]:
        """The parts that have any bytes."""
        return [part for part in self.parts if part.total and part.old.size]

    @property
    def is_named(self) -> bool:
        """Whether it is one of the predefined types."""
        return self.recipe is None

    @property
    def is_predefined(self) -> bool:
        """Whether it exists without being made: those with a name, and what MPI chooses by precision and range for Fortran."""
        return self.recipe is None or self.recipe.combiner in _OF_FORTRAN

    def elements(self, nbytes: int) -> int:
        """Number of basic elements in the first `nbytes` packed bytes, or -1 if they end inside of one."""
        if self.size == 0:
            return 0 if nbytes == 0 else -1
        whole, rest = divmod(nbytes, self.size)
        found = whole * self.nbasic
        if rest and not self.parts:
            return -1
        for part in self.parts:
            taken = min(rest, part.total * part.old.size)
            inner = part.old.elements(taken)
            if inner < 0:
                return -1
            found += inner
            rest -= taken
        return found


_OF_FORTRAN = (mpi.COMBINER_F90_INTEGER, mpi.COMBINER_F90_REAL, mpi.COMBINER_F90_COMPLEX)
_FEW = 1 << 20
_EACH = 1024
_MOST = 1 << 26
"""Up to how many blocks are listed: 16 MiB of them, for each that the program listed 16 KiB more, and never more than 1 GiB."""

_handles = itertools.count(0x4C000001)
_handing_out = threading.RLock()
"""A finalizer, or a signal handler, may come in between."""
_by_handle: weakref.WeakValueDictionary[int, Layout] = weakref.WeakValueDictionary()


def words(values: Iterable[int]) -> Words:
    """Return `values` as an array of 64-bit integers."""
    return np.fromiter(values, np.int64)


def once(old: Layout) -> Strided:
    """One element of a layout, where it is."""
    return Strided(old, 1, 1)


def find(handle: int) -> Layout | None:
    """The layout with this handle, if it still lives."""
    return _by_handle.get(handle)


def basic(name: str, size: int, align: int) -> Layout:
    """Make a predefined layout of one basic element."""
    layout = Layout((), None)
    layout.name, layout.align, layout.nbasic = name, align, 1
    layout.size = size
    layout.ub = layout.true_ub = layout.extent = size
    layout._contiguous = layout.is_plain = True
    return layout


def pair(name: str, value: Layout, index: Layout) -> Layout:
    """Make the predefined layout of a value and its location: a C struct, whose padding belongs to the program."""
    offset = value.size + -value.size % index.align
    layout = Layout((once(value), Strided(index, 1, 1, start=offset)), None)
    layout.name = name
    layout.pad()
    layout._contiguous = layout.is_plain = layout.size == layout.extent
    return layout


def _around(old: Layout, low: int, high: int) -> Span:
    """Bounds of elements whose origins are from `low` to `high`."""
    return low + old.lb, high + old.ub, low + old.true_lb, high + old.true_ub


def _tiled(starts: Words, inner: Words) -> Words:
    """The blocks of elements whose origins are at `starts`."""
    tiled = np.empty((len(starts), len(inner), 2), np.int64)
    tiled[:, :, 0] = starts[:, None] + inner[:, 0]
    tiled[:, :, 1] = inner[:, 1]
    return tiled.reshape(-1, 2)


def _merge(blocks: Words) -> Words:
    """Drop empty blocks and join each block with the next where that follows it in memory."""
    blocks = blocks[blocks[:, 1] > 0]
    if len(blocks) < 2:
        return np.ascontiguousarray(blocks)
    first = np.concatenate([[True], blocks[1:, 0] != blocks[:-1, 0] + blocks[:-1, 1]])
    index = np.flatnonzero(first)
    return np.stack([blocks[index, 0], np.add.reduceat(blocks[:, 1], index)], axis=1)


def usable(layout: Layout | None, what: str) -> Layout:
    """Return `layout`, or raise ERR_TYPE if the handle is null or freed."""
    if layout is None:
        fail(ERR_TYPE, f"{what}: the datatype is null or was freed")
    return layout


def committed(layout: Layout | None, what: str) -> Layout:
    """Return `layout`, or raise ERR_TYPE if it cannot be used to communicate."""
    found = usable(layout, what)
    if not found.committed:
        fail(ERR_TYPE, f"{what}: the datatype has not been committed; call its Commit() first")
    return found

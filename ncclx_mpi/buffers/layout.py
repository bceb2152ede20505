"""What a datatype means for bytes: sizes, bounds, and the merged list of blocks that one element covers.

``size`` is what MPI calls the size, and how many bytes of an element travel: gaps stay behind, those inside of pairs like DOUBLE_INT too.
A :class:`Layout` is immutable but for its name and attributes. Handles (``MPI.Datatype``) point to one; freeing a
handle nulls that handle only, so a layout lives as long as a handle, a derived layout or a pending request needs it.
Sizes and bounds are computed at once, blocks only when a message needs them: programs build many types that
never travel.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ncclx_mpi.errors import ERR_TYPE, fail

Words = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Blocks of one old layout: `lengths[i]` elements of it at byte `offsets[i]`."""

    old: Layout
    lengths: Words
    offsets: Words

    @property
    def total(self) -> int:
        """Number of elements in all blocks."""
        return int(self.lengths[0]) if len(self.lengths) == 1 else int(self.lengths.sum())


class Recipe(NamedTuple):
    """How a derived type was made: what MPI calls envelope and contents."""

    combiner: int
    integers: tuple[int, ...]
    counts: tuple[int, ...]
    layouts: tuple[Layout, ...]
    params: dict[str, Any]


class Layout:
    """Sizes, bounds, blocks and origin of a datatype.

    `is_plain` says that it is predefined: contiguous, from byte 0, and usable without a Commit.
    """

    __slots__ = (
        "__weakref__",
        "_blocks",
        "_contiguous",
        "_handle",
        "align",
        "attributes",
        "code",
        "committed",
        "extent",
        "has_bounds",
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
        self._blocks: Words | None = None
        self._contiguous: bool | None = None
        self.is_plain = False
        self._measure()

    def _measure(self) -> None:
        """Derive sizes, bounds, alignment and the number of basic elements from the parts."""
        self.size = self.nbasic = 0
        self.align = 1
        self.has_bounds = False
        spans: list[tuple[int, int, int, int, bool]] = []
        for part in self.parts:
            old, total = part.old, part.total
            if not total:
                continue
            self.size += total * old.size
            self.nbasic += total * old.nbasic
            self.align = max(self.align, old.align)
            self.has_bounds |= old.has_bounds
            spans.append(_span(*part))
        if len(spans) == 1:
            self.lb, self.ub, self.true_lb, self.true_ub, _ = spans[0]
        elif spans:
            bounding = [span for span in spans if span[4]] if self.has_bounds else spans
            self.lb, self.ub = min(span[0] for span in bounding), max(span[1] for span in bounding)
            self.true_lb, self.true_ub = min(span[2] for span in spans), max(span[3] for span in spans)
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
            self._handle = next(_handles)
            _by_handle[self._handle] = self
        return self._handle

    @property
    def blocks(self) -> Words:
        """Offset and length in bytes of each block of one element, in packing order, neighbours merged."""
        if self._blocks is None:
            self._blocks = _merge(np.concatenate([_tile(part) for part in self.parts] or [_NONE]))
        return self._blocks

    @property
    def contiguous(self) -> bool:
        """Whether any number of elements, one after the other, covers one run of bytes."""
        if self._contiguous is None:
            is_run = self.size == self.extent and len(self.blocks) == 1
            self._contiguous = self.size == 0 or is_run
        return self._contiguous

    @property
    def is_named(self) -> bool:
        """Whether it is one of the predefined types."""
        return self.recipe is None

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


_NONE: Words = np.empty((0, 2), np.int64)
_ONE: Words = np.ones(1, np.int64)
_ZERO: Words = np.zeros(1, np.int64)
_handles = itertools.count(0x4C000001)
_by_handle: weakref.WeakValueDictionary[int, Layout] = weakref.WeakValueDictionary()


def words(values: Iterable[int]) -> Words:
    """Return `values` as an array of 64-bit integers."""
    return np.fromiter(values, np.int64)


def once(old: Layout) -> Part:
    """One element of a layout, where it is."""
    return Part(old, _ONE, _ZERO)


def find(handle: int) -> Layout | None:
    """The layout with this handle, if it still lives."""
    return _by_handle.get(handle)


def basic(name: str, size: int, align: int) -> Layout:
    """Make a predefined layout of one basic element."""
    layout = Layout((), None)
    layout.name, layout.align, layout.nbasic = name, align, 1
    layout.size = size
    layout.ub = layout.true_ub = layout.extent = size
    layout._blocks = np.array([[0, size]], np.int64)
    layout._contiguous = layout.is_plain = True
    return layout


def pair(name: str, value: Layout, index: Layout) -> Layout:
    """Make the predefined layout of a value and its location: a C struct, whose padding belongs to the program."""
    offset = value.size + -value.size % index.align
    layout = Layout((once(value), Part(index, _ONE, words([offset]))), None)
    layout.name = name
    layout.pad()
    layout.is_plain = layout.contiguous
    return layout


def _span(old: Layout, lengths: Words, offsets: Words) -> tuple[int, int, int, int, bool]:
    """Lower and upper bound, true ones, and whether `old` has explicit bounds, of blocks of `old`."""
    if len(lengths) == 1:
        reach, low = (int(lengths[0]) - 1) * old.extent, int(offsets[0])
        high, low = low + max(reach, 0), low + min(reach, 0)
        return low + old.lb, high + old.ub, low + old.true_lb, high + old.true_ub, old.has_bounds
    used = lengths > 0
    if not used.all():
        lengths, offsets = lengths[used], offsets[used]
    reaches = (lengths - 1) * old.extent
    low = int((offsets + np.minimum(reaches, 0)).min())
    high = int((offsets + np.maximum(reaches, 0)).max())
    return low + old.lb, high + old.ub, low + old.true_lb, high + old.true_ub, old.has_bounds


def _tile(part: Part) -> Words:
    """Blocks of all copies of the old layout in `part`."""
    old, lengths, offsets = part
    inner = old.blocks
    if len(inner) == 1 and inner[0, 1] == old.extent:
        return np.stack([offsets + inner[0, 0], lengths * old.extent], axis=1)
    starts = np.repeat(offsets, lengths)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    starts = starts + within * old.extent
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

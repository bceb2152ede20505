"""What a datatype means for bytes: sizes, bounds, and the merged list of blocks that one element covers.

``size`` is what MPI calls the size, and how many bytes of an element travel: gaps stay behind, those inside of pairs like DOUBLE_INT too.
A :class:`Layout` is immutable but for its name and attributes. Handles (``MPI.Datatype``) point to one; freeing a
handle nulls that handle only, so a layout lives as long as a handle, a derived layout or a pending request needs it.
Sizes and bounds are computed at once, blocks only when a message needs them: programs build many types that
never travel. What is regular stays a rule: blocks are listed up to :data:`_FEW`, or a fixed number for each that the program listed
itself; larger layouts are walked as runs of smaller ones (:meth:`Layout.runs`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ncclx_mpi import constants as mpi
from ncclx_mpi.buffers.memory import Words
from ncclx_mpi.errors import ERR_TYPE, fail
from numba_kernels import typemap
from numba_kernels.jit import entry
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, zeroed
from numba_kernels.rows import NamedTuple
from numba_kernels.typemap import EXTREMES

Integers: TypeAlias = "array[int]"

_list_blocks, _list_strided, _measure = (
    functools.cache(functools.partial(entry, kernel)) for kernel in (typemap.list_blocks, typemap.list_strided, typemap.measure)
)
"""Each returns its entry point, which is bound at the first call."""

Span = tuple[int, int, int, int]
"""Lower and upper bound, and the true ones."""


class Listed:
    """Blocks of one old layout: `lengths[i]` elements of it at byte `offsets[i]`, `total` in all.

    `entries` is how many blocks the program listed one by one, here and in the old layout.
    """

    __slots__ = ("_high", "_low", "entries", "lengths", "offsets", "old", "total")

    def __init__(self, old: Layout, lengths: Integers, offsets: Integers) -> None:
        self.old = old
        self.lengths = lengths
        self.offsets = offsets
        self.entries = len(lengths) + old.entries
        found, at = zeroed(EXTREMES.total)
        _measure()(_address(lengths), _address(offsets), len(lengths), old.extent, at)
        self.total, self._low, self._high = found

    @property
    def nblocks(self) -> int:
        """At most so many blocks of bytes."""
        return len(self.lengths) if self.old.contiguous else self.total * self.old.nblocks

    def span(self) -> Span:
        """Bounds of all elements, of which there are some."""
        return _around(self.old, self._low, self._high)

    def tile(self, rows: int, count: int) -> int:
        """Write blocks of bytes of all elements behind the first `count` rows at an address; return how many there are then."""
        lengths, old = self.lengths, self.old
        where = _address(lengths), _address(self.offsets), len(lengths)
        written: int = _list_blocks()(rows, count, *where, old.extent, *_rows_of(old))
        return written

    def runs(self, origin: int) -> Iterator[Run]:
        """The elements as runs of layouts whose blocks are few enough to be listed."""
        for length, offset in zip(self.lengths, self.offsets, strict=True):
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

    def tile(self, rows: int, count: int) -> int:
        """Write blocks of bytes of all elements behind the first `count` rows at an address; return how many there are then."""
        groups = self.start, self.step, self.count, self.length
        written: int = _list_strided()(rows, count, *groups, self.old.extent, *_rows_of(self.old))
        return written

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
    counts: tuple[int | Integers, ...]
    layouts: tuple[Layout, ...]
    params: dict[str, Any]


class Layout:
    """Sizes, bounds, blocks and origin of a datatype.

    `is_predefined` says that it exists without being made: one with a name, or what MPI chooses by precision and range for Fortran;
    `is_plain` that it has a name, is contiguous, from byte 0, and usable without a Commit.
    `entries` is how many blocks the program listed one by one, here and in the layouts that it is made of.
    """

    __slots__ = (
        "__weakref__",
        "_contiguous",
        "_handle",
        "_nblocks",
        "_table",
        "_typemap",
        "align",
        "attributes",
        "code",
        "committed",
        "entries",
        "extent",
        "has_bounds",
        "is_plain",
        "is_predefined",
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
    size: int
    nbasic: int
    align: int
    entries: int
    has_bounds: bool
    lb: int
    ub: int
    true_lb: int
    true_ub: int
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
        self.is_predefined = recipe is None or recipe.combiner in _OF_FORTRAN
        self.attributes: dict[int, Any] | None = None
        self._typemap: list[Integers] = []
        self._contiguous: bool | None = None
        self._nblocks: int | None = None
        self._table: tuple[int, int] | None = None
        self.is_plain = False
        self._measure()

    def _measure(self) -> None:
        """Derive sizes, bounds, alignment and the number of basic elements from the parts."""
        parts = [part for part in self.parts if part.total]
        self.entries = len(self.parts)
        for part in self.parts:
            self.entries += part.entries
        if len(parts) == 1:
            (part,) = parts
            old, total = part.old, part.total
            self.size, self.nbasic, self.align, self.has_bounds = total * old.size, total * old.nbasic, old.align, old.has_bounds
            self.lb, self.ub, self.true_lb, self.true_ub = part.span()
        else:
            self._measure_all(parts)
        self.extent = self.ub - self.lb

    def _measure_all(self, parts: list[Part]) -> None:
        """The same of several parts, or none."""
        self.size = self.nbasic = self.lb = self.ub = self.true_lb = self.true_ub = 0
        self.align, self.has_bounds = 1, False
        for part in parts:
            old, total = part.old, part.total
            self.size += total * old.size
            self.nbasic += total * old.nbasic
            self.align = max(self.align, old.align)
            self.has_bounds |= old.has_bounds
        if parts:
            lows, highs, true_lows, true_highs = zip(*[part.span() for part in parts], strict=True)
            self.true_lb, self.true_ub = min(true_lows), max(true_highs)
            if self.has_bounds:
                lows, highs, _, _ = zip(*[part.span() for part in parts if part.old.has_bounds], strict=True)
            self.lb, self.ub = min(lows), max(highs)

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
        """Offset and length in bytes of each block of one element, in packing order, neighbours merged; of flat layouts only."""
        return np.frombuffer(self.typemap, np.int64).reshape(-1, 2)

    @property
    def typemap(self) -> Integers:
        """The words of :attr:`blocks`, without NumPy.

        Compiled code is told where they are, so they are the same for all threads, and stay: of several that are made at once the first.
        """
        if not self._typemap:
            self._typemap.append(self._list())
        return self._typemap[0]

    def _list(self) -> Integers:
        if not self.parts:
            return array("q", (0, self.size) if self.size else ())
        found, rows = zeroed(2 * WORD * self.nblocks)
        count = 0
        for part in self._filled():
            count = part.tile(rows, count)
        del found[2 * count :]
        return found

    @property
    def table(self) -> tuple[int, int] | None:
        """Address and number of the blocks, as compiled code takes them; None of a layout that is not flat."""
        if self._table is None and self.is_flat:
            self._table = _rows_of(self)
        return self._table

    @property
    def contiguous(self) -> bool:
        """Whether any number of elements, one after the other, covers one run of bytes."""
        if self._contiguous is None:
            self._contiguous = self.size == 0 or (self.size == self.extent and self.is_flat and len(self.typemap) == 2)
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


def _address(numbers: Integers) -> int:
    return numbers.buffer_info()[0]


def _rows_of(layout: Layout) -> tuple[int, int]:
    """Address and number of the blocks of a flat layout."""
    address, count = layout.typemap.buffer_info()
    return address, count // 2


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

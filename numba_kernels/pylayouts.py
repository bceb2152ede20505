"""Layouts of derived datatypes straight from Python objects into compiled code.

What a datatype handle refers to is an object that knows the blocks of memory which an element has. Compiled code finds these by the
address of that object in a table: who has resolved a datatype in Python puts it there (:func:`remember`). A handle that was freed
refers to nothing, which is never there, and an object that is gone has left the table before another one can have its address.

The table holds some hundreds, each in one of a few places; one more takes the place of another, which is resolved in Python again.
"""

from __future__ import annotations

import functools
import threading
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

from numba_kernels import symbols
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words, zeroed
from numba_kernels.memory import copy
from numba_kernels.pack import pack_range, unpack_range
from numba_kernels.pyobject import NONE, OB_SIZE, OB_TYPE
from numba_kernels.pysequence import (
    MOST,
    VECTOR,
    abandon,
    integer,
    items_of,
    one_after_another,
    open_memory,
    open_typed_vector,
    read_integers,
    split_vector,
)
from numba_kernels.pyslots import decrease, increase, slot_offset

LAYOUT = words("Layout", "key blocks nblocks size extent low high run step")
"""What is known of a layout: the address of its Python object; of its typemap (:mod:`numba_kernels.pack`), and how many blocks that has; its
size and extent in bytes; where its first byte is, and the end of its last one; the bytes of its blocks and the distance between
them if both are always the same, else 0."""

_MOST_BYTES = 1 << 60
"""No memory is so long: what reaches further is left to Python, before products of counts and extents leave their word."""
_SETS, _WAYS = 64, 4
_SPREAD, _TOP = 0x1E3779B97F4A7C15, 58
"""The set of an address is the upper bits of its product with this odd number: objects of one class lie some power of 2 apart."""
_ROW = LAYOUT.total // WORD
_table, _table_at = zeroed(_SETS * _WAYS * LAYOUT.total)
_handle, _handle_at = zeroed(2 * WORD)
"""The address of the class of handles, and where in one its state is."""
_alive: dict[int, weakref.ref[Any]] = {}
"""What is in the table, by its address."""
_changing = threading.Lock()
"""Held by who puts one into the table. Nobody waits for it, as a finalizer may have interrupted its holder: the table does without."""
symbols.add("ncclx_mpi_layouts", _table_at)
symbols.add("ncclx_mpi_layout_handle", _handle_at)
_layouts = make_symbol("ncclx_mpi_layouts")
_handles = make_symbol("ncclx_mpi_layout_handle")


def introduce(kind: type, slot: str) -> None:
    """Let compiled code look for the object in a slot of objects of this very class."""
    _handle[1] = slot_offset(kind, slot)
    _handle[0] = id(kind)


def is_known(layout: object) -> bool:
    """Whether the table has an object."""
    return id(layout) in _alive


def is_any_known() -> bool:
    """Whether the table has any object."""
    return bool(_alive)


def remember(layout: object, fields: Sequence[int]) -> bool:
    """Put an object into the table, with the fields of `LAYOUT` but for the first one; they hold as long as it lives.

    Returns whether this has done so: another thread may do it, or be in the way.
    """
    if not _changing.acquire(blocking=False):
        return False
    try:
        if id(layout) in _alive:  # twice in the table it would be forgotten once
            return False
        _put(layout, fields)
        return True
    finally:
        _changing.release()


def _put(layout: object, fields: Sequence[int]) -> None:
    first = _set_of(id(layout)) * _WAYS
    keys = _table[first * _ROW : (first + _WAYS) * _ROW : _ROW].tolist()
    place = first + (keys.index(0) if 0 in keys else len(_alive) % _WAYS)
    _drop(_table[place * _ROW], place)
    _alive[id(layout)] = weakref.ref(layout, functools.partial(_forget, id(layout)))
    _table[place * _ROW + 1 : (place + 1) * _ROW] = array("q", fields)
    _table[place * _ROW] = id(layout)


def _set_of(key: int) -> int:
    """As in compiled code, whose words wrap around."""
    return key * _SPREAD >> _TOP & (_SETS - 1)


def _drop(key: int, place: int) -> None:
    _table[place * _ROW] = 0
    _alive.pop(key, None)


def _forget(key: int, _: object) -> None:
    first = _set_of(key) * _WAYS
    for place in range(first, first + _WAYS):
        if _table[place * _ROW] == key:
            _drop(key, place)


@kernel("int64(int64)")
def _find(handle):  # type: ignore[no-untyped-def]
    """Where the table has the layout of a handle, 0 if it does not have it, or the object is no such handle."""
    if load64(handle + OB_TYPE) != load64(_handles()):
        return 0
    key = load64(handle + load64(_handles() + WORD))
    row = _layouts() + ((key * _SPREAD) >> _TOP & (_SETS - 1)) * _WAYS * LAYOUT.total
    for _ in range(_WAYS):
        if key != 0 and load64(row + LAYOUT.key) == key:
            return row
        row += LAYOUT.total
    return 0


@kernel("int64(int64, int64, int64, int64)")
def fits(row, count, offset, nbytes):  # type: ignore[no-untyped-def]
    """Whether `count` elements of a layout, the first one at `offset`, lie in so many bytes."""
    if count > _MOST_BYTES // max(abs(load64(row + LAYOUT.extent)), load64(row + LAYOUT.size), 1):
        return 0
    last = (count - 1) * load64(row + LAYOUT.extent)
    low, high = min(last, 0) + load64(row + LAYOUT.low), max(last, 0) + load64(row + LAYOUT.high)
    return 1 if count == 0 or (offset + low >= 0 and offset + high <= nbytes) else 0


@kernel("int64(int64, int64)")
def take_layout(handle, row):  # type: ignore[no-untyped-def]
    """Copy the layout of a handle to a row of `LAYOUT`, which owns a reference to it from then on: 1, or 0 if it is not known."""
    found = _find(handle)
    if found == 0:
        return 0
    copy(row, found, LAYOUT.total)
    increase(load64(row + LAYOUT.key))
    return 1


@kernel("void(int64, int64, int64, int64)")
def pack_row(row, origin, nbytes, target):  # type: ignore[no-untyped-def]
    """Copy elements of a layout, the first one at `origin`, to `nbytes` without gaps."""
    blocks, nblocks = load64(row + LAYOUT.blocks), load64(row + LAYOUT.nblocks)
    pack_range(blocks, nblocks, load64(row + LAYOUT.size), load64(row + LAYOUT.extent), origin, 0, nbytes, target, 0)


@kernel("void(int64, int64, int64, int64)")
def unpack_row(row, source, nbytes, origin):  # type: ignore[no-untyped-def]
    """Copy `nbytes` without gaps to elements of a layout, the first one at `origin`."""
    blocks, nblocks = load64(row + LAYOUT.blocks), load64(row + LAYOUT.nblocks)
    unpack_range(blocks, nblocks, load64(row + LAYOUT.size), load64(row + LAYOUT.extent), source, 0, nbytes, origin, 0)


@kernel("int64(int64, int64)")
def is_dense(row, count):  # type: ignore[no-untyped-def]
    """Whether `count` elements of a layout have no gaps, in them or between them."""
    is_run = count <= 1 or load64(row + LAYOUT.size) == load64(row + LAYOUT.extent)
    return 1 if is_run and load64(row + LAYOUT.nblocks) == 1 else 0


@kernel("int64(int64, int64, int64, int64)")
def read_laid_out_blocks(spec, blocks, vector, row):  # type: ignore[no-untyped-def]
    """Read ``[array, type]`` or ``[array, count, type]`` into `vector`, a `VECTOR`, and a copy of the layout to a row of `LAYOUT`.

    Returns the elements of so many equal `blocks`, of which a count is that of one, or NONE. Only what is valid is taken; the caller owns a
    reference to the layout then, too.
    """
    items = items_of(spec)
    given = load64(spec + OB_SIZE) if items != 0 else 0
    if given != 2 and given != 3:
        return NONE
    count = integer(load64(items + WORD), vector) if given == 3 else 0
    if take_layout(load64(items + WORD * (given - 1)), row) == 0:
        return NONE
    key = load64(row + LAYOUT.key)
    element = open_memory(load64(items), vector)
    if element != NONE:
        nbytes, extent = load64(vector + VECTOR.nbytes), load64(row + LAYOUT.extent)
        if given == 2:
            count = nbytes // extent if extent > 0 and nbytes % (extent * blocks) == 0 else NONE
        elif count >= 0:
            count *= blocks
        if count < 0 or count >= MOST or fits(row, count, 0, nbytes) == 0:
            element = abandon(vector)
    if element == NONE:
        decrease(key)
        return NONE
    return count


@kernel("void(int64, int64)")
def let_layouts_go(layouts, length):  # type: ignore[no-untyped-def]
    """Own the layouts in some rows no more. Any Python code may run."""
    for index in range(length):
        key = layouts + index * LAYOUT.total + LAYOUT.key
        layout = load64(key)
        store64(key, 0)
        decrease(layout)


@kernel("int64(int64, int64, int64, int64)")
def read_laid_out_vector(spec, length, vector, layouts):  # type: ignore[no-untyped-def]
    """As :func:`read_laid_out`, `length` blocks of one derived datatype, with counts, and offsets in its extents."""
    array, counts, offsets, kind = split_vector(spec)
    places, row = vector + VECTOR.total, _find(kind) if kind != 0 else 0
    store64(vector + VECTOR.array, 0)
    if row == 0 or counts == 0 or read_integers(counts, length, places, vector) == 0:
        return NONE
    if offsets != 0 and read_integers(offsets, length, places + 8 * length, vector) == 0:
        return NONE
    if offsets == 0:
        one_after_another(length, vector)
    for index in range(length):
        copy(layouts + index * LAYOUT.total, row, LAYOUT.total)
        increase(load64(row + LAYOUT.key))
    if open_memory(array, vector) == NONE:
        let_layouts_go(layouts, length)
        return NONE
    extent, nbytes = load64(layouts + LAYOUT.extent), load64(vector + VECTOR.nbytes)
    for index in range(length):
        own, distance = layouts + index * LAYOUT.total, load64(places + 8 * (length + index))
        is_near = distance <= _MOST_BYTES // max(abs(extent), 1)
        if not is_near or _take_block(own, places, length, index, load64(places + 8 * index), distance * extent, nbytes) == 0:
            let_layouts_go(layouts, length)
            return abandon(vector)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _take_block(own, places, length, index, count, offset, nbytes):  # type: ignore[no-untyped-def]
    """Note bytes and offset of a block of `count` elements in memory of `nbytes`: 1, or 0 if it does not lie there.

    One without gaps owns its layout no more.
    """
    if fits(own, count, offset, nbytes) == 0:
        return 0
    store64(places + 8 * index, count * load64(own + LAYOUT.size))
    store64(places + 8 * (length + index), offset)
    if is_dense(own, count) != 0:
        key = load64(own + LAYOUT.key)
        store64(own + LAYOUT.key, 0)
        store64(places + 8 * (length + index), offset + load64(own + LAYOUT.low))
        decrease(key)
    return 1


@kernel("int64(int64, int64, int64, int64)")
def read_laid_out(spec, length, vector, layouts):  # type: ignore[no-untyped-def]
    """Read `length` blocks with layouts of their own into `vector`, and a copy of each layout to a row of `LAYOUT`. Returns 0, or NONE.

    Bytes of a block are those of its elements when packed; its offset is that of the origin of the first one, and where the ``key`` of
    a row is 0 that of the first byte: these blocks have no gaps. Only what is valid is taken. The caller owns a reference to each layout in
    a row then, until :func:`let_layouts_go`.
    """
    places, named = vector + VECTOR.total, open_typed_vector(spec, length, vector)
    if named == 0:
        return NONE
    for index in range(length):
        own, count, offset = layouts + index * LAYOUT.total, load64(places + 8 * index), load64(places + 8 * (length + index))
        is_known = take_layout(load64(named + 8 * index), own) != 0
        if not is_known or _take_block(own, places, length, index, count, offset, load64(vector + VECTOR.nbytes)) == 0:
            let_layouts_go(layouts, index + 1 if is_known else index)
            return abandon(vector)
    return 0

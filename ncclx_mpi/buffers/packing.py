"""Moves elements between their place in a buffer and packed bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ncclx_mpi.buffers.bounds import check_inside
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import Bytes, array_words, view
from ncclx_mpi.buffers.source import Source
from ncclx_mpi.errors import ERR_ARG, ERR_TRUNCATE, ERR_TYPE, fail
from numba_kernels import pack as kernels
from numba_kernels.jit import entry


@functools.cache
def _pack() -> Callable[..., int]:
    found: Callable[..., int] = entry(kernels.pack)
    return found


@functools.cache
def _unpack_range() -> Callable[..., int]:
    found: Callable[..., int] = entry(kernels.unpack_range)
    return found


def pack(layout: Layout, source: int, count: int, target: int) -> None:
    """Copy `count` elements at `source` to packed bytes at `target`."""
    if not count or not layout.size:
        return
    table = layout.table
    if table is not None:
        _pack()(*table, layout.extent, source, count, target)
        return
    for run in layout.runs(source, count):
        pack(run.layout, run.origin, run.number, target)
        target += run.number * run.layout.size


def unpack(layout: Layout, source: int, nbytes: int, target: int) -> None:
    """Copy `nbytes` packed bytes, perhaps not a whole number of elements, to the elements at `target`."""
    size = layout.size
    if not nbytes or not size:
        return
    table = layout.table
    if table is not None:
        _unpack_range()(*table, size, layout.extent, source, 0, nbytes, target, 0)
        return
    end = source + nbytes
    for run in layout.runs(target, -(-nbytes // size)):
        part = min(run.number * run.layout.size, end - source)
        unpack(run.layout, source, part, run.origin)
        source += part
        if source == end:
            return


def append(layout: Layout, given: Source, packed: Source, position: int, *, is_external: bool = False) -> int:
    """Pack all elements in `given` at byte `position` of `packed`; return the position after them."""
    count = _whole_elements(layout, given)
    end = _end(layout, count, packed, position)
    pack(layout, given.address, count, packed.address + position)
    if is_external:
        swap(layout, view(packed.address + position, end - position))
    return end


def extract(layout: Layout, packed: Source, position: int, wanted: Source, *, is_external: bool = False) -> int:
    """Fill `wanted` with elements packed at byte `position` of `packed`; return the position after them."""
    count = _whole_elements(layout, wanted)
    end = _end(layout, count, packed, position)
    source = view(packed.address + position, end - position)
    if is_external:
        source = source.copy()
        swap(layout, source)
    unpack(layout, array_words(source)[0], end - position, wanted.address)
    return end


def swap(layout: Layout, packed: Bytes) -> None:
    """Reverse the bytes of each machine word of packed elements, in place."""
    if not layout.size:
        return
    if not layout.parts:
        packed[:] = packed.reshape(-1, layout.align)[:, ::-1].reshape(-1)
        return
    elements, column = packed.reshape(-1, layout.size), 0
    for part in layout.parts:
        columns = slice(column, column + part.total * part.old.size)
        inner = elements[:, columns].reshape(-1)
        swap(part.old, inner)
        elements[:, columns] = inner.reshape(len(elements), -1)
        column = columns.stop


def _whole_elements(layout: Layout, memory: Source) -> int:
    """How many elements fit into the memory of a buffer."""
    if layout.extent <= 0:
        fail(ERR_TYPE, f"cannot infer a count: the datatype's extent is {layout.extent}")
    count = memory.nbytes // layout.extent
    try:
        check_inside(memory, 0, count, layout)
    except ValueError as wrong:
        fail(ERR_ARG, f"not in buffer: {wrong}")
    return count


def _end(layout: Layout, count: int, packed: Source, position: int) -> int:
    end = position + count * layout.size
    if position < 0:
        fail(ERR_ARG, f"the position in the packed buffer is negative: {position}")
    if end > packed.nbytes:
        fail(
            ERR_TRUNCATE,
            f"{count} elements of {layout.size} bytes from position {position} do not fit into "
            f"a packed buffer of {packed.nbytes} bytes",
        )
    return end

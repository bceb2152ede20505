"""Moves elements between their place in a buffer and packed bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ncclx_mpi.buffers.bounds import check_inside
from ncclx_mpi.buffers.layout import Layout, Run
from ncclx_mpi.buffers.memory import Bytes, Words, array_words, view
from ncclx_mpi.buffers.source import Source
from ncclx_mpi.errors import ERR_ARG, ERR_TRUNCATE, ERR_TYPE, fail
from numba_kernels import pack as kernels
from numba_kernels.jit import entry

_pack, _pack_range, _unpack_range = (
    functools.cache(functools.partial(entry, kernel)) for kernel in (kernels.pack, kernels.pack_range, kernels.unpack_range)
)
"""Each returns its entry point, which is bound at the first call."""


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


def pack_part(layout: Layout, source: int, first: int, nbytes: int, target: int) -> None:
    """Copy `nbytes` of the packed bytes of elements, of which the first one is at `source`, from byte `first` of them on."""
    for run, skipped, part in _part(layout, source, first, nbytes):
        address, count = run.layout.typemap.buffer_info()
        _pack_range()(address, count // 2, run.layout.size, run.layout.extent, run.origin, skipped, part, target, 0)
        target += part


def unpack_part(layout: Layout, source: int, first: int, nbytes: int, target: int) -> None:
    """Copy packed bytes to elements, of which the first one is at `target`: they are those from byte `first` of all on."""
    for run, skipped, part in _part(layout, target, first, nbytes):
        address, count = run.layout.typemap.buffer_info()
        _unpack_range()(address, count // 2, run.layout.size, run.layout.extent, source, skipped, part, run.origin, 0)
        source += part


def _part(layout: Layout, origin: int, first: int, nbytes: int) -> Iterator[tuple[Run, int, int]]:
    """The runs that some packed bytes of elements are in: how many bytes of each come before, and how many belong to them."""
    if not nbytes or not layout.size:
        return
    element, skipped = (0, first) if layout.is_flat else divmod(first, layout.size)
    count = -(-(skipped + nbytes) // layout.size)
    for run in layout.runs(origin + element * layout.extent, count):
        size = run.number * run.layout.size
        if skipped < size:
            part = min(size - skipped, nbytes)
            yield run, skipped, part
            nbytes -= part
            if not nbytes:
                return
        skipped = max(skipped - size, 0)


def gather(table: Words, source: int, target: int) -> None:
    """Copy blocks, of so many bytes at such offsets from `source`, one after the other to `target`."""
    if len(table):
        _pack()(array_words(table)[0], len(table), 0, source, 1, target)


def scatter(table: Words, source: int, target: int) -> None:
    """Copy bytes at `source` to blocks, of so many bytes at such offsets from `target`."""
    if len(table):
        nbytes = int(table[:, 1].sum())
        _unpack_range()(array_words(table)[0], len(table), nbytes, 0, source, 0, nbytes, target, 0)


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
    if is_external:
        native = view(packed.address + position, end - position).copy()
        swap(layout, native)
        unpack(layout, array_words(native)[0], end - position, wanted.address)
    else:
        unpack(layout, packed.address + position, end - position, wanted.address)
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

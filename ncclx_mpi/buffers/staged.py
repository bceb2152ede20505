"""Elements in GPU memory to and from packed bytes in pinned host memory: what a device array takes part in a call with.

Contiguous elements are one copy each. Of others, the range that they span is copied and packed by the CPU where it is dense, else
each of their blocks by itself. What arrives goes block by block: the gaps between belong to the program, and may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.device import staging
from ncclx_mpi.device.memory import DeviceMemory

_WINDOW = 4 << 20
_DENSE = 16
"""A range is copied whole if at least one byte in so many is wanted."""


class Piece(NamedTuple):
    """Some elements and their packed form.

    Attributes
    ----------
    layout, origin
        What one element is, and where offset 0 of the first one is.
    nbytes
        How many packed bytes; perhaps no whole number of elements, in what arrives.
    packed
        Where these are, in pinned memory.
    """

    layout: Layout
    origin: int
    nbytes: int
    packed: int


def read(memory: DeviceMemory, pieces: Sequence[Piece], keep: Any) -> None:
    """Copy elements to packed bytes, after what the array's stream holds; complete on return."""
    with memory.in_order(keep) as driver:
        for piece in pieces:
            if not _is_packed_here(piece.layout):
                for at, packed, nbytes in _blocks(piece):
                    driver.copy(packed, at, nbytes, memory.stream.handle)
    for piece in pieces:
        if _is_packed_here(piece.layout):
            _read_ranges(memory, piece)


def write(memory: DeviceMemory, pieces: Sequence[Piece], keep: Any) -> None:
    """Copy packed bytes to elements, after what the array's stream holds; complete on return."""
    with memory.in_order(keep) as driver:
        for piece in pieces:
            for at, packed, nbytes in _blocks(piece):
                driver.copy(at, packed, nbytes, memory.stream.handle)


def lease(memory: DeviceMemory, nbytes: int) -> staging.Lease:
    """Pinned memory for packed elements of an array."""
    with memory.current() as driver:
        return staging.lease(driver, nbytes)


def _is_packed_here(layout: Layout) -> bool:
    """Whether the range that elements span is worth being copied whole."""
    span = layout.true_ub - layout.true_lb
    return (
        not layout.contiguous
        and 0 < layout.extent <= _WINDOW
        and span <= _WINDOW
        and max(span, layout.extent) <= _DENSE * layout.packed
    )


def _read_ranges(memory: DeviceMemory, piece: Piece) -> None:
    """Copy what some elements span at a time, and pack it here."""
    layout, count = piece.layout, piece.nbytes // piece.layout.packed
    span = layout.true_ub - layout.true_lb
    step = min(count, (_WINDOW - span) // layout.extent + 1)
    if not count:
        return
    bounce = lease(memory, (step - 1) * layout.extent + span)
    for first in range(0, count, step):
        number = min(step, count - first)
        low = piece.origin + first * layout.extent + layout.true_lb
        with memory.in_order(bounce) as driver:
            driver.copy(bounce.address, low, (number - 1) * layout.extent + span, memory.stream.handle)
        packing.pack(layout, bounce.address - layout.true_lb, number, piece.packed + first * layout.packed)


def _blocks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """Address, packed address and length of each run of bytes, neighbours joined."""
    layout, left, at, packed, length = piece.layout, piece.nbytes, 0, piece.packed, 0
    if layout.contiguous:
        if left:
            yield piece.origin + layout.true_lb, packed, left
        return
    element, blocks = piece.origin, layout.blocks.tolist()
    while left:
        for offset, nbytes in blocks:
            taken = min(nbytes, left)
            if length and element + offset == at + length:
                length += taken
            else:
                if length:
                    yield at, packed, length
                    packed += length
                at, length = element + offset, taken
            left -= taken
            if not left:
                break
        element += layout.extent
    if length:
        yield at, packed, length

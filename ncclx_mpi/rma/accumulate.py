"""Read, combine and write elements at a target as one step that no other accumulation comes between."""

from __future__ import annotations

import ctypes

import numpy as np

from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import array_words, view
from ncclx_mpi.rma.reach import Place
from ncclx_mpi.rma.window import Window

_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def element_of(layout: Layout) -> Layout | None:
    """The one predefined layout that all elements of a layout are made of, None if there are several."""
    if layout.is_named:
        return layout
    found = {id(element): element for part in layout.parts if part.total for element in [element_of(part.old)]}
    return found.popitem()[1] if len(found) == 1 else None


def combine(window: Window, rank: int, place: Place, function: int, size: int, origin: int, before: int = 0) -> None:
    """Combine packed elements at address `origin` into the memory of `rank`.

    Parameters
    ----------
    function
        Address of the reduction function; 0 leaves the target as it is.
    size
        Bytes of an element that the function takes.
    before
        Where to put what the target held before, packed; 0 for nowhere.
    """
    held = np.empty(place.number * place.layout.size, np.uint8)
    address, reach = array_words(held)[0], window.reach(rank)
    with window.guarded(rank):
        reach.read(place, address)
        if before:
            ctypes.memmove(before, address, held.nbytes)
        if function:
            _REDUCE(function)(address, origin, address, held.nbytes // size)
            reach.write(place, address)


def replace(window: Window, rank: int, place: Place, origin: int, before: int = 0) -> None:
    """Write packed elements at address `origin` to the memory of `rank`, and what it held before to address `before`."""
    reach = window.reach(rank)
    with window.guarded(rank):
        if before:
            reach.read(place, before)
        reach.write(place, origin)


def swap_if_same(window: Window, rank: int, place: Place, origin: int, compare: int, before: int) -> None:
    """Write one element to the memory of `rank` if it holds the bytes at `compare`; tell what it held."""
    reach, nbytes = window.reach(rank), place.layout.size
    with window.guarded(rank):
        reach.read(place, before)
        if view(before, nbytes).tobytes() == view(compare, nbytes).tobytes():
            reach.write(place, origin)

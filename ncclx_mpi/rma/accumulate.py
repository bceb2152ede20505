"""Read, combine and write elements at a target as one step that no other accumulation comes between."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Any

from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import span
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.rma.reach import Landing, Place, Reach
from numba_kernels.rows import NamedTuple

_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Reduction(NamedTuple):
    """What combines packed elements.

    Attributes
    ----------
    function
        Address of the reduction function, in this process.
    size
        Bytes of an element that the function takes.
    number
        What operation and elements are known by to all ranks.
    """

    function: int
    size: int
    number: int


def element_of(layout: Layout) -> Layout | None:
    """The one predefined layout that all elements of a layout are made of, None if there are several."""
    if layout.is_named:
        return layout
    found = {id(element): element for part in layout.parts if part.total for element in [element_of(part.old)]}
    return found.popitem()[1] if len(found) == 1 else None


class Near:
    """The window memory of a rank that this one reaches by itself: an access is complete, at both ends, when its method returns.

    Parameters
    ----------
    reach
        The way to the memory.
    guard
        Keeps other accumulations away from it, as often as it is entered.
    """

    def __init__(self, reach: Reach, guard: AbstractContextManager[None]) -> None:
        self._reach = reach
        self._guard = guard

    def write(self, place: Place, packed: int, _owner: Any = None) -> None:
        """Copy packed bytes to elements."""
        self._reach.write(place, packed)

    def read(self, place: Place, landing: Landing) -> None:
        """Copy elements to this rank."""
        address, _owner, finish = landing
        self._reach.read(place, address)
        finish(place.nbytes)

    def combine(self, place: Place, reduction: Reduction | None, origin: int, landing: Landing | None = None) -> None:
        """Combine packed elements at address `origin` into the memory, None leaves it as it is; copy what it held before to this rank."""
        nbytes = place.nbytes
        address, _held = allocate(nbytes)
        with self._guard:
            self._reach.read(place, address)
            if landing is not None:
                ctypes.memmove(landing[0], address, nbytes)
            if reduction is not None:
                _REDUCE(reduction.function)(address, origin, address, nbytes // reduction.size)
                self._reach.write(place, address)
        if landing is not None:
            landing[2](nbytes)

    def replace(self, place: Place, origin: int, landing: Landing | None = None) -> None:
        """Write packed elements at address `origin` to the memory; copy what it held before to this rank."""
        with self._guard:
            if landing is not None:
                self._reach.read(place, landing[0])
            self._reach.write(place, origin)
        if landing is not None:
            landing[2](place.nbytes)

    def swap_if_same(self, place: Place, origin: int, compare: int, landing: Landing) -> None:
        """Write one element to the memory if it holds the bytes at `compare`; copy what it held before to this rank."""
        before, nbytes = landing[0], place.nbytes
        with self._guard:
            self._reach.read(place, before)
            if span(before, nbytes) == span(compare, nbytes):
                self._reach.write(place, origin)
        landing[2](nbytes)

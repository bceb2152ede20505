"""Kernels that work through a table: many pieces of work in one launch.

::

    table:  row 0 | row 1 | row 2 | ...        group g of 512 threads:  rows g, g + groups, g + 2 groups, ...

A row says what to do where; the threads of a group, one block of a launch, share it. Callers cut large pieces into rows of about
equal size (:func:`cut`), so that all groups have as much to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba_kernels.cuda.kernel import helper
from numba_kernels.cuda.limits import GROUP


def placing(group: int) -> Any:
    """Return what tells a thread its place, where `group` threads share a row.

    It is called with number and count of threads, and the number of rows; it returns the first row of the thread, how many rows further
    its next one is, its number in its group, and threads of the group.
    """

    @helper
    def place(thread, threads, rows):  # type: ignore[no-untyped-def]
        lanes = min(threads, group)
        groups, number = threads // lanes, thread // lanes
        return (number if number < groups else rows), groups, thread - number * lanes, lanes

    return place


place = placing(GROUP)


def cut(total: int, piece: int) -> Iterator[tuple[int, int]]:
    """Begin and length of each piece of `total`, all but the last `piece` long."""
    return ((at, min(piece, total - at)) for at in range(0, total, piece))

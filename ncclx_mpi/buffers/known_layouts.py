"""Which layouts compiled code knows: those that a call in Python has met."""

from __future__ import annotations

from collections.abc import Iterable

from ncclx_mpi.buffers.layout import Layout, Words
from numba_kernels import pylayouts
from numba_kernels.late_numpy import np


def learn(layouts: Iterable[Layout]) -> None:
    """Let compiled code know layouts that may be used: they are committed, and stay so."""
    for layout in layouts:
        if layout.size and layout.table is not None and not pylayouts.is_known(layout):
            bounds = layout.size, layout.extent, layout.true_lb, layout.true_ub
            pylayouts.remember(layout, (*layout.table, *bounds, *_regular(layout.blocks)))


def _regular(blocks: Words) -> tuple[int, int]:
    """Bytes of each block and the distance between two, if all are the same, else 0."""
    steps = np.diff(blocks[:, 0])
    if (blocks[:, 1] != blocks[0, 1]).any() or (steps != steps[:1]).any():
        return 0, 0
    return int(blocks[0, 1]), int(steps[0]) if len(steps) else 0

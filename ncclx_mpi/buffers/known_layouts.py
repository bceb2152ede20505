"""Which layouts compiled code knows: those that a call in Python has met."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ncclx_mpi.buffers.layout import Layout
from numba_kernels import pylayouts, typemap
from numba_kernels.jit import entry
from numba_kernels.typemap import IRREGULAR

_step = functools.cache(functools.partial(entry, typemap.regular_step))


def learn(layouts: Iterable[Layout]) -> bool:
    """Let compiled code know layouts that may be used: they are committed, and stay so. Returns whether it did not know one of them."""
    is_new = False
    for layout in layouts:
        if layout.size and layout.table is not None and not pylayouts.is_known(layout):
            bounds = layout.size, layout.extent, layout.true_lb, layout.true_ub
            is_new |= pylayouts.remember(layout, (*layout.table, *bounds, *_regular(layout)))
    return is_new


def _regular(layout: Layout) -> tuple[int, int]:
    """Bytes of each block and the distance between two, if all are the same, else 0."""
    blocks = layout.typemap
    step = _step()(blocks.buffer_info()[0], len(blocks) // 2)
    return (0, 0) if step == IRREGULAR else (blocks[1], step)

"""How the ranks of communicators are numbered in the job, as compiled code reads it."""

from __future__ import annotations

import functools
from array import array

from numba_kernels.rows import NamedTuple


class Numbering(NamedTuple):
    """World ranks by rank, and ranks by world rank, -1 for none; where they are. Nobody writes to them."""

    world: array[int]
    local: array[int]
    world_at: int
    local_at: int


@functools.lru_cache(maxsize=64)
def numbering(world_ranks: tuple[int, ...], known: int) -> Numbering:
    """Number some of the `known` ranks. Communicators of the same ranks, which programs make many of, share it."""
    world, local = array("q", world_ranks), array("q", [-1]) * known
    for rank, world_rank in enumerate(world_ranks):
        local[world_rank] = rank
    return Numbering(world, local, world.buffer_info()[0], local.buffer_info()[0])

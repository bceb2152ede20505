"""How the ranks of communicators are numbered in the job, as compiled code reads it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Numbering(NamedTuple):
    """World ranks by rank, and ranks by world rank, -1 for none; where they are. Nobody writes to them."""

    world: npt.NDArray[np.int64]
    local: npt.NDArray[np.int64]
    world_at: int
    local_at: int


@functools.lru_cache(maxsize=64)
def numbering(world_ranks: tuple[int, ...], known: int) -> Numbering:
    """Number some of the `known` ranks. Communicators of the same ranks, which programs make many of, share it."""
    world, local = np.array(world_ranks, dtype=np.int64), np.full(known, -1, dtype=np.int64)
    local[world] = np.arange(len(world_ranks))
    return Numbering(world, local, world.ctypes.data, local.ctypes.data)

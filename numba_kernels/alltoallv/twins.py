"""The same as :mod:`numba_kernels.alltoallv.plan`, in NumPy: the reference that tests compare with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Run = tuple[int, int, int]
"""Offset at the sender, offset at the receiver, elements."""


def runs(splits: Sequence[int], chosen: Collection[int], dense_source: bool, dense_target: bool) -> list[Run]:
    """Pieces without gaps of the `chosen` segments, in elements.

    Parameters
    ----------
    splits
        Lengths of the segments, which stand one after another.
    chosen
        Segments that go to one peer.
    dense_source, dense_target
        On this side the chosen segments stand one after another by themselves, without holes for the others.
    """
    lengths = np.asarray(splits, np.int64)
    places = np.cumsum(lengths) - lengths
    wanted = [segment for segment in sorted(set(chosen)) if lengths[segment] > 0]
    found: list[Run] = []
    packed, end = 0, -1
    for segment in wanted:
        place, length = int(places[segment]), int(lengths[segment])
        if place == end:
            source, target, before = found[-1]
            found[-1] = (source, target, before + length)
        else:
            found.append((packed if dense_source else place, packed if dense_target else place, length))
        packed += length
        end = place + length
    return found


def moved(target: NDArray[np.generic], source: NDArray[np.generic], pieces: Sequence[Run]) -> None:
    """Carry out the runs of one pair, from the sender's area to the receiver's."""
    for at, there, length in pieces:
        target[there : there + length] = source[at : at + length]

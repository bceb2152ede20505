"""Random calls of Alltoallv_dynamic, the same on all ranks, and what they should do: planned and moved by the NumPy twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_kernels.alltoallv import twins

INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
ELEMENTS = ("u1", "i2", "f4", "f8", "c16")
PLAIN, SPLIT, INDICES = "plain", "split", "indices"
FORMS = (PLAIN, SPLIT, INDICES)
HOLE = 99


@dataclass
class Table:
    """What all ranks pass, by rank; in elements."""

    form: str
    splits: list[np.ndarray]
    chosen: list[list[list[int]]]
    """By source and destination."""
    places: list[list[int]]
    """By source and destination: where the area in the send buffer begins (plain), else zeros."""
    room: list[list[int]]
    """By source and destination: elements of that area."""
    capacities: list[list[int]]
    """By destination and source."""
    dtype: np.dtype[Any]
    rng: np.random.Generator

    @property
    def size(self) -> int:
        return len(self.splits)

    def runs(self, source: int, target: int) -> list[twins.Run]:
        return twins.runs(self.splits[source], self.chosen[source][target], self.form == PLAIN, self.form != INDICES)

    def fits(self, source: int, target: int) -> bool:
        runs = self.runs(source, target)
        reads = max((at + length for at, _, length in runs), default=0)
        writes = max((there + length for _, there, length in runs), default=0)
        return reads <= self.room[source][target] and writes <= self.capacities[target][source]

    def faults(self, rank: int) -> set[tuple[int, int]]:
        """Pairs of this rank that cannot move."""
        pairs = {(rank, other) for other in range(self.size)} | {(other, rank) for other in range(self.size)}
        return {pair for pair in pairs if not self.fits(*pair)}

    def sendbuf(self, rank: int) -> np.ndarray:
        total = max(at + room for at, room in zip(self.places[rank], self.room[rank], strict=True))
        return np.arange(1, total + 1).astype(self.dtype) + self.dtype.type(10 * rank)

    def send_spec(self, rank: int, make: Callable[[np.ndarray], Any]) -> Any:
        array = make(self.sendbuf(rank))
        return [array, (self.room[rank], self.places[rank])] if self.form == PLAIN else array

    def metadata(self, rank: int) -> tuple[Any, ...]:
        """`splits`, `indices` and `blocklengths` of random integer types; indices in any order, some twice."""
        splits = self._of_some_type(self.splits[rank])
        if self.form != INDICES:
            return splits, None, None
        blocks = [self.rng.permutation(list(block) + list(block[:1])) for block in self.chosen[rank]]
        lengths = np.array([len(block) for block in blocks])
        spare = self.rng.integers(0, 100, self.rng.integers(0, 3))
        return splits, self._of_some_type(np.concatenate([*blocks, spare])), self._of_some_type(lengths)

    def _of_some_type(self, values: np.ndarray) -> np.ndarray:
        """The same as integers of a type that holds them."""
        return values.astype(self.rng.choice([kind for kind in INTEGERS if np.iinfo(kind).max >= max(values, default=0)]))

    def displacements(self, rank: int) -> list[int]:
        """Where the areas of a receive buffer begin: in any order, with gaps."""
        order, at, found = np.random.default_rng(rank).permutation(self.size), 1, [0] * self.size
        for source in order:
            found[source] = at
            at += self.capacities[rank][source] + 1
        return found

    def recvbuf(self, rank: int) -> np.ndarray:
        return np.full(sum(self.capacities[rank]) + self.size + 1, HOLE).astype(self.dtype)

    def received(self, rank: int) -> np.ndarray:
        """The receive buffer afterwards."""
        whole = self.recvbuf(rank)
        for source, at in enumerate(self.displacements(rank)):
            if self.fits(source, rank):
                twins.moved(whole[at:], self.sendbuf(source)[self.places[source][rank] :], self.runs(source, rank))
        return whole


def draw(seed: int, size: int, *, valid: bool = False) -> Table:
    """A random table; a tenth of the pairs lack room for an element, unless it is to be valid."""
    rng = np.random.default_rng(seed)
    form = str(rng.choice(FORMS))
    segments = {PLAIN: size, SPLIT: size * int(rng.integers(0, 4)), INDICES: int(rng.integers(0, 10))}[form]
    splits = [rng.integers(0, 6, segments) * rng.integers(0, 2, segments) for _ in range(size)]
    if form == INDICES:
        chosen = [[np.flatnonzero(rng.integers(0, 2, segments)).tolist() for _ in range(size)] for _ in range(size)]
    else:
        each = segments // size
        chosen = [[list(range(to * each, (to + 1) * each)) for to in range(size)] for _ in range(size)]
    missing = np.zeros((2, size, size), int) if valid else (rng.random((2, size, size)) < 0.1).astype(int)
    table = Table(form, splits, chosen, [[0] * size for _ in range(size)], [], [], np.dtype(str(rng.choice(ELEMENTS))), rng)
    for rank in range(size):
        if form == PLAIN:
            room = [max(int(length) + int(rng.integers(0, 3)) - missing[0, rank, to], 0) for to, length in enumerate(splits[rank])]
            table.places[rank] = (np.cumsum([0, *room])[:-1] + rng.integers(0, 2)).tolist()
        else:
            room = [max(int(splits[rank].sum()) + int(rng.integers(0, 2)) - missing[0, rank, 0], 0)] * size
        table.room.append([int(most) for most in room])
    for rank in range(size):
        ends = [max((there + length for _, there, length in table.runs(source, rank)), default=0) for source in range(size)]
        table.capacities.append(
            [max(end + int(rng.integers(0, 3)) - 3 * int(missing[1, source, rank]), 0) for source, end in enumerate(ends)]
        )
    return table

"""NumPy twins of the collectives: what all ranks get, given what all ranks give.

Each takes one array for each rank, in rank order, and returns one for each rank, ``None`` for a rank that gets nothing. Blocks have any
sizes, so a twin serves the variants with counts too. Reductions are ((0 op 1) op 2) op ..., in this order on every rank, so results
of floating-point operations are compared bit by bit.

>>> import numpy as np
>>> from ncclx_mpi.testing import twins
>>> twins.scan([np.array([1]), np.array([2]), np.array([3])], np.add)
[array([1]), array([3]), array([6])]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kernels import reduce as reductions

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
Operation = Callable[[Array, Array], Array]


def bcast(given: Arrays, root: int) -> list[Array]:
    """What the root gives, to all."""
    return [given[root]] * len(given)


def gather(given: Arrays, root: int) -> list[Array | None]:
    """What all give, one after the other, to the root."""
    return _to(root, np.concatenate(given), len(given))


def scatter(given: Array, counts: Sequence[int]) -> list[Array]:
    """Blocks of `counts` elements of what the root gives, one to each."""
    return np.split(given, list(itertools.accumulate(counts))[:-1])


def allgather(given: Arrays) -> list[Array]:
    """What all give, one after the other, to all."""
    return [np.concatenate(given)] * len(given)


def alltoall(given: Arrays, counts: Sequence[Sequence[int]]) -> list[Array]:
    """Block j of ``counts[i][j]`` elements of what rank i gives, to rank j, in the order of i."""
    blocks = [scatter(array, row) for array, row in zip(given, counts, strict=True)]
    return [np.concatenate(column) for column in zip(*blocks, strict=True)]


def reduce(given: Arrays, operation: Operation, root: int) -> list[Array | None]:
    """The reduction of what all give, to the root."""
    return _to(root, scan(given, operation)[-1], len(given))


def allreduce(given: Arrays, operation: Operation) -> list[Array]:
    """The reduction of what all give, to all."""
    return [scan(given, operation)[-1]] * len(given)


def reduce_scatter(given: Arrays, operation: Operation, counts: Sequence[int]) -> list[Array]:
    """Blocks of `counts` elements of the reduction of what all give, one to each."""
    return scatter(scan(given, operation)[-1], counts)


def scan(given: Arrays, operation: Operation) -> list[Array]:
    """The reduction of what ranks 0 to r give, to rank r."""
    return list(itertools.accumulate(given, operation))


def exscan(given: Arrays, operation: Operation) -> list[Array | None]:
    """The reduction of what ranks 0 to r - 1 give, to rank r; nothing to rank 0."""
    return [None, *scan(given, operation)[:-1]]


def operation(op: str, kind: str) -> Operation:
    """The NumPy twin of a native operation, for instance ``operation("sum", "f32")``."""
    store = reductions.numpy_twin(op, kind)

    def operate(low: Array, high: Array) -> Array:
        out = np.empty_like(low)
        store(out, low, high)
        return out

    return operate


def _to(root: int, array: Array, size: int) -> list[Array | None]:
    return [array if rank == root else None for rank in range(size)]


def epochs(pairs: Sequence[set[tuple[int, int]]], size: int) -> tuple[Array, Array]:
    """How often each rank has posted to each other one, and completed an access to it, after epochs of some pairs of origin and target."""
    posted, completed = np.zeros((2, size, size), np.int64)
    for turn in pairs:
        for origin, target in turn:
            posted[target, origin] += 1
            completed[origin, target] += 1
    return posted, completed

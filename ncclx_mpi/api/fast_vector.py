"""The routes of plain arrays with counts: ``[array, counts]``, ``[array, (counts, displacements)]``, or an array alone.

Each function returns True when the call is complete, False when it shall go the general way, which resolves the arguments in
Python, or says what is wrong with them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ncclx_mpi import collectives
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.collectives import fast_vector as routes
from ncclx_mpi.collectives.allgather import slot_large as spreading
from ncclx_mpi.collectives.alltoall import slot_large as exchanging
from ncclx_mpi.collectives.fast import SLOW
from ncclx_mpi.collectives.lines import ALLGATHER, ALLTOALL, GATHER, SCATTER
from numba_kernels import pyobject
from numba_kernels.jit import entry

_WORDS_A_RANK = exchanging.ROW.total // 8


class Counts(NamedTuple):
    """Counts and offsets of all ranks in native memory, and the address of it."""

    words: npt.NDArray[np.int64]
    address: int


class _Routes(NamedTuple):
    alltoallv: Callable[..., int]
    gatherv: Callable[..., int]
    scatterv: Callable[..., int]
    allgatherv: Callable[..., int]
    exchange: Callable[..., int]
    spread: Callable[..., int]


class _Scratch(threading.local):
    """Each thread's rows for the native side; grown to the largest communicator."""

    def __init__(self) -> None:
        self.size = 0
        self.rows = np.zeros(0, dtype=np.int64)
        self.address = 0

    def for_size(self, size: int) -> int:
        """Address of room for `size` rows."""
        if size > self.size:
            self.rows = np.zeros(size * _WORDS_A_RANK, dtype=np.int64)
            self.address, self.size = self.rows.ctypes.data, size
        return self.address


_scratch = _Scratch()
_NO_VECTOR = (None, Counts(np.zeros(0, dtype=np.int64), 0))
"""What stands for the specification on ranks where it does not matter."""


_routes: _Routes | None = None


def _bind() -> _Routes:
    """Bind the entry points, or what refuses everything where arrays cannot be read natively."""
    global _routes
    kernels = (
        routes.lay_out_alltoallv,
        routes.lay_out_gatherv,
        routes.lay_out_scatterv,
        routes.lay_out_allgatherv,
        exchanging.exchange,
        spreading.spread,
    )
    can_read = pyobject.verify()
    _routes = _Routes(*(entry(kernel) if can_read else _refuse for kernel in kernels))
    return _routes


def _refuse(*_: Any) -> int:
    return SLOW


@functools.lru_cache(maxsize=256)
def _native_counts(counts: tuple[int, ...], offsets: tuple[int, ...] | None) -> Counts:
    """Counts in native memory; blocks stand one after another if there are no offsets."""
    words = np.zeros(2 * len(counts), dtype=np.int64)
    words[: len(counts)] = counts
    words[len(counts) :] = np.cumsum((0, *counts))[:-1] if offsets is None else offsets
    return Counts(words, words.ctypes.data)


def _integers(values: Any, size: int) -> tuple[int, ...] | None:
    """`values` as a tuple if it is a list or tuple of `size` ints that fit a word."""
    if type(values) is not list and type(values) is not tuple:
        return None
    if len(values) != size or set(map(type, values)) != {int} or max(values) >= 1 << 40:
        return None
    return tuple(values)


def _counts_of(given: Any, size: int) -> Counts | None:
    """Counts, perhaps with offsets, in native memory; None if they are given in another way."""
    if type(given) is tuple and len(given) == 2 and type(given[0]) is not int:
        counts, displacements = given
    else:
        counts, displacements = given, None
    counts = _integers(counts, size)
    if displacements is not None:
        displacements = _integers(displacements, size)
        if displacements is None:
            return None
    return None if counts is None else _native_counts(counts, displacements)


_recent: dict[int, tuple[list[int], Counts]] = {}
"""Lists of counts seen lately, by identity, with their contents then: a loop gives the same list again and again."""
_MOST_RECENT = 256


def _counts_of_list(given: list[int], size: int) -> Counts | None:
    """As :func:`_counts_of`, for a list."""
    known = _recent.get(id(given))
    if known is not None and known[0] == given and len(given) == size:
        return known[1]
    counts = _counts_of(given, size)
    if counts is not None:
        if len(_recent) >= _MOST_RECENT:
            _recent.clear()
        _recent[id(given)] = (given.copy(), counts)
    return counts


def _split(spec: Any, size: int) -> tuple[Any, Counts] | None:
    """The array and the counts of a specification of one of the kinds above, None if it is of another kind."""
    kind = type(spec)
    if kind is np.ndarray:
        count, rest = divmod(spec.size, size)
        return None if rest else (spec, _native_counts((count,) * size, None))
    if (kind is not list and kind is not tuple) or len(spec) != 2:
        return None
    array, given = spec
    if type(array) is not np.ndarray:
        return None
    counts = _counts_of_list(given, size) if type(given) is list else _counts_of(given, size)
    return None if counts is None else (array, counts)


def allgatherv(state: CommState, sendbuf: Any, recvbuf: Any) -> bool:
    """Allgatherv of plain arrays."""
    bound, vector = _routes or _bind(), _split(recvbuf, state.size)
    if vector is None:
        return False
    blocks = _scratch.for_size(state.size)
    source = bound.allgatherv(state.address, sendbuf, vector[0], vector[1].address, blocks)
    if source == SLOW:
        return False
    code = bound.spread(state.address, ALLGATHER, 0, source, blocks)
    if code:
        collectives.check(state.native, code, "allgatherv")
    return True


def alltoallv(state: CommState, sendbuf: Any, recvbuf: Any) -> bool:
    """Alltoallv of plain arrays."""
    bound, sent, received = _routes or _bind(), _split(sendbuf, state.size), _split(recvbuf, state.size)
    if sent is None or received is None:
        return False
    rows = _scratch.for_size(state.size)
    if bound.alltoallv(state.address, sent[0], sent[1].address, received[0], received[1].address, rows) == SLOW:
        return False
    code = bound.exchange(state.address, ALLTOALL, 0, rows, 0)
    if code:
        collectives.check(state.native, code, "alltoallv")
    return True


def gatherv(state: CommState, sendbuf: Any, recvbuf: Any, root: Any) -> bool:
    """Gatherv of plain arrays."""
    if type(root) is not int:
        return False
    bound = _routes or _bind()
    vector = _split(recvbuf, state.size) if state.rank == root else _NO_VECTOR
    if vector is None:
        return False
    rows = _scratch.for_size(state.size)
    if bound.gatherv(state.address, sendbuf, vector[0], vector[1].address, root, rows) == SLOW:
        return False
    code = bound.exchange(state.address, GATHER, root, rows, 0)
    if code:
        collectives.check(state.native, code, "gatherv")
    return True


def scatterv(state: CommState, sendbuf: Any, recvbuf: Any, root: Any) -> bool:
    """Scatterv of plain arrays."""
    if type(root) is not int:
        return False
    bound = _routes or _bind()
    vector = _split(sendbuf, state.size) if state.rank == root else _NO_VECTOR
    if vector is None:
        return False
    rows = _scratch.for_size(state.size)
    if bound.scatterv(state.address, vector[0], vector[1].address, recvbuf, root, rows) == SLOW:
        return False
    code = bound.exchange(state.address, SCATTER, root, rows, 0)
    if code:
        collectives.check(state.native, code, "scatterv")
    return True

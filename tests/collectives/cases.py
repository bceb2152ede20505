"""One case for each collective on native communicators: rank-tagged patterns, checked on every rank against the NumPy twins.

A case takes (comm, start, length): `start` maps a collective's name to a function with the arguments of
:mod:`ncclx_mpi.collectives.prepare` that has done the work when it returns. Reductions also take the operation and the element type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.testing import twins
from numba_kernels import reduce

Start = Callable[[str], Callable[..., None]]
Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
_SENTINEL = 0xEE
_EDGE = 3  # an odd address and a margin on both sides of every buffer


class Buffer:
    """`nbytes` at an odd address, with margins that must not change."""

    def __init__(self, data: Array | int) -> None:
        nbytes = data if isinstance(data, int) else data.nbytes
        self._raw = np.full(nbytes + 2 * _EDGE + 64, _SENTINEL, dtype=np.uint8)
        self.bytes = self._raw[_EDGE : _EDGE + nbytes]
        if not isinstance(data, int):
            self.bytes[:] = np.frombuffer(data.tobytes(), dtype=np.uint8)
        self.address = self.bytes.ctypes.data if nbytes else 0x1000

    def check(self, wanted: Array | None, what: str) -> None:
        """Assert the contents from the start, nothing for None, and the margins."""
        if wanted is not None:
            np.testing.assert_array_equal(
                self.bytes[: wanted.nbytes], np.frombuffer(wanted.tobytes(), dtype=np.uint8), err_msg=what
            )
        assert (self._raw[:_EDGE] == _SENTINEL).all() and (self._raw[_EDGE + len(self.bytes) :] == _SENTINEL).all(), what


def pattern(rank: int, nbytes: int, salt: int = 0) -> Bytes:
    """Bytes that tell who sent them and where they belong."""
    return ((np.arange(nbytes, dtype=np.uint32) * 7 + rank * 101 + salt * 13) & 0xFF).astype(np.uint8)


def patterns(counts: list[int], salt: int = 0) -> list[Array]:
    """What each rank gives, so many bytes each."""
    return [pattern(rank, nbytes, salt) for rank, nbytes in enumerate(counts)]


@functools.lru_cache(maxsize=64)
def numbers(rank: int, count: int, kind: str = "f32") -> Array:
    """Elements of a type, to be read only; the sum of floats depends on the order of additions.

    They are kept: each case wants those of all ranks, for each root anew, and they take longer to make than to send.
    """
    made = _made(rank, count, kind)
    made.flags.writeable = False
    return made


def _made(rank: int, count: int, kind: str) -> Array:
    dtype = reduce.dtype(kind)
    dice = np.random.default_rng(rank)
    if dtype.kind in "iu":
        return dice.integers(0, 100, count).astype(dtype)
    spread = dice.uniform(-4, 4, count) * np.tile(10.0 ** np.arange(5), count // 5 + 1)[:count]
    if dtype.names:
        values = np.zeros(count, dtype)
        values["value"], values["index"] = np.round(dice.uniform(-4, 4, count)), rank
        return values
    return (spread > 0).astype(dtype) if dtype.kind == "b" else spread.astype(dtype)


def _first(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


def barrier(comm: NativeComm, start: Start, length: int) -> None:
    for _ in range(5):
        start("barrier")(comm)


def bcast(comm: NativeComm, start: Start, length: int) -> None:
    for root in range(comm.size):
        given = patterns([length] * comm.size, root)
        buffer = Buffer(given[comm.rank])
        start("bcast")(comm, buffer.address, length, root)
        buffer.check(twins.bcast(given, root)[comm.rank], f"bcast from {root}")


def ragged(size: int, length: int) -> list[int]:
    """Counts that differ, one of them 0."""
    return [length * (rank % 3) // 2 for rank in range(size)]


def gather(comm: NativeComm, start: Start, length: int) -> None:
    _gather(comm, start, "gather", [length] * comm.size)


def gatherv(comm: NativeComm, start: Start, length: int) -> None:
    _gather(comm, start, "gatherv", ragged(comm.size, length))


def _gather(comm: NativeComm, start: Start, name: str, counts: list[int]) -> None:
    mine, first, vector = counts[comm.rank], _first(counts), (counts, _first(counts)) if name == "gatherv" else ()
    for root in range(comm.size):
        given = patterns(counts, root)
        send, recv = Buffer(given[comm.rank]), Buffer(sum(counts))
        in_place = root % 2 and comm.rank == root
        if in_place:
            recv.bytes[first[root] : first[root] + mine] = send.bytes
        target = recv.address if comm.rank == root else 0
        start(name)(comm, 0 if in_place else send.address, mine, target, *vector, root)
        recv.check(twins.gather(given, root)[comm.rank], f"{name} to {root}")


def scatter(comm: NativeComm, start: Start, length: int) -> None:
    _scatter(comm, start, "scatter", [length] * comm.size)


def scatterv(comm: NativeComm, start: Start, length: int) -> None:
    _scatter(comm, start, "scatterv", ragged(comm.size, length))


def _scatter(comm: NativeComm, start: Start, name: str, counts: list[int]) -> None:
    mine, vector = counts[comm.rank], (counts, _first(counts)) if name == "scatterv" else ()
    for root in range(comm.size):
        given = pattern(root, sum(counts))
        send, recv = Buffer(given), Buffer(mine)
        in_place = root % 2 and comm.rank == root
        source = send.address if comm.rank == root else 0
        start(name)(comm, source, *vector, 0 if in_place else recv.address, mine, root)
        if not in_place:
            recv.check(twins.scatter(given, counts)[comm.rank], f"{name} from {root}")


def allgather(comm: NativeComm, start: Start, length: int) -> None:
    _allgather(comm, start, "allgather", [length] * comm.size)


def allgatherv(comm: NativeComm, start: Start, length: int) -> None:
    _allgather(comm, start, "allgatherv", ragged(comm.size, length))


def _allgather(comm: NativeComm, start: Start, name: str, counts: list[int]) -> None:
    given, first, mine = patterns(counts), _first(counts)[comm.rank], counts[comm.rank]
    vector = (counts, _first(counts)) if name == "allgatherv" else ()
    for in_place in (False, True):
        send, recv = Buffer(given[comm.rank]), Buffer(sum(counts))
        if in_place:
            recv.bytes[first : first + mine] = send.bytes
        start(name)(comm, 0 if in_place else send.address, mine, recv.address, *vector)
        recv.check(twins.allgather(given)[comm.rank], f"{name}, in place {in_place}")


def alltoall(comm: NativeComm, start: Start, length: int) -> None:
    counts = [[length] * comm.size] * comm.size
    given = patterns([length * comm.size] * comm.size)
    wanted = twins.alltoall(given, counts)[comm.rank]
    send, recv = Buffer(given[comm.rank]), Buffer(length * comm.size)
    start("alltoall")(comm, send.address, recv.address, length)
    recv.check(wanted, "alltoall")
    both = Buffer(given[comm.rank])
    start("alltoall")(comm, 0, both.address, length)
    both.check(wanted, "alltoall in place")


def alltoallv(comm: NativeComm, start: Start, length: int) -> None:
    """Counts that differ, some of them 0; in place they are those of the opposite direction too."""
    for in_place in (False, True):
        ranks = range(comm.size)
        table = [[length * ((i + j if in_place else i + 2 * j) % 4) // 3 for j in ranks] for i in ranks]
        given = patterns([sum(row) for row in table])
        wanted = twins.alltoall(given, table)[comm.rank]
        outgoing, incoming = table[comm.rank], [table[other][comm.rank] for other in ranks]
        send = Buffer(given[comm.rank])
        recv = send if in_place else Buffer(sum(incoming))
        source = 0 if in_place else send.address
        start("alltoallv")(comm, source, outgoing, _first(outgoing), recv.address, incoming, _first(incoming))
        recv.check(wanted, f"alltoallv, in place {in_place}")


def _operands(comm: NativeComm, count: int, in_place: bool, kind: str) -> tuple[int, Buffer, Buffer, list[Array]]:
    """What to pass as send; both buffers (the first one only keeps the memory); what all ranks give."""
    given = [numbers(rank, count, kind) for rank in range(comm.size)]
    send = Buffer(given[comm.rank])
    if in_place:
        return 0, send, send, given
    return send.address, send, Buffer(given[comm.rank].nbytes), given


def _arguments(op: str, kind: str) -> tuple[int, int, bool]:
    return reduce.dtype(kind).itemsize, reduce.address(op, kind), True


def reduction(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    for root in range(comm.size):
        send, kept, recv, given = _operands(comm, length, bool(root % 2) and comm.rank == root, kind)
        target = recv.address if comm.rank == root else 0
        start("reduce")(comm, send, target, length, *_arguments(op, kind), root)
        recv.check(twins.reduce(given, twins.operation(op, kind), root)[comm.rank], f"reduce to {root}")


def allreduce(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    _reduce_all(comm, start, "allreduce", twins.allreduce, length, op, kind)


def scan(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    _reduce_all(comm, start, "scan", twins.scan, length, op, kind)


def exscan(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    """Rank 0 gets nothing, and its memory stays as it is."""
    _reduce_all(comm, start, "exscan", twins.exscan, length, op, kind)


def _reduce_all(comm: NativeComm, start: Start, name: str, twin: Callable[..., list[Any]], length: int, op: str, kind: str) -> None:
    for in_place in (False, True):
        send, kept, recv, given = _operands(comm, length, in_place, kind)
        before = recv.bytes.copy()
        start(name)(comm, send, recv.address, length, *_arguments(op, kind))
        wanted = twin(given, twins.operation(op, kind))[comm.rank]
        recv.check(before if wanted is None else wanted, f"{name}, in place {in_place}")


def reduce_scatter_block(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    _reduce_scatter(comm, start, "reduce_scatter_block", length, [length] * comm.size, op, kind)


def reduce_scatter(comm: NativeComm, start: Start, length: int, op: str = "sum", kind: str = "f32") -> None:
    counts = ragged(comm.size, length)
    _reduce_scatter(comm, start, "reduce_scatter", counts, counts, op, kind)


def _reduce_scatter(comm: NativeComm, start: Start, name: str, argument: Any, counts: list[int], op: str, kind: str) -> None:
    """In place the result replaces the start of what is given, and the rest is left to the implementation."""
    for in_place in (False, True):
        send, kept, recv, given = _operands(comm, sum(counts), in_place, kind)
        wanted = twins.reduce_scatter(given, twins.operation(op, kind), counts)[comm.rank]
        if not in_place:
            recv = Buffer(wanted.nbytes)
        start(name)(comm, send, recv.address, argument, *_arguments(op, kind))
        recv.check(wanted, f"{name}, in place {in_place}")


REDUCTIONS: tuple[Callable[..., None], ...] = (reduction, allreduce, scan, exscan, reduce_scatter_block, reduce_scatter)
CASES: tuple[Callable[..., None], ...] = (
    barrier, bcast, gather, scatter, allgather, alltoall, gatherv, scatterv, allgatherv, alltoallv, *REDUCTIONS,
)  # fmt: skip

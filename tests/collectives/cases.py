"""One case for each collective on native communicators: rank-tagged patterns, checked on every rank.

A case takes (comm, start, length): `start` maps a collective's name to a function with the arguments of
:mod:`ncclx_mpi.collectives.prepare` that has done the work when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels import reduce

Start = Callable[[str], Callable[..., None]]
Bytes = npt.NDArray[np.uint8]
_SENTINEL = 0xEE
_EDGE = 3  # an odd address and a margin on both sides of every buffer


class Buffer:
    """`nbytes` at an odd address, with margins that must not change."""

    def __init__(self, data: npt.NDArray[Any] | int) -> None:
        nbytes = data if isinstance(data, int) else data.nbytes
        self._raw = np.full(nbytes + 2 * _EDGE + 64, _SENTINEL, dtype=np.uint8)
        self.bytes = self._raw[_EDGE : _EDGE + nbytes]
        if not isinstance(data, int):
            self.bytes[:] = np.frombuffer(data.tobytes(), dtype=np.uint8)
        self.address = self.bytes.ctypes.data if nbytes else 0x1000

    def check(self, wanted: npt.NDArray[Any], what: str) -> None:
        """Assert the contents and the margins."""
        np.testing.assert_array_equal(self.bytes, np.frombuffer(wanted.tobytes(), dtype=np.uint8), err_msg=what)
        assert (self._raw[:_EDGE] == _SENTINEL).all() and (self._raw[_EDGE + len(self.bytes) :] == _SENTINEL).all(), what


def pattern(rank: int, nbytes: int, salt: int = 0) -> Bytes:
    """Bytes that tell who sent them and where they belong."""
    return ((np.arange(nbytes, dtype=np.uint32) * 7 + rank * 101 + salt * 13) & 0xFF).astype(np.uint8)


def numbers(rank: int, count: int) -> npt.NDArray[np.float32]:
    """Floats whose sum depends on the order of additions."""
    spread = np.random.default_rng(rank).uniform(-4, 4, count)
    return (spread * 10.0 ** (np.arange(count) % 5)).astype(np.float32)


def in_order(ranks: range, count: int) -> npt.NDArray[np.float32]:
    """((0 + 1) + 2) + ... in float32."""
    total = numbers(ranks[0], count)
    for rank in ranks[1:]:
        total = total + numbers(rank, count)
    return total


def add() -> int:
    return reduce.address("sum", "f32")


def barrier(comm: NativeComm, start: Start, length: int) -> None:
    for _ in range(5):
        start("barrier")(comm)


def bcast(comm: NativeComm, start: Start, length: int) -> None:
    for root in range(comm.size):
        buffer = Buffer(pattern(comm.rank, length, root))
        start("bcast")(comm, buffer.address, length, root)
        buffer.check(pattern(root, length, root), f"bcast from {root}")


def gather(comm: NativeComm, start: Start, length: int) -> None:
    for root in range(comm.size):
        send, recv = Buffer(pattern(comm.rank, length, root)), Buffer(length * comm.size)
        wanted = np.concatenate([pattern(rank, length, root) for rank in range(comm.size)])
        in_place = root % 2 and comm.rank == root
        if in_place:
            recv.bytes[root * length : (root + 1) * length] = send.bytes
        start("gather")(comm, 0 if in_place else send.address, length, recv.address if comm.rank == root else 0, root)
        if comm.rank == root:
            recv.check(wanted, f"gather to {root}")


def scatter(comm: NativeComm, start: Start, length: int) -> None:
    for root in range(comm.size):
        send = Buffer(np.concatenate([pattern(rank, length, root) for rank in range(comm.size)]))
        recv = Buffer(length)
        in_place = root % 2 and comm.rank == root
        source = send.address if comm.rank == root else 0
        start("scatter")(comm, source, 0 if in_place else recv.address, length, root)
        if not in_place:
            recv.check(pattern(comm.rank, length, root), f"scatter from {root}")


def allgather(comm: NativeComm, start: Start, length: int) -> None:
    wanted = np.concatenate([pattern(rank, length) for rank in range(comm.size)])
    for in_place in (False, True):
        send, recv = Buffer(pattern(comm.rank, length)), Buffer(length * comm.size)
        if in_place:
            recv.bytes[comm.rank * length : (comm.rank + 1) * length] = send.bytes
        start("allgather")(comm, 0 if in_place else send.address, length, recv.address)
        recv.check(wanted, f"allgather, in place {in_place}")


def alltoall(comm: NativeComm, start: Start, length: int) -> None:
    outgoing = np.concatenate([pattern(comm.rank, length, other) for other in range(comm.size)])
    wanted = np.concatenate([pattern(other, length, comm.rank) for other in range(comm.size)])
    send, recv = Buffer(outgoing), Buffer(length * comm.size)
    start("alltoall")(comm, send.address, recv.address, length)
    recv.check(wanted, "alltoall")
    both = Buffer(outgoing)
    start("alltoall")(comm, 0, both.address, length)
    both.check(wanted, "alltoall in place")


def ragged(size: int, length: int) -> tuple[list[int], list[int]]:
    """Counts that differ, one of them 0, and their offsets."""
    counts = [length * (rank % 3) // 2 for rank in range(size)]
    return counts, [0, *accumulate(counts)][:-1]


def gatherv(comm: NativeComm, start: Start, length: int) -> None:
    counts, offsets = ragged(comm.size, length)
    for root in range(comm.size):
        send, recv = Buffer(pattern(comm.rank, counts[comm.rank])), Buffer(sum(counts))
        start("gatherv")(comm, send.address, counts[comm.rank], recv.address, counts, offsets, root)
        if comm.rank == root:
            wanted = np.concatenate([pattern(rank, counts[rank]) for rank in range(comm.size)])
            recv.check(wanted, f"gatherv to {root}")


def scatterv(comm: NativeComm, start: Start, length: int) -> None:
    counts, offsets = ragged(comm.size, length)
    for root in range(comm.size):
        send = Buffer(np.concatenate([pattern(rank, counts[rank]) for rank in range(comm.size)]))
        recv = Buffer(counts[comm.rank])
        start("scatterv")(comm, send.address, counts, offsets, recv.address, counts[comm.rank], root)
        recv.check(pattern(comm.rank, counts[comm.rank]), f"scatterv from {root}")


def allgatherv(comm: NativeComm, start: Start, length: int) -> None:
    counts, offsets = ragged(comm.size, length)
    wanted = np.concatenate([pattern(rank, counts[rank]) for rank in range(comm.size)])
    for in_place in (False, True):
        send, recv = Buffer(pattern(comm.rank, counts[comm.rank])), Buffer(sum(counts))
        if in_place:
            recv.bytes[offsets[comm.rank] : offsets[comm.rank] + counts[comm.rank]] = send.bytes
        start("allgatherv")(comm, 0 if in_place else send.address, counts[comm.rank], recv.address, counts, offsets)
        recv.check(wanted, f"allgatherv, in place {in_place}")


def alltoallv(comm: NativeComm, start: Start, length: int) -> None:
    def count(source: int, target: int) -> int:
        return length * ((source + 2 * target) % 4) // 3

    outgoing = [count(comm.rank, other) for other in range(comm.size)]
    incoming = [count(other, comm.rank) for other in range(comm.size)]
    send = Buffer(np.concatenate([pattern(comm.rank, outgoing[other], other) for other in range(comm.size)]))
    recv = Buffer(sum(incoming))
    start("alltoallv")(
        comm, send.address, outgoing, [0, *accumulate(outgoing)][:-1],
        recv.address, incoming, [0, *accumulate(incoming)][:-1],
    )  # fmt: skip
    wanted = np.concatenate([pattern(other, incoming[other], comm.rank) for other in range(comm.size)])
    recv.check(wanted, "alltoallv")


def _operands(comm: NativeComm, count: int, in_place: bool) -> tuple[int, Buffer, Buffer]:
    """What to pass as send, and both buffers (the first one only keeps the memory)."""
    send = Buffer(numbers(comm.rank, count))
    if in_place:
        return 0, send, send
    return send.address, send, Buffer(count * 4)


def reduction(comm: NativeComm, start: Start, length: int) -> None:
    for root in range(comm.size):
        send, kept, recv = _operands(comm, length, bool(root % 2) and comm.rank == root)
        start("reduce")(comm, send, recv.address if comm.rank == root else 0, length, 4, add(), True, root)
        if comm.rank == root:
            recv.check(in_order(range(comm.size), length), f"reduce to {root}")


def allreduce(comm: NativeComm, start: Start, length: int) -> None:
    for in_place in (False, True):
        send, kept, recv = _operands(comm, length, in_place)
        start("allreduce")(comm, send, recv.address, length, 4, add(), True)
        recv.check(in_order(range(comm.size), length), f"allreduce, in place {in_place}")


def scan(comm: NativeComm, start: Start, length: int) -> None:
    for in_place in (False, True):
        send, kept, recv = _operands(comm, length, in_place)
        start("scan")(comm, send, recv.address, length, 4, add(), True)
        recv.check(in_order(range(comm.rank + 1), length), f"scan, in place {in_place}")


def exscan(comm: NativeComm, start: Start, length: int) -> None:
    for in_place in (False, True):
        send, kept, recv = _operands(comm, length, in_place)
        before = recv.bytes.copy()
        start("exscan")(comm, send, recv.address, length, 4, add(), True)
        wanted = in_order(range(comm.rank), length) if comm.rank else before
        recv.check(wanted, f"exscan, in place {in_place}")


def reduce_scatter_block(comm: NativeComm, start: Start, length: int) -> None:
    total = in_order(range(comm.size), length * comm.size)
    for in_place in (False, True):
        send, kept, recv = _operands(comm, length * comm.size, in_place)
        if not in_place:
            recv = Buffer(length * 4)
        start("reduce_scatter_block")(comm, send, recv.address, length, 4, add(), True)
        wanted = total[comm.rank * length : (comm.rank + 1) * length]
        if in_place:
            np.testing.assert_array_equal(recv.bytes[: length * 4].copy().view(np.float32), wanted)
        else:
            recv.check(wanted, "reduce_scatter_block")


def reduce_scatter(comm: NativeComm, start: Start, length: int) -> None:
    counts = [length * (rank % 3) // 2 for rank in range(comm.size)]
    firsts = [0, *accumulate(counts)]
    total = in_order(range(comm.size), sum(counts))
    for in_place in (False, True):
        send, kept, recv = _operands(comm, sum(counts), in_place)
        mine = counts[comm.rank]
        if not in_place:
            recv = Buffer(mine * 4)
        start("reduce_scatter")(comm, send, recv.address, counts, 4, add(), True)
        wanted = total[firsts[comm.rank] : firsts[comm.rank] + mine]
        if in_place:
            np.testing.assert_array_equal(recv.bytes[: mine * 4].copy().view(np.float32), wanted)
        else:
            recv.check(wanted, "reduce_scatter")


CASES: tuple[Callable[[NativeComm, Start, int], None], ...] = (
    barrier, bcast, gather, scatter, allgather, alltoall, gatherv, scatterv, allgatherv, alltoallv, reduction, allreduce,
    scan, exscan, reduce_scatter_block, reduce_scatter,
)  # fmt: skip
